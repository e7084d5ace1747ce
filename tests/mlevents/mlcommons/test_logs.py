"""MLCommons' tools run on a copy, in a child process, also with repaired rules, and their output gives the verdict."""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlevents import keys, mlcommons
from mlevents.mlcommons import child
from mlevents.mlcommons import process as official_process
from mlevents.package_checker.system_description import KEYS
from mlevents.record import read
from mlevents.rounds import RULESETS
from tests.mlevents.conftest import put
from tests.mlevents.rounds.synthetic_logs import log_of


def test_a_good_log_passes_in_an_empty_working_folder_and_is_left_as_it_was(records, write, tmp_path, monkeypatch):
    def started(command, **options):
        assert list(options["cwd"].iterdir()) == []
        return subprocess.Popen(command, **options)

    monkeypatch.setattr(official_process, "Popen", started)
    path = write(records)
    before = path.read_bytes()
    verdict = mlcommons.check_logs([path], "2.0.0")[0]
    assert (verdict.verdict, verdict.messages) == ("pass", ())
    assert (verdict.tool, verdict.checker, verdict.ruleset) == ("compliance_checker", "mlperf-logging 4.1.68", "2.0.0")
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_bad_log_fails_with_the_complaint_at_the_files_line(records, write, tmp_path):
    put(records, "submission_status", "rdi")
    records.pop()
    path = write(records, "result_7.txt")
    path.write_text("banner\nbanner\n" + path.read_text())
    verdict = mlcommons.check_logs([path], "2.0.0")[0]
    assert verdict.verdict == "fail"
    status, stop = verdict.messages
    line = read(path).first("submission_status").line
    assert status.startswith(f"result_7.txt: CHECK for 'submission_status' failed in line {line}: failed test:")
    assert stop == "result_7.txt: Required EXACTLY_ONE occurrence of 'run_stop' but found 0"


@given(st.text(), st.sampled_from(["", ":::MLLOG ", ":::MLLOG a:::MLLOG "]), st.text())
def test_the_tools_cut_a_line_as_by_their_pattern(prefix, mark, record):
    line = f"{prefix}{mark}{record}".replace("\n", "") + "\n"
    for by in (":::MLLOG ", ":::MLL"):
        assert child._sub(f".*{by}", by, line) == re.sub(f".*{by}", by, line)


@pytest.mark.parametrize(
    ("ruleset", "why"), [("9.9.9", "invalid choice: '9.9.9'"), ("beyond_mlperf", "have no ruleset 'beyond_mlperf'")]
)
def test_rules_that_mlcommons_does_not_have_are_not_run(records, write, ruleset, why):
    verdict = mlcommons.check_logs([write(records)], ruleset)[0]
    assert verdict.verdict == "not run" and why in verdict.messages[0]


def test_without_the_library_nothing_is_run(records, write, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    path = write(records)
    verdict = mlcommons.check_logs([path], "2.0.0")[0]
    assert (verdict.verdict, verdict.own_round) == ("not run", "not run") and "not installed" in verdict.messages[0]
    assert verdict.checker == "mlperf-logging (not installed)" == mlcommons.checker_version()


def test_a_log_cannot_choose_the_rules_the_checker_executes(records, write, tmp_path):
    proof = tmp_path / "proof"
    rules = tmp_path / "evil_common.yaml"
    rules.write_text(f"- BEGIN:\n    CODE: \"open({str(proof)!r}, 'w')\"\n")
    package = os.path.dirname(importlib.util.find_spec("mlperf_logging.compliance_checker").origin)
    put(records, "submission_division", os.path.relpath(tmp_path / "evil", os.path.join(package, "training_2.0.0")))
    path = write(records)
    verdict = mlcommons.check_logs([path], "2.0.0")[0]
    assert verdict.verdict == "fail" and "submission_division holds a path" in verdict.messages[0]
    assert not proof.exists()


def test_every_log_of_many_gets_the_verdict_it_gets_alone_and_what_cannot_be_read_none(tmp_path, make_records, write):
    # A closed log queues the rules of its optimizer, and breaks the checker off before it comes to them.
    queueing = make_records()
    put(queueing, "submission_division", "closed")
    put(queueing, "eval_accuracy", None)
    queueing.insert(6, queueing[6] | {"key": "opt_name", "value": "lars"})
    good = make_records()
    logs = {"first": good, "queueing": queueing, "after": good, "cut": good[:-1], "empty": [], "last": good}
    paths = {"pipe": tmp_path / "pipe", "absent": tmp_path / "absent", "folder": tmp_path}
    os.mkfifo(paths["pipe"])
    for name, records in logs.items():
        (tmp_path / name).mkdir()
        paths[name] = write(records, f"{name}/result_0.txt")
    verdicts = dict(zip(paths, mlcommons.check_logs(list(paths.values()), "2.0.0"), strict=True))
    for name in ("first", "after", "last"):
        assert (verdicts[name].verdict, verdicts[name].messages) == ("pass", ())
        assert verdicts[name].own_round == "pass"
    assert verdicts["cut"].messages == ("result_0.txt: Required EXACTLY_ONE occurrence of 'run_stop' but found 0",)
    for name in ("cut", "queueing", "empty"):
        assert verdicts[name] == mlcommons.check_logs([paths[name]], "2.0.0")[0]
        assert verdicts[name].verdict == "fail"
    assert verdicts["queueing"].messages[0].startswith("compliance_checker was aborted: TypeError")
    assert "is a named pipe" in verdicts["pipe"].messages[0]
    assert verdicts["absent"].messages == ("absent: No such file or directory",)
    assert "Is a directory" in verdicts["folder"].messages[0]
    assert {verdicts[name].verdict for name in ("pipe", "absent", "folder")} == {"not run"}


@pytest.mark.parametrize(
    ("edit", "verdict", "message"),
    [
        (
            lambda text: text.replace('"resnet"', '"resnet50"'),
            "fail",
            r".*FileNotFoundError.*'mlperf_logging/compliance_checker",
        ),
        (
            lambda text: text.replace("submission_benchmark", "submission_bench\\u006dark").replace("resnet", "../x"),
            "fail",
            r".*submission_benchmark holds a path, '../x'",
        ),
        (
            lambda text: text.replace('"submission_division", ', f'"submission_division", "note": "{"x" * 400_000}", '),
            "not run",
            r"result_0.txt, line 4 has 400,[0-9]{3} characters, and MLC.* at most 100,000",
        ),
    ],
    ids=["the checker breaks off", "a key behind an escape", "a line that would take the parser minutes"],
)
def test_what_the_checker_breaks_off_at_or_is_not_given_is_told_in_one_message(records, write, edit, verdict, message):
    path = write(records)
    path.write_text(edit(path.read_text()))
    found = mlcommons.check_logs([path], "2.0.0")[0]
    assert found.verdict == verdict and len(found.messages) == 1 and re.match(message, found.messages[0])


def test_of_many_unparsable_records_only_some_are_told(records, write):
    path = write(records)
    path.write_text(path.read_text() + ":::MLLOG {broken\n" * 500)
    verdict = mlcommons.check_logs([path], "2.0.0")[0]
    assert verdict.verdict == "fail" and len(verdict.messages) < 20
    assert "result_0.txt: 490 more records cannot be parsed" in verdict.messages


def test_a_child_that_dies_or_hangs_loses_one_log(records, write, tmp_path, monkeypatch):
    faults = {"0": "os.kill(os.getpid(), 9)", "1": "sys.stderr.write('out of luck\\n'); os._exit(3)"}
    faults["2"] = "import time; time.sleep(60)"
    original, place = official_process.CHILD.read_text(), "    values: dict[str, Any] = {"
    fault = f"    exec({faults}.get(job['arguments'][-1].removesuffix('.txt')[-1], ''))\n"
    broken = original.replace(place, fault + place, 1)
    assert broken != original
    (tmp_path / "child.py").write_text(broken)
    monkeypatch.setattr(official_process, "CHILD", tmp_path / "child.py")
    monkeypatch.setattr(mlcommons, "LOG_SECONDS", 3.0)
    *lost, whole = mlcommons.check_logs([write(records, f"result_{number}.txt") for number in range(4)], "2.0.0")
    assert whole.verdict == "pass" and {verdict.verdict for verdict in lost} == {"not run"}
    assert [verdict.messages for verdict in lost] == [
        ("compliance_checker's process ended with signal 9",),
        ("compliance_checker's process ended with exit status 3: out of luck",),
        ("compliance_checker did not finish within 3 s and was stopped",),
    ]


def test_words_and_exit_status_have_to_agree(tmp_path):
    passing = official_process.Answer(log=(("INFO", "SUCCESS"),), exit=0)
    failing = official_process.Answer(log=(("ERROR", "FAILED"),), exit=1)
    with official_process.Workplace() as place:

        def verdict(answer):
            return mlcommons.Tool("compliance_checker", "2.0.0").judged(answer, place, place.copy)

        assert (verdict(passing).verdict, verdict(passing).messages) == ("pass", ())
        assert (verdict(failing).verdict, verdict(failing).messages) == ("fail", ())
        for answer in (replace(passing, exit=1), replace(failing, exit=0)):
            found = verdict(answer)
            assert found.verdict == "fail" and "but exits with status" in found.messages[0]
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


@pytest.fixture
def closed_bert():
    """Return a closed BERT log of v2.1 as it was right then: the optimizer's epsilon under its old name."""
    return log_of("2.1.0", "bert", keys.CLOSED)


def test_a_log_of_its_time_fails_today_and_passes_its_own_round_unless_it_is_wrong_in_that_too(closed_bert, write):
    good, short, bare = closed_bert, closed_bert[:-1], [r for r in closed_bert if r["key"] != "opt_epsilon"]
    opened = [r | {"value": "open"} if r["key"] == "submission_division" else r for r in short]
    paths = [write(records, f"result_{number}.txt") for number, records in enumerate((good, short, bare, opened))]
    verdicts = mlcommons.check_logs(paths, "2.1.0")
    assert {verdict.verdict for verdict in verdicts} == {"fail"}
    assert [verdict.own_round for verdict in verdicts] == ["pass", "fail", "fail", "fail"]
    said = "result_0.txt: Required EXACTLY_ONE occurrence of 'opt_lamb_epsilon' but found 0"
    assert verdicts[0].messages == (said,) and len(verdicts[1].messages) == 2
    assert "opt_epsilon was renamed" in verdicts[0].defects[0] and verdicts[3].defects == ()  # open: no defect
    (before,) = mlcommons.check_logs([paths[0]], "2.0.0")  # whose rules were left as they were
    assert (before.verdict, before.own_round, before.defects) == ("pass", "pass", ())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": "no such text"}, "the installed training_2.1.0/closed_bert.yaml lacks the text to replace"),
        ({"file": "training_2.1.0/closed_absent.yaml"}, "no rule file training_2.1.0/closed_absent.yaml"),
    ],
)
def test_a_repair_that_does_not_fit_the_rules_is_said_and_passes_nothing(closed_bert, write, monkeypatch, change, said):
    rules = RULESETS["2.1.0"]
    (defect,) = [defect for defect in rules.defects if defect.benchmark == "bert"]
    unfit = replace(rules, defects=(replace(defect, repair=replace(defect.repair, **change)),))
    monkeypatch.setitem(RULESETS, "2.1.0", unfit)
    verdict = mlcommons.check_logs([write(closed_bert)], "2.1.0")[0]
    assert (verdict.verdict, verdict.own_round) == ("fail", "not run")
    assert "the round's own rules were not applied" in verdict.messages[-1] and said in verdict.messages[-1]


def test_a_package_fails_today_and_passes_its_own_round(write, tmp_path):
    package = tmp_path / "Nobody"
    results = package / "results" / "laptop" / "gpt3"
    results.mkdir(parents=True)
    (package / "systems").mkdir()
    (package / "systems" / "laptop.json").write_text(json.dumps(dict.fromkeys(KEYS, "1") | {"division": "open"}))
    text = write(log_of("3.0.0", "gpt3", keys.OPEN)).read_text()
    for number in range(3):
        lines = text.replace('"key": "seed", "value": 1,', f'"key": "seed", "value": {number},')
        (results / f"result_{number}.txt").write_text(lines)
    verdict = mlcommons.check_package(package, "3.0.0")
    assert (verdict.verdict, verdict.own_round) == ("fail", "pass"), verdict
    assert len(verdict.defects) == 1 and "no open_gpt3.yaml" in verdict.defects[0]
