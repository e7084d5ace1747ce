"""The child process of MLCommons' tools: its input, its failures, and the verdicts from its answers."""

import subprocess
import tempfile
from dataclasses import replace

import pytest

from mlevents import mlcommons
from mlevents.mlcommons import logs
from mlevents.mlcommons import process as official_process
from mlevents.mlcommons.verdict import judged


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("os.kill(os.getpid(), 9)", "compliance_checker's process ended with signal 9"),
        ("sys.stderr.write('out of luck\\n'); os._exit(3)", "ended with exit status 3: out of luck"),
        ("time.sleep(60)", "compliance_checker did not finish within 3 s and was stopped"),
    ],
)
def test_a_child_that_dies_or_hangs_loses_one_log(records, write, tmp_path, monkeypatch, fault, said):
    original = official_process.CHILD.read_text()
    broken = original.replace(
        "    values: dict[str, Any] = {",
        f"    import time\n    if 'result_1.txt' in job['arguments'][-1]:\n        {fault}\n"
        "    values: dict[str, Any] = {",
        1,
    )
    assert broken != original
    (tmp_path / "child.py").write_text(broken)
    monkeypatch.setattr(official_process, "CHILD", tmp_path / "child.py")
    monkeypatch.setattr(logs, "LOG_SECONDS", 3.0)
    paths = [write(records, f"result_{number}.txt") for number in range(3)]
    first, second, third = mlcommons.check_logs(paths, "2.0.0")
    assert (first.verdict, second.verdict, third.verdict) == ("pass", "not run", "pass")
    assert len(second.messages) == 1 and said in second.messages[0]


def test_words_and_return_value_have_to_agree(tmp_path):
    passing = official_process.Answer(log=(("INFO", "SUCCESS"),), exit=0, returned={"main": True})
    failing = official_process.Answer(log=(("ERROR", "FAILED"),), exit=1, returned={"main": False})
    with official_process.Workplace() as place:

        def verdict(answer):
            return judged("compliance_checker", "2.0.0", answer, place)

        assert (verdict(passing).verdict, verdict(passing).messages) == ("pass", ())
        assert (verdict(failing).verdict, verdict(failing).messages) == ("fail", ())
        for answer in (
            replace(passing, returned={"main": False}),
            replace(passing, exit=1),
            replace(failing, returned={"main": True}, exit=0),
        ):
            found = verdict(answer)
            assert found.verdict == "fail" and "but its return values do not" in found.messages[0]
        silent = verdict(replace(passing, log=()))
        assert (silent.verdict, silent.messages) == ("not run", ("compliance_checker gave no verdict: exit status 0",))
        unimportable = verdict(official_process.Answer(raised="ImportError: no numpy", missing=True))
        assert unimportable.verdict == "not run" and "no numpy" in unimportable.messages[0]


def test_without_a_place_for_copies_nothing_is_run(records, write, tmp_path, monkeypatch):
    path = write(records)
    (tmp_path / "systems").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    for verdict in (*mlcommons.check_logs([path, path], "2.0.0"), mlcommons.check_package(tmp_path, "2.0.0")):
        assert verdict.verdict == verdict.own_round == "not run"
        assert verdict.messages == ("no copy could be made for MLCommons' tools: No such file or directory",)


def test_the_child_is_given_an_empty_working_folder(records, write, monkeypatch):
    seen = {}
    start = subprocess.Popen

    def spy(command, **options):
        seen["cwd"] = list(options["cwd"].iterdir())
        return start(command, **options)

    monkeypatch.setattr(subprocess, "Popen", spy)
    assert mlcommons.check_log(write(records), "2.0.0").verdict == "pass" and seen["cwd"] == []
