"""Logs of the three writers, event by event, are those in `golden/`, but for what is measured.

RECORD_GOLDEN=1 records them again: only where a log is meant to change."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from judging.ground.errors import TrainingLoopError
from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.checks.log_check import check
from mlevents.record import read
from mlevents.rounds import RULESETS
from tests.mlevents.test_trainer_run import CASES, settings_of
from tests.timedrun.conftest import SPEC
from tests.timedrun.runner.run.killed_run import IN_SAMPLES, resume, train
from timedrun import mlperf_run
from timedrun.evidence.preflight.dry_run import SimulatedClock
from timedrun.racing import command_run
from timedrun.racing.command_side import CommandSide
from timedrun.runner.config import EvaluationConfig, SubmissionConfig
from timedrun.runner.process.blocks import Outcome

MEASURED = {keys.MACHINE_LOAD, keys.READ_LATE, keys.LEDGER_ENTRY, keys.SUBMISSION_PLATFORM, keys.CONFIG_DIGEST}
LEFT_OUT = {"file", "lineno", "gap_seconds", "clock_compared", "unknown"}
"""Metadata that are measured or name a line of the source."""
STEPS = 3
EVERY_10 = {"evaluation": EvaluationConfig(target=0.9, every=10, first=10)}


def assert_golden(writer: str, name: str, path: Path, *, since: str = keys.INIT_STOP) -> None:
    """Compare a log from its first event `since` on, and the strict errors, with `name` in the writer's file."""
    events = [json.loads(line.split(" ", 1)[1]) for line in path.read_text().splitlines()]
    report = check(path)
    wrong = {finding.rule for finding in report.findings if finding.level == "error"} - {"clock-order"}  # of times
    said = [f"{report.ruleset}: {', '.join(sorted(wrong))}"]
    for event in events[[event["key"] for event in events].index(since) :]:
        about = {name: value for name, value in event["metadata"].items() if name not in LEFT_OUT}
        value = None if event["key"] in MEASURED else event["value"]
        said.append(f"{event['event_type']} {event['key']} {json.dumps(value)} {json.dumps(about)}")
    file = Path(__file__).parent / "golden" / f"{writer}.json"
    golden = json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get("RECORD_GOLDEN"):
        golden[name] = said
        file.write_text(json.dumps(golden, indent=0) + "\n")
    assert said == golden[name]


def train_to_end(run: Any, clock: SimulatedClock, total: int, qualities: dict[int, float], **options: Any) -> None:
    """Train: `seconds` a step, by default one."""

    def step(number: int) -> None:
        clock.advance(options.get("seconds", 1))
        if number == options.get("fails_in"):
            raise ZeroDivisionError("in this step")

    with run:
        run.track(model=torch.nn.Linear(1, 1))
        train(run, total, qualities.__getitem__, steps=STEPS, before_step=step, stops=options.get("stops", ()))


@pytest.mark.parametrize(
    ("name", "config", "options", "total", "qualities", "end", "pace"),
    [
        ("reached", {}, {}, 6, {2: 0.5, 4: 0.95}, Outcome.REACHED, {}),
        ("missed", {"clear_cache": True}, {"clear_cache": lambda: ""}, 3, {2: 0.5, 3: 0.6},
         Outcome.NOT_REACHED, {}),
        ("samples", EVERY_10, {"spec": IN_SAMPLES}, 40, {12: 0.1, 20: 0.2, 32: 0.95}, Outcome.REACHED, {}),
        ("budget", {"budget_minutes": 4 / 60}, {}, 4, {2: 0.1, 4: 0.2}, Outcome.BUDGET_SPENT, {}),
        ("closed_stopped", {"submission": SubmissionConfig(division="closed")}, {}, 2, {}, Outcome.STOPPED_CLOSED,
         {"stops": {2}}),
        ("failed", {}, {}, 4, {2: 0.1}, ZeroDivisionError, {"fails_in": 8}),
        ("no_number", {}, {}, 4, {2: float("nan")}, TrainingLoopError, {}),
        ("no_data", {}, {}, 0, {}, ValueError, {}),
        ("losses", {}, {}, 2, {2: 0.95}, Outcome.REACHED, {"seconds": 4}),
    ],
)  # fmt: skip
def test_timed_run(name, config, options, total, qualities, end, pace, timed, toy_config, clock, tmp_path):
    run = timed(toy_config(**config), **options | {"check_every": 1})
    with nullcontext() if isinstance(end, Outcome) else pytest.raises(end):
        train_to_end(run, clock, total, qualities, **pace)
    assert run.outcome is (end if isinstance(end, Outcome) else None)
    since = keys.CACHE_CLEAR if name == "reached" else keys.INIT_STOP
    assert_golden("timed_run", name, tmp_path / "result_0.txt", since=since)


@pytest.mark.parametrize(
    ("name", "config", "spec", "total", "stop", "qualities"),
    [
        ("epochs", {}, SPEC, 4, 8, {2: 0.5, 4: 0.95}),
        ("samples", EVERY_10, replace(IN_SAMPLES, mlperf_benchmark="llama31_8b", ruleset="6.1.0"), 40, 1,
         {12: 2.5, 20: 0.85}),
    ],
)  # fmt: skip
def test_timed_run_that_is_stopped_and_resumed(
    name, config, spec, total, stop, qualities, timed, toy_config, tmp_path, clock
):
    of: dict[str, Any] = {"config": toy_config(**config), "spec": spec, "check_every": 1}
    run = timed(checkpoints=tmp_path / "checkpoint", **of)
    train_to_end(run, clock, total, qualities, stops={stop})
    assert_golden("timed_run", f"{name}_stopped", tmp_path / "result_0.txt")
    clock.advance(1000)  # which no throughput counts
    train_to_end(resume(timed, tmp_path, clock=clock, **of), clock, total, qualities)
    assert_golden("timed_run", f"{name}_resumed", tmp_path / "result_0.txt")


def own_run(folder: Path, benchmark: str, round_: str, division: str = keys.OPEN, *of: Any, **more: Any) -> Any:
    settings = settings_of(benchmark, round_, division, *of) | more
    return mlperf_run(benchmark, round=round_, out=folder / "result_0.txt", **settings)


@pytest.mark.parametrize("case", CASES)
def test_mlperf_run_that_reaches_its_target(case, tmp_path):
    with own_run(tmp_path, *case) as run:
        run.start()
        interval = run.benchmark.evaluation_interval.at(run._settings[keys.GLOBAL_BATCH_SIZE])
        run.evaluating(**{run.benchmark.unit: interval})
        run.evaluated(run.target * (0.9 if run.benchmark.direction == ">=" else 1.1))
        run.block(**{run.benchmark.unit: 1.5 * interval})
        run.evaluated(run.target, **{run.benchmark.unit: 2 * interval})
    assert_golden("mlperf_run", case[0], tmp_path / "result_0.txt", since=keys.CACHE_CLEAR)


PARTS = {"maskrcnn": ("3.0", {"BBOX": 0.38, "SEGM": 0.35}), "stable_diffusion": ("3.1", {"FID": 80.0, "CLIP": 0.2})}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("benchmark", PARTS)
def test_mlperf_run_whose_quality_has_parts(benchmark, tmp_path):
    round_, qualities = PARTS[benchmark]
    unit = RULESETS[f"{round_}.0"].benchmarks[benchmark].unit
    with own_run(tmp_path, benchmark, round_) as run:
        run.start()
        assert not run.evaluated(dict.fromkeys(qualities, 0.1), **{unit: 512_000})
        assert run.evaluated(qualities, **{unit: 1_024_000})
    assert_golden("mlperf_run", benchmark, tmp_path / "result_0.txt")


ABORTED: dict[str, Callable[[Any], object]] = {
    "in_evaluation": lambda run: (run.start(), run.evaluating(epoch=1), 1 / 0),
    "in_training": lambda run: (run.start(), run.evaluated(0.5, epoch=0.5), 1 / 0),
    "without_start": lambda run: run.close(),
    "without_evaluation": lambda run: run.start(),
    "impossible": lambda run: (run.start(), run.evaluated(79.2, epoch=4)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ABORTED)
def test_mlperf_run_that_is_aborted(name, tmp_path):
    own = {"dataset": "digits", "train_samples": 1437, "eval_samples": 360, "quality_target": 0.97}
    with suppress(ZeroDivisionError), own_run(tmp_path, keys.RESNET, "4.0", **own) as run:
        ABORTED[name](run)
    since = keys.SUBMISSION_BENCHMARK if name == "without_start" else keys.QUALITY_TARGET
    assert_golden("mlperf_run", name, tmp_path / "result_0.txt", since=since)


READ = """import fcntl, termios, time
while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):
    time.sleep(0.001)
"""
"""Wait until the pipe is empty: the lines before and after it are read apart, however busy the machine is."""


@pytest.mark.parametrize(
    ("name", "script", "settings"),
    [
        ("reached", "echo loss:3.5; $READ; echo loss:0.9 took 12 ms", {"reported": "took {ms} ms"}),
        ("missed", "echo loss:3; echo loss:2", {}),
        ("failed", "echo loss:3; echo no data; exit 3", {}),
        ("no_evaluation", "echo 3", {}),
        ("not_started", "echo loss:0.5", {"start": "go"}),
        ("not_stopped", "echo go; echo loss:0.5", {"start": "go", "stop": "end"}),
        ("start_stop", "echo go; $READ; echo loss:2 step 7; echo loss:0.5 step 9; echo end",
         {"start": "go", "stop": "end", "quality": "loss:{} step {step}"}),
        ("stop_missed", "echo loss:2; echo end", {"stop": "end"}),
        ("at_target", "$READ; echo loss:0.5; sleep 60", {"stop_at_target": True}),
        ("diverged", "echo loss:2; echo loss:nan; echo end", {"stop": "end"}),
        ("refused", "echo loss:2; echo loss:1.2e-01", {}),
        ("too_short", "printf 'go\\nloss:0.5\\n'", {"start": "go"}),
        ("timed_out", "echo loss:2; trap '' TERM; sleep 60", {"minutes": 0.005}),
        ("to_end", "$READ; echo loss:0.5; echo loss:0.7", {"to_end": True}),
        ("mllog", """say() { echo ":::""MLLOG {\\"key\\": \\"$1\\", \\"value\\": $2}"; }
          say run_start null; $READ; say eval_accuracy 0.5; say run_stop null""", {"quality": "mllog"}),
        ("tailed", "echo step:1 loss:2 > a.log; sleep 0.1; echo step:2 loss:0.5 >> a.log",
         {"log": "a.log", "quality": "step:{step} loss:{}"}),
    ],
)  # fmt: skip
def test_command(name, script, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(command_run, "END_SECONDS", 0.3)
    (tmp_path / "read.py").write_text(READ)
    monkeypatch.setenv("READ", f"{sys.executable} {tmp_path}/read.py")
    values: dict[str, Any] = {"quality": "loss:([0-9.]+)", "target": 1.0, "lower": True, "seed": 7} | settings
    side = CommandSide(name="a", command=script, **values)
    paths = ResultPaths(tmp_path / "set", 0)
    readings = itertools.count()  # of the clock, each at least 2 ms after the one before
    clock = {} if name == "too_short" else {"monotonic": lambda: time.monotonic() + 0.002 * next(readings)}
    command_run.CommandRun(side, paths, runs=1, label="a 1/1", directory=tmp_path, **clock).run()
    start = keys.CACHE_CLEAR if name == "reached" else keys.INIT_STOP
    starts = read(paths.log).started is not None
    assert_golden("commands", name, paths.log, since=start if starts else keys.CONFIG_FILENAME)
