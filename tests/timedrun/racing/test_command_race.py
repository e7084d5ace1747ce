"""`timedrun race command`: any script is raced, logged, compared, continued, and refused with a reason."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from mlevents.record import read
from tests.timedrun.conftest import git
from timedrun.cli import main
from timedrun.commands import race_toml
from timedrun.commands.parser import parser

SCRIPT = """
import os, sys, time
seed, factor = int(os.environ["SEED"]), float(sys.argv[1])
for step in range(1, 5):
    time.sleep(0.05 * factor + 0.007 * seed)
    print(f"step:{step} val_loss:{4.0 / step + 0.001 * seed:.4f}")
"""
SWEPT = """
import sys, time
budget, factor = int(sys.argv[1]), float(sys.argv[2])
time.sleep(0.003 * budget * factor)
print(f"loss:{1 / budget}")
time.sleep(0.1)
"""
READ = ["--quality", r"step:(?P<step>\d+) val_loss:(?P<quality>[0-9.]+)", "--target", "1.1", "--lower"]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command line of a script, but for its factor of time; the working folder is empty."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    unpackaged = "timedrun.commands.command_race.package_race"  # `packaged` has one, and it takes 2 s
    monkeypatch.setattr(unpackaged, lambda race, folder: ("", False, {}))
    (tmp_path / "train.py").write_text(SCRIPT)
    return shlex.join([sys.executable, str(tmp_path / "train.py")])


def results(folder: str = "race") -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(folder, "race.json").read_text())
    return values


def test_two_commands_are_raced_and_the_faster_one_is_named(train, printed):
    words = [f"{train} 3", f"{train} 0.5", *READ, "--runs", "3", "--results", "race", "--control", "2"]
    shown = printed("race", "command", *words, "--keep-if", "time < 0.9x and quality")
    assert "faster" in shown and "strict: 8 of 8 logs pass" in shown
    assert "a: 3 (control)" in shown and f"command     {train} 0.5 (b: 0.5)" in shown
    assert "decision    keep: time < 0.9x and quality" in shown
    report = results()
    (ratio,) = report["ratios"].values()
    assert ratio["verdict"] == "faster" and 1.5 < ratio["ratio"] < 5
    assert [turn["seed"] for turn in report["race"]["turns"]] == [1, 1, 1, 2, 2, 2, 3, 3]
    assert report["control"]["runs_slow"] == 2 and report["decision"]["time_interval"][1] < 0.6
    assert main(["check", "--no-official", "race"]) == main(["compare", "race/a", "race/b"]) == 0
    log = Path("race/b/result_0.txt")
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "eval_stop" not in line))
    assert main(["race", "command", "--resume", "race"]) == 1
    assert results()["decision"]["decision"] == "inconclusive"


@pytest.mark.parametrize(("factors", "code"), [(("x", "1"), 4), (("1", "x"), 1)])
def test_a_failed_second_side_is_discarded_and_a_failed_first_one_decides_nothing(factors, code, train, printed):
    sides = [f"{train} {factor}" for factor in factors]
    shown = printed("race", "command", *sides, *READ, "--runs", "2", "--keep-if", "time < 2x", code=code)
    assert "0 of 1, 1 failed" in shown and "exit code 1" in shown and "had no evaluation" in shown


def test_a_second_side_that_misses_the_target_or_is_worse_at_one_length_is_discarded(train):
    def side(*accuracies: float) -> str:
        return "; ".join(f"echo accuracy {accuracy}$SEED" for accuracy in accuracies) + "; echo end"

    words = ["--quality", "accuracy ([0-9.]+)", "--runs", "3", "--keep-if", "quality"]
    better, worse = side(0.9, 0.95), side(0.9, 0.93)
    once = ["--stop", "end", "--target", "0.92"]  # which only the last evaluations reach
    ends = [side(0.9, 0.95), side(0.95)]  # at the target, which the line of --stop follows
    assert main(["race", "command", *words, "--stop", "end", "--target", "0.94", *ends, "--results", "ends"]) == 0
    codes = [
        main(["race", "command", *words, "--target", "0.94", better, worse]),
        main(["race", "command", *words, *once, better, worse]),
        main(["race", "command", *words, *once, worse, better]),
    ]
    decisions = [results(f"runs/command/race_{number}")["decision"]["decision"] for number in (1, 2, 3)]
    assert (decisions, codes) == (["discard", "discard", "keep"], [1, 1, 0])


def test_commits_are_raced_and_what_differs_is_told_and_one_commit_twice_is_a_control_at_it(train, printed):
    for words, factor in ((["init", "--quiet", "-b", "main"], 3), (["checkout", "--quiet", "-b", "fast"], 0.5)):
        git(Path(), *words)
        Path("train.sh").write_text(f"exec {train} {factor}\n")
        git(Path(), "add", "train.sh"), git(Path(), "commit", "--quiet", "-m", f"Factor {factor}")
    Path("data").touch()  # untracked, so in no commit
    race, script = ["race", "command", "--at", "fast", *READ], ["--", "sh", "-c", "sh train.sh; test ! -e data"]
    assert "Factor 0.5" in printed(*race[:2], "--at", "main", *race[2:], "--runs", "2", "--results", "race", *script)
    report = results()
    slow, fast = (min(times) for times in report["runs_seconds"].values())
    assert slow > 1.5 * fast and "Factor 0.5" in report["race"]["differences"][1]
    commits = {json.loads(Path(f"race/{side}/run_0/provenance.json").read_text())["commit"] for side in "ab"}
    assert len(commits) == 2
    assert main(["race", "command", "--resume", "race"]) == 0
    assert main([*race, "--at", "fast", "--runs", "1", "--results", "twice", *script]) == 0
    assert [*results("twice")["runs_seconds"]] == ["fast", "fast (again)"]
    assert main([*race, "--at", "main", "--build", "false", "--results", "new", *script]) == 1
    assert not Path("new").exists()


def test_a_race_ends_when_it_is_decided(train, printed, refused):
    words = [f"{train} 2", f"{train} 0.5", *READ, "--runs", "9", "--until-decided", "--results", "race"]
    shown, report = printed("race", "command", *words), results()
    finished = [turn["number"] for turn in report["race"]["turns"] if turn["status"] == "finished"]
    assert finished == [number for number in range(max(finished) + 1) for _ in "ab"] and 3 <= max(finished) < 8
    assert f"ended       decided after {len(finished) // 2} pairs of at most 9" in shown
    left = [turn for turn in report["race"]["turns"] if turn["status"] == "not needed"]
    assert len(left) == 18 - len(finished) and left[0]["why"] == f"decided after {len(finished) // 2} pairs"
    (ratio,) = report["ratios"].values()
    assert ratio["verdict"] == "faster" and ratio["confidence"] > 0.97
    assert "timedrun race --resume race" in refused("tune", "--resume", "race")


@pytest.mark.processes
def test_a_race_that_sigterm_ends_keeps_what_has_finished_and_goes_on_with_the_same_source(train, answered, refused):
    Path("train.py").write_text(SCRIPT)
    train = f"{sys.executable} train.py"
    kill = f"test -e once || {{ touch once; kill -TERM $PPID; sleep 60; }}; {train} 1"
    words = [f"{train} 1", kill, *READ, "--runs", "2", "--results", "a race"]
    shown, said = answered("race", "command", *words, code=143)
    assert "1 of 1" in shown and "continue with `timedrun race command --resume 'a race'`" in said
    report = results("a race")
    assert [turn["status"] for turn in report["race"]["turns"]] == ["finished", "interrupted", "planned", "planned"]
    assert len(report["runs_seconds"][report["race"]["sides"]["a"]]) == 1
    again = ["race", "command", "--resume", "a race"]
    assert "takes the plan from race.json; leave out --runs." in refused(*again, "--runs", 3)
    Path("train.py").write_text(SCRIPT + "# another program\n")
    assert "another source here than in its run 0, so the runs would not be of one program" in refused(*again)
    Path("train.py").write_text(SCRIPT)
    assert main(again) == 0
    assert [len(times) for times in results("a race")["runs_seconds"].values()] == [2, 2]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("{train} 1", 0, "target reached in "),
        ("echo val_loss:3", 3, "target not reached: last 3.0000"),
        ("exit 3", 1, "the command ended with exit code 3"),
        ("echo", 1, "has a quality as --quality"),
        ("kill -TERM $PPID; sleep 60", 143, "interrupted by SIGTERM"),
    ],
)
def test_one_command_is_run_and_its_end_is_the_exit_code(command, code, words, train, answered):
    read = ["--quality", "val_loss:([0-9.]+)", *READ[2:], "--results", "run"]
    shown, said = answered("race", "command", command.replace("{train}", train), *read, code=code)
    assert words in said and "speed-up" not in shown
    assert Path("run/a/result_0.txt").is_file()


def test_a_race_ends_after_a_first_run_without_an_evaluation_and_shows_its_output(train, answered):
    read = ["--quality", "accuracy {}", "--target", "0.9", "--runs", "3", "--results"]
    shown, said = answered("race", "command", "echo acc 0.95", "echo accuracy 0.95", *read, "wrong", code=1)
    assert "neither the command nor its source names SEED" in said and "5 runs are left out" in said
    assert "last lines:\n    acc 0.95\n" in said and "lines that look like a quality:\n    acc 0.95\n" in said
    assert "left out    echo accuracy 0.95, runs 0, 1, 2: the first run of echo acc 0.95 had no eval" in shown
    sides = ["sleep 0.1; echo accuracy 0.95 $SEED", "echo no data; exit 2", "sleep 0.2; echo accuracy 0.95 $SEED"]
    _, said = answered("race", "command", *sides, *read, "race", code=1)
    assert "names SEED" in said and "2 runs are left out: the first run of echo no data; exit 2 had" in said
    turns = results()["race"]["turns"]
    ends = {side: [turn["status"] for turn in turns if turn["side"] == side] for side in "abc"}
    assert ends == {"a": ["finished"] * 3, "b": ["failed", "left out", "left out"], "c": ["finished"] * 3}


def test_commands_are_swept_over_budgets_to_their_end(train, printed):
    Path("train.py").write_text(SWEPT)
    train = shlex.join([sys.executable, "train.py"])
    sides = f"sides = [{{command = '{train} {{budget}} 1', label = 'base'}}, '{train} {{budget}} 4']\nruns = 2\n"
    Path("sweep.toml").write_text(sides + "quality = 'loss:(.*)'\ntarget = 0\nlower = true\nbudgets = [40, 10]\n")
    shown = printed("race", "sweep.toml", "--results", "sweep")
    assert "strict: 8 of 8 logs pass" in shown and "a_10 (base 10)" in shown
    (base, other) = results("sweep")["tradeoff"]["curves"]
    assert [gain["ratio"] for gain in base["gains"]] == [10, 40] and base["label"] == "base"
    assert [round(gain["quality"], 3) for gain in base["gains"]] == [0.1, 0.025]
    for curve, factor in ((base, 1), (other, 4)):  # a line after the last quality is still on the clock
        for gain in curve["gains"]:
            assert 60 * gain["minutes"] >= 0.003 * factor * gain["ratio"] + 0.1
    shown = printed("compare", "sweep", "--baseline", "base", "--out", "figure.png")
    rows = [line.removeprefix("base").split() for line in shown.splitlines() if line.rstrip().endswith("baseline")]
    assert "next: a race of base at --budgets" in shown
    assert [row[0] for row in rows] == ["10", "40"] and Path("figure.png").is_file()
    assert main(["explore", "sweep", "--out", "page.html"]) == 0
    assert '"config":"base 40"' in Path("page.html").read_text()
    assert main(["race", "--resume", "sweep"]) == 0 and '"session": 2' not in Path("sweep/race.json").read_text()


def test_a_file_holds_a_race_and_the_command_line_comes_first(train):
    sides = f"sides = ['{train} 1', {{command = '{train} 0.5', label = 'half'}}]\nruns = 5\n"
    Path("race.toml").write_text(sides + "metric = 'loss'\nquality = 'val_loss:(.*)'\ntarget = 1.1\nlower = true\n")
    given = parsed("race.toml", "--runs", "2")
    assert (given.runs, given.metric, given.target, given.sides[1][0]) == (2, "loss", 1.1, "half")
    Path("race.toml").write_text("sides = ['a', 'b']\npreset = 'modded-nanogpt'\nlower = false\n")
    assert [parsed("race.toml", *words).lower for words in ((), ("--lower",))] == [False, True]


def parsed(*words: str) -> Namespace:
    arguments, rest = race_toml.parsed(parser(), ["race", *words])
    assert not rest
    return arguments


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a race of two commands in it, whose script imports a module."""
    (folder := tmp_path_factory.mktemp("raced")).joinpath("train.py").write_text("import model\n" + SCRIPT)
    folder.joinpath("model.py").write_text("print('a model')\n")
    words = [f"{sys.executable} train.py 0.1", f"{sys.executable} train.py 2", *READ, "--runs", "3"]
    (folder / "race.toml").write_text("stop_at_target = true\n")
    with contextlib.chdir(folder):
        assert main(["race", "race.toml", *words, "--results", "race"]) == 0
    return folder


@pytest.fixture
def packaged(raced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of that race, in a copy of its folder, which is the working folder."""
    monkeypatch.chdir(shutil.copytree(raced, tmp_path / "raced"))
    return Path("race/package/unaffiliated")


def test_commands_are_packaged_with_their_source_checked_scored_recomputed_and_repeated_by_the_script(packaged, told):
    assert len(told("compare", "race")["curves"]) == 2  # the package has copies of the runs
    assert results()["package"]["strict"] == "pass"
    systems = packaged / "benchmarks/command/implementations"
    (a, b) = sorted(path for path in systems.iterdir() if path.name != "timedrun")
    assert {path.name for path in (a / "source").iterdir()} == {"train.py", "model.py"}
    assert (systems / "timedrun/timedrun/racing/command_run.py").is_file()
    assert not (systems / "timedrun/image_classification").exists()
    assert tomllib.loads((b / "run.toml").read_text())["sides"] == [f"{sys.executable} train.py 2"]
    assert f"{sys.executable} train.py 0.1" in (a / "README.md").read_text()
    assert main(["check", "--no-official", str(packaged)]) == 0
    assert main(["score", str(packaged)]) == 0
    assert main(["reproduce", str(packaged)]) == 0
    subprocess.run(["bash", str(a / "run_and_time.sh"), "again"], check=True, env=os.environ)
    assert [read(Path(f"again/a/result_{number}.txt")).seed for number in range(3)] == [1, 2, 3]
    assert not [*(packaged.rglob("__pycache__"))]
    (packaged / "results" / a.name / "command/result_0.txt").write_text("")
    assert main(["check", "--no-official", str(packaged)]) == 1


def test_a_recorded_command_runs_only_where_the_user_says_and_only_with_its_source(packaged, printed):
    again = ["reproduce", packaged, "--run", "--runs", 1, "--results"]
    said = " ".join(printed(*again, "first", code=1).split())
    assert f"its command is not run unasked: {sys.executable} train.py 0.1. Read it and its source" in said
    assert "give --commands FOLDER" in said and not list(Path("first").rglob("result_*"))
    Path("work").mkdir()
    shutil.copy("train.py", "work")
    said = " ".join(printed(*again, "second", "--commands", "work", code=1).split())
    assert "work does not hold the source of that run (model.py)" in said
    shutil.copy("model.py", "work")
    printed(*again, "third", "--commands", "work")
    assert len(list(Path("third").rglob("result_0.txt"))) == 2
    assert main(["reproduce", str(packaged), "--commands", "work"]) == 2


def test_a_set_whose_source_was_changed_is_not_packaged(packaged, refused):
    words = ["package", "race/a", "--out"]
    (copy := Path("race/a/run_1/source/model.py")).write_text("")
    assert "race/a/run_1/source: not what the run recorded" in refused(*words, "edited", code=1)
    copy.write_text("print('a model')\n")
    assert main([*words, "right"]) == 0
    config = json.loads((file := Path("race/a/run_1/config.json")).read_text())
    file.write_text(json.dumps(config | {"seed": "2; rm -r ."}))
    assert "not the settings of the command in result_1.txt" in refused(*words, "unsafe", code=1)
    file.write_text(json.dumps(config))
    shutil.rmtree("race/a/run_1/source")
    refused(*words, "missing", code=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*READ], "give a command line"),
        (["--at", "main", *READ, "a"], "no repository of git"),
        (["missing.toml"], "No such file"),
        (["wrong.toml"], "no option qualty; a race has ablate, answers, at, baseline_ratios"),
        (["side.toml"], "no config or command line, and no table with `command`"),
        (["a", "b", *READ, "--runs", "3", "--until-decided"], "looks after 4 pairs for the first time"),
        (["a", "b", *READ, "--runs", "3", "--control", "4"], "more than the 3 rounds"),
        (["a", "b", "c", *READ, "--keep-if", "quality"], "--keep-if compares two sides, here are 3"),
        (["a", "b", *READ, "--keep-if", "quality", "--until-decided"], "looks at times only"),
        (["typed.toml", *READ], "share is 'data', which is of another type"),
        (["a", "b", *READ, "--ablate"], "a race of commands has no such option; leave out --ablate"),
        (["race", "image_classification", "baseline", "--quality", "x"], "a race of configs has no such option"),
        (["a"], "give --quality or --preset"),
        (["a {budget}", *READ], "a sweep needs --budgets"),
        (["a", *READ, "--budgets", "1,2"], "the word {budget} in each command"),
        (["a {budget}", *READ, "--budgets", "1,2", "--control", "1"], "--control is of races at one length"),
        (["a {budget}", *READ[:2], "--budgets", "1,2"], "--target, which a race at --budgets records"),
        (["race", "command", "a", "b", "--preset", "airbanch"], "Did you mean airbench? Presets: modded-nanogpt, "),
    ],
)
def test_what_is_no_race_run_or_sweep_is_refused_before_the_first_run(words, said, train, refused):
    Path("wrong.toml").write_text("qualty = 'x'\n")
    Path("side.toml").write_text("sides = [{label = 'x'}]\n")
    Path("typed.toml").write_text("share = 'data'\n")
    assert said in refused(*(words if words[:1] == ["race"] else ["race", "command", *words]))
    assert not Path("runs").exists()
