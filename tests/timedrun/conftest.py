"""A small real run to test the protocol with: one linear layer, a config, a log on disk."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlevents.runlog import RunLog
from timedrun.runner.benchmark import EVERYTHING, BenchmarkSpec

if TYPE_CHECKING:  # imported in the fixtures: the tests of scores run without torch
    from timedrun.evidence.preflight.dry_run import SimulatedClock
    from timedrun.runner.config import RunConfig
    from timedrun.runner.run.timed_run import TimedRun

SPEC = BenchmarkSpec(title="test", mlperf_benchmark="resnet", ruleset="2.0.0", default_data="toy", supports=EVERYTHING)

TOY = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
from timedrun.runner.benchmark import BenchmarkSpec, benchmark_rules
SPEC = BenchmarkSpec(title="Toy task", default_data="toy",
    own_rules=benchmark_rules("NAME", dataset="toy", metric="loss", target=1.5, direction="<=", unit="samples"))
"""
TOY_CONFIGS = "def toy_baseline():\n    '''A toy.'''\ndef _hidden(): pass\n"


def git(folder: Path, *words: str) -> str:
    """Return the output of git in a repository of a test."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", "-C", str(folder), *identity, *words], text=True).strip()


def _toy_config(**changes: Any) -> RunConfig:
    """A config on a dataset `toy`, two evaluations of which the last counts."""
    from timedrun.runner.config import EvaluationConfig, OptimizerConfig, RunConfig

    values: dict[str, Any] = {
        "benchmark": "toy",
        "name": "toy_baseline",
        "dataset": "toy",
        "global_batch": 4,
        "optimizer": OptimizerConfig(kind="sgd", peak_lr=0.1),
        "evaluation": EvaluationConfig(target=0.9, every=2, first=2),
    }
    return RunConfig(**(values | changes))


@pytest.fixture
def toy_config() -> Callable[..., RunConfig]:
    """Builds a toy config with some settings changed."""
    return _toy_config


@pytest.fixture
def stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the modules out of the full collection of each run of a test with many, not only of its first."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., TimedRun]:
    """Builds a TimedRun of one CPU rank that logs to `result_0.txt` in the test's folder."""
    from tests.one_rank import run_of

    def make(config: RunConfig | None = None, spec: BenchmarkSpec = SPEC, **options: Any) -> TimedRun:
        log = options.pop("log", None) or RunLog(tmp_path / "result_0.txt")
        return run_of(config or _toy_config(), log, spec, **options)

    return make


@pytest.fixture
def clock() -> SimulatedClock:
    from timedrun.evidence.preflight.dry_run import SimulatedClock

    return SimulatedClock()


@pytest.fixture
def timed(make_run: Callable[..., TimedRun], tmp_path: Path, clock: SimulatedClock) -> Callable[..., TimedRun]:
    """Builds a run whose log and monotonic clock are the simulated one."""

    def make(*arguments: Any, **options: Any) -> TimedRun:
        log = options.pop("log", None) or RunLog(tmp_path / "result_0.txt", clock=clock)
        return make_run(*arguments, log=log, monotonic=clock, **options)

    return make


@pytest.fixture
def make_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a benchmark with some configs in the working directory, which is not on the import path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])

    def make(name: str, *, rules: str = "toy_task", init: str = TOY, configs: str = TOY_CONFIGS) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file, text in (("__init__.py", init.replace("NAME", rules)), ("configs.py", configs), ("train.py", "")):
            (folder / file).write_text(text)
        return folder

    return make
