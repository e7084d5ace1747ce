"""Recorded runs: found in results, races and packages, and checked before they are repeated."""

import json
import shutil
from pathlib import Path

import pytest

from judging.ground.config_values import digest_of
from judging.scoring import recorded_run
from judging.scoring.recorded_run import RecordedRun, differences, provenance_of, recorded_runs, recorded_threads
from mlevents import keys
from mlevents.record import read
from mlevents.summary import summarize
from tests.judging.conftest import change_json
from timedrun.cli import main
from timedrun.commands import reproduce

CONFIG = {"benchmark": "image_classification", "name": "smoke", "optimizer": {"peak_lr": 0.1}}
MACHINE = {"number_of_nodes": "1", "host_processor_model_name": "old processor", "cooling": ""}
SYSTEM = {"system_name": "box", "framework": "PyTorch 2", **MACHINE}
ENVIRONMENT = """python 3.11.7 (CPython, GCC)
processor old processor, 2 of 4 logical processors usable
torch threads 1 within an operator, 4 between
torch 2.13.0

installed distributions:
numpy==2.4.6
torch==2.13.0
"""
PROVENANCE = {"commit": "abc", "dirty": False, "ranks": 2, "image_digest": None, "data": {"sha256": "d1", "of": "x"}}


@pytest.fixture
def results(tmp_path, write_run) -> Path:
    """Two results with everything beside them, as `timedrun run` leaves them."""
    folder = tmp_path / "set"
    for number in range(2):
        config = CONFIG | {"seed": number + 1}
        write_run(folder, number, **{keys.CONFIG_DIGEST: digest_of(config)})
        side = folder / f"run_{number}"
        side.mkdir()
        for name, values in {"config": config, "system": SYSTEM, "provenance": PROVENANCE}.items():
            (side / f"{name}.json").write_text(json.dumps(values))
        (side / "environment.txt").write_text(ENVIRONMENT)
    return folder


def first(path: Path) -> RecordedRun:
    (runs,) = recorded_runs(path).values()
    return runs[0]


def problem(run: RecordedRun) -> str:
    return run.problem(summarize(read(run.log)))


def test_a_set_in_a_race_and_its_package_is_found_once(results):
    race = results.parent
    package = race / "package" / "Example" / "results" / "box" / "resnet"
    package.mkdir(parents=True)
    for log in results.glob("result_*.txt"):
        shutil.copy(log, package)
    assert list(recorded_runs(race)) == ["set"]
    assert [run.number for run in recorded_runs(results)["set"]] == [0, 1]
    assert problem(first(results)) == ""
    assert recorded_run.recorded_ranks(provenance_of(first(results))) == 2


def test_the_files_of_a_packaged_run_are_found(results):
    package = results.parent / "package" / "Example"
    logs = package / "results" / "box" / "resnet"
    shared = package / "benchmarks" / "resnet" / "implementations" / "box"
    logs.mkdir(parents=True)
    (package / "systems").mkdir()
    (package / "systems" / "box.json").write_text(json.dumps(SYSTEM))
    for number in range(2):
        shutil.copy(results / f"result_{number}.txt", logs)
        (shared / "runs" / f"run_{number}").mkdir(parents=True)
        for name in ("config.json", "provenance.json"):
            shutil.copy(results / f"run_{number}" / name, shared / "runs" / f"run_{number}")
    (shared / "environment.txt").write_text(ENVIRONMENT)
    run = recorded_runs(package)["box_resnet"][1]
    assert problem(run) == ""
    assert run.file("environment.txt") == shared / "environment.txt"
    same = differences(run, recorded_runs(results)["set"][1])
    assert same == {"hardware": {}, "versions": {}, "origin": {}}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"seed": 7}, "logs seed 1, run_0/config.json has 7"),
        ({"benchmark": "os; rm"}, "names no benchmark package"),
        ({"benchmark": "--help"}, "names no benchmark package"),
        ({"benchmark": None}, "names no benchmark package"),
        ("[1]", "names no benchmark"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "is not a config"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_broken_config_is_named(results, config, words):
    path = results / "run_0" / "config.json"
    if isinstance(config, dict):
        change_json(path, **config)
    else:
        path.write_text(config)
    assert words in problem(first(results))


def test_differences_are_grouped_by_kind(results):
    other = shutil.copytree(results, results.parent / "other") / "run_0"
    machine = {"host_processor_model_name": "new processor", "cooling": "air", "number_of_nodes": 1.0}
    change_json(other / "system.json", framework="PyTorch 3", **machine)
    change_json(other / "provenance.json", commit="def", data={"sha256": "d2", "of": "x"})
    text = ENVIRONMENT.replace("numpy==2.4.6", "numpy==2.5.0").replace("threads 1", "threads 2")
    (other / "environment.txt").write_text(text + "extra==1\n")
    found = differences(first(results), first(other.parent))
    assert found == {
        "hardware": {"host_processor_model_name": ["old processor", "new processor"]},
        "versions": {"numpy": ["2.4.6", "2.5.0"], "extra": [None, "1"]},
        "origin": {"commit": ["abc", "def"], "data": ["d1", "d2"], "threads": [1, 2]},
    }
    (other / "provenance.json").write_text("{")
    (other / "environment.txt").unlink()
    assert differences(first(results), first(other.parent))["origin"] == {}


def test_threads_are_those_of_the_run_else_of_its_environment_else_unknown(results):
    run = first(results)
    assert recorded_threads(run) == 1
    for threads, environment, expected in ((3, ENVIRONMENT, 3), (None, "numpy==1\n", None)):
        change_json(run.side / "provenance.json", threads=threads)
        (run.side / "environment.txt").write_text(environment)
        assert recorded_threads(run) == expected


@pytest.mark.parametrize(
    ("recorded", "option", "passed"), [(1, [], "1"), (1, ["--threads", "2"], "2"), (1 << 20, [], "0"), (None, [], "0")]
)
def test_runs_are_repeated_with_their_threads_or_those_given_or_cores(results, monkeypatch, recorded, option, passed):
    side = first(results).side
    change_json(side / "provenance.json", threads=recorded)
    (side / "environment.txt").unlink()
    commands = []

    def run(command, label, **options):
        commands.append(command)
        return 1, "", False

    monkeypatch.setattr(reproduce, "run_child", run)
    again = str(results.parent / "again")
    assert main(["reproduce", str(results), "--run", "--runs", "1", "--results", again, *option]) == 1
    assert commands[0][commands[0].index("--threads") + 1] == passed
    assert commands[0][commands[0].index("--ranks") + 1] == "2"
