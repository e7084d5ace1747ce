"""The `timedrun` command: exit codes, equal results under all launchers, several runs, mistakes on the command line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from judging.ground.errors import ExitCode
from mlevents import keys, record
from mlevents.record import RunRecord
from timedrun.commands.parser import VERBS

RUN = "run image_classification smoke --data synthetic"
SMOKE = RUN.split()[1:]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def timedrun(
    *arguments: object, program: tuple[str, ...] = ("-m", "timedrun"), cwd: str = "."
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *program, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, cwd=cwd)


def result(folder: Path, number: int = 0) -> RunRecord:
    return record.read(folder / f"result_{number}.txt")


def course(run: RunRecord) -> list[object]:
    """Events of a run without times, speed and place in the ledger."""
    measured = (
        *(keys.TRACKED_STATS, keys.MACHINE_LOAD),
        keys.LEDGER_ENTRY,  # of its time
    )
    return [
        (event.key, None if event.key in measured else event.value, event.metadata.get("epoch_num"))
        for event in run.events
        if event.key != keys.CLOCK_SET  # of the machine, at any moment
    ]


def test_the_bare_command_prints_all_verbs_by_purpose_six_of_them_first_and_fails(answered, printed):
    out, errors = answered(code=2)
    assert not out
    for group, verbs in VERBS.items():
        assert f"\n{group.lower()}:\n" in errors
        assert all(f"\n  {verb} " in errors for verb in verbs)
    assert list(next(iter(VERBS.values()))) == ["run", "race", "check", "report", "show", "doctor"]
    assert "\n  use run to time one config, race for" in errors
    out = printed("race", "--help")
    assert "use run to" in out and "use report for" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("rn image_classification baseline", "Did you mean run?"),
        ("new benchmrk x", "Did you mean benchmark?"),
        ("check --oficial x", "Did you mean --official?"),
        ("run image_classification baseline --result x", "Did you mean --results?"),
        ("race image_classification baseline --runz=3", "Did you mean --runs?"),
        ("show fneweb", "Did you mean language_model.fineweb?"),
        ("run resnet", "Did you mean image_classification?"),
        ("show resnet", "Benchmarks: "),
        (f"{RUN} --optimizer.peek-lr 1", "--optimizer.peak-lr"),
        ("score . --csv x.csv", "there is no option --csv: give --json, which has the same values"),
        (f"{RUN} --without ema", "there is no option --without: give CONFIG-METHOD, such as methods-blur"),
        ("bench step image_classification baseline --skip 3", "`timedrun bench` ended: `timedrun profile"),
        ("run image_classification", "give a config, such as `timedrun run image_classification baseline`"),
        ("run command a", "timedrun race command COMMAND"),
        ("sweep command a", "race ... --ratios 0.5 1"),
        ("race command a --metric loss", "give metric in a file of TOML"),
        (f"{RUN} --nodes 2", "torchrun's variable PET_NNODES"),
        ("referee x --train a --validation b --rows 9", "rows in a file of TOML, as --limits"),
        *((f"race command a --budgets {budgets}", "argument --budgets: ") for budgets in ("1,1", "0", "x")),
        *((f"new benchmark {word}", f"'{word}' is a word of `timedrun ") for word in ("methods", "command")),
        ("race command true --name a --results b", "--name is the last part of the race's folder"),
        ("check nowhere", "nowhere does not exist"),
        ("prepare image_classification --text x", "not prepared from text; leave out --text"),
        ("score", "required"),
    ],
)
def test_a_mistake_on_the_command_line_exits_2_and_says_what_was_meant(arguments, said, answered):
    out, errors = answered(*arguments.split(), code=2)
    assert said in re.sub(r"\s+", " ", errors + out)


@pytest.mark.processes
def test_every_way_to_start_a_run_gives_the_same_results_which_name_no_path_and_no_host(tmp_path):
    command, side = ("-m", "timedrun", "run", "image_classification"), tmp_path / "script" / "run_0"
    for name, program, words, like in (
        ("script", ("train.py",), SMOKE[1:], "script"),
        ("two ranks", command, [*SMOKE[1:], "--ranks", 2], "two ranks"),
        ("torchrun", (*TORCHRUN, *command), SMOKE[1:], "two ranks"),
    ):
        place = "image_classification" if name == "script" else "."
        done = timedrun(*words, "--results", tmp_path / name, program=program, cwd=place)
        assert done.returncode == 0, done.stderr
        assert "target reached" in done.stdout
        run = result(tmp_path / name)
        assert course(run) == course(result(tmp_path / like)) and len(run.all(keys.RUN_START)) == 1
        assert len(run.all(keys.MACHINE_LOAD)) == len(run.all(keys.EVAL_ACCURACY))
        assert all("nodes" not in event.metadata for event in run.all(keys.MACHINE_LOAD))  # of one machine
    files = {"config.json", "system.json", "environment.txt", "provenance.json"}
    assert {path.name for path in side.iterdir()} == files
    everything = "".join(path.read_text() for path in [*side.iterdir(), side.with_name("result_0.txt")])
    for place in (str(tmp_path), str(Path.cwd()), str(Path.home()) + "/"):
        assert place not in everything
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", everything)  # a package's name may hold a short one


@pytest.mark.processes
def test_several_runs_have_their_own_seeds_and_a_failed_one_does_not_lose_the_others(tmp_path):
    folder = tmp_path / "set"
    done = timedrun("run", *SMOKE, "--results", folder, "--runs", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert [Path(run["result"]).name for run in json.loads(done.stdout)["runs"]] == ["result_0.txt", "result_1.txt"]
    assert [result(folder, number).seed for number in range(2)] == [1, 2]
    other = timedrun("run", SMOKE[0], "smoke-ema", *SMOKE[2:], "--results", folder, "--runs", 2)
    assert other.returncode == 1 and "holds runs of another config" in other.stderr
    assert not (folder / "run_2").exists()


def test_a_failed_run_of_several_is_reported_and_the_worst_exit_code_returned(tmp_path, monkeypatch, printed, refused):
    codes, seen = [3, 4, 0], list[list[str]]()

    def child(command: list[str], label: str) -> tuple[int, str, bool]:
        seen.append(command)
        return codes[len(seen) - 1], "", False

    monkeypatch.setattr("timedrun.evidence.run_series.run_child", child)
    command = ["run", *SMOKE, "--results", str(tmp_path / "set"), "--runs", "3"]
    assert printed(*command, code=4).count("before it opened a log") == 3
    assert all(one[one.index("run") : -6] == command for one in seen)
    for more in (["--seed", "3"], ["--results", str(tmp_path / "result_1.txt")], ["--resume"]):
        assert "leave out --resume, the result's number and --seed" in refused(*command, *more)
    assert len(seen) == 3


@pytest.mark.parametrize(("ended", "code"), [(0, 143), (3, 143), (75, 75)])
def test_a_signal_between_two_of_several_runs_ends_them_with_its_code(ended, code, tmp_path, monkeypatch, printed):
    def child(command: list[str], label: str) -> tuple[int, str, int]:
        os.kill(os.getpid(), signal.SIGTERM)
        return ended, "", signal.SIGTERM if ended == 75 else 0

    monkeypatch.setattr("timedrun.evidence.run_series.run_child", child)
    said = printed("run", *SMOKE, "--results", tmp_path / "set", "--runs", 3, code=code)
    assert "0 of 1 runs reached the target; 2 not started" in said


def test_a_restart_by_torchrun_is_refused_with_what_restarts(tmp_path, monkeypatch, refused):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert "by `timedrun run --ranks N` with PET_MAX_RESTARTS" in refused("run", *SMOKE, "--results", tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.processes
def test_sigterm_to_the_first_process_of_a_container_ends_it_before_torch_is_imported():
    raised = "cli.announce = lambda *_: signal.raise_signal(signal.SIGTERM)"
    script = f"import os, signal; os.getpid = lambda: 1; from timedrun import cli; {raised}; cli.main(['doctor'])"
    assert timedrun(program=("-c", script)).returncode == ExitCode.TERMINATED


def test_a_taken_result_and_wrong_settings_come_at_once(tmp_path, refused):
    (tmp_path / "result_3.txt").write_text("precious")
    words = (*SMOKE, "--global-batch", 63, "--ranks", 2, "--evaluation.target", 76)
    errors = refused("run", *words, "--results", tmp_path / "result_3.txt", code=1)
    assert "63 is not divisible by 2 ranks; use --ranks 1 or --global-batch 64" in errors
    assert "not a percentage" in errors and "result_3.txt exists" in errors
    assert (tmp_path / "result_3.txt").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["result_3.txt"]
