"""Training loops to test runs with, a run killed at one of its checks, and its resumption."""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mlevents import record
from mlevents.record import RunRecord
from mlevents.runlog import RunLog
from tests.one_rank import ALONE
from tests.timedrun.conftest import SPEC
from timedrun.methods import EMA, stack
from timedrun.runner.config import RunConfig
from timedrun.runner.run.checkpoint_manager import CheckpointManager, discard_newer, newest_on_all
from timedrun.runner.run.run_info import RunInfo
from timedrun.runner.run.timed_run import TimedRun

MakeRun = Callable[..., TimedRun]
MakeConfig = Callable[..., RunConfig]
STEPS = 3
"""An epoch."""
IN_SAMPLES = replace(SPEC, mlperf_benchmark="bert", ruleset="2.1.0")


def train(
    run: TimedRun,
    total: int,
    quality: Callable[[int], float],
    *,
    steps: int = 5,
    before_step: Callable[[int], object] = lambda number: None,
    stops: Collection[int] = (),
    take: Callable[[int], object] | None = None,
) -> list[int]:
    """Train `total` epochs of `steps` steps, or `total` samples, from where the run is, by steps of 4 samples that have
    their number for a loss, or that `take` takes; return the numbers of those taken.

    quality: of the evaluation at an epoch or sample. stops: steps in which a signal comes.
    """
    if run._started is None:
        run.start_clock(RunInfo(train_samples=4 * steps, eval_samples=5, hyperparameters={}))
    taken = []

    def step() -> None:
        taken.append(run.position.step + 1)
        before_step(taken[-1])
        if taken[-1] in stops:
            run.stop.signal = signal.SIGTERM
        if take is None:
            run.step_done(4, torch.tensor(float(taken[-1])))
        else:
            take(taken[-1])

    for block in run.blocks(total):
        if run.spec.rules.unit == "samples":
            for _ in run.steps(block):
                step()
        else:
            for _ in run.epochs(block):
                while run.position.step_in_epoch < steps:
                    step()
        with run.evaluation(block) as measurement:
            measurement.value = quality(block.last)
    return taken


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the process acts on it."""


class Program:
    """A training program in the shape of a benchmark's, whose every number depends on all that came before: dropout,
    batch norm, momentum, a moving average of weights that is what is evaluated.

    before_step: called with the steps that the run has done. in_step: called in each step, of the warm-up, too.
    qualities: of the evaluations, in place of the model's.
    """

    def __init__(
        self,
        before_step: Callable[[int], object] = lambda done: None,
        in_step: Callable[[], object] = lambda: None,
        qualities: Iterable[float] | None = None,
        warm_up_steps: int = 1,
    ) -> None:
        self.before_step, self.in_step, self.warm_up_steps = before_step, in_step, warm_up_steps
        self.qualities = iter(qualities) if qualities is not None else None
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.methods = stack(EMA(half_life=2, update_interval=1))

    def step(self, inputs: torch.Tensor) -> torch.Tensor:
        self.model.train()
        self.in_step()
        loss = self.model(inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def batch(self, number: int) -> torch.Tensor:
        return torch.randn(4, 4, generator=torch.Generator().manual_seed(number))

    def quality(self, is_last: bool) -> float:
        if self.qualities is not None:
            return next(self.qualities)
        with self.methods.evaluation(self.model), torch.no_grad():
            value = float(self.model.eval()(self.batch(999)).sigmoid().mean())
        return 0.9 + value / 10 if is_last else value / 2

    def train(self, run: TimedRun) -> None:
        run.track(model=self.model, optimizer=self.optimizer, methods=self.methods)
        if self.warm_up_steps:
            run.warm_up(self.step, [self.batch(1)] * self.warm_up_steps)
        total = 4 * STEPS * 4 if run.spec.rules.unit == "samples" else 4
        take = partial(self.take, run)
        train(run, total, lambda last: self.quality(last == total), steps=STEPS, take=take)

    def take(self, run: TimedRun, number: int) -> None:
        self.before_step(run.position.step)
        self.methods.before_step(self.model, run.position.step, 0.0)
        loss = self.step(self.batch(number))
        self.methods.after_step(self.model)
        run.step_done(4, loss)

    def tensors(self) -> dict[str, torch.Tensor]:
        momenta = enumerate(self.optimizer.state_dict()["state"].values())
        return self.model.state_dict() | {f"momentum {index}": state["momentum_buffer"] for index, state in momenta}


def finished(
    run: TimedRun, program: Program | None = None, error: type[Exception] | None = None, words: str | None = None
) -> RunRecord:
    """Train to the end, or to an `error` with a message that `words` match; return the log."""
    with pytest.raises(error, match=words) if error else nullcontext(), run:
        (program or Program()).train(run)
    return record.read(run.log.path)


def kill_in(run: TimedRun, program: Program) -> None:
    """Train until it is killed; what a killed process leaves is left."""
    run.__enter__()
    with pytest.raises(Killed):
        program.train(run)
    run._on_clock.close()  # which holds in the whole process, where this is none of its own
    os.close(run.log._descriptor)


def resume(make_run: MakeRun, folder: Path, **options: Any) -> TimedRun:
    """The run whose log is in `folder`, from its newest checkpoint, as a new process would."""
    state = newest_on_all(folder / "checkpoint", ALONE)
    clock = options.pop("clock", time.time)
    log = RunLog.resume(folder / "result_0.txt", keep_in=folder, clock=clock, **state["log"])
    discard_newer(folder / "checkpoint", ALONE, state["position"]["step"])
    return make_run(log=log, resume_from=state, checkpoints=folder / "checkpoint", **options)


class Checks:
    """Which of a run's checks finds a checkpoint due, and after which check it is killed."""

    def __init__(self, patch: pytest.MonkeyPatch, due_at: int, killed_after: int) -> None:
        self.count = 0
        self.due_at, self.killed_after = due_at, killed_after
        patch.setattr(CheckpointManager, "due", property(lambda checkpoints: self.count == self.due_at))
        original = TimedRun._sync

        def check(run: TimedRun) -> None:
            original(run)
            self.count += 1
            if self.count > self.killed_after:
                raise Killed

        patch.setattr(TimedRun, "_sync", check)


def kill_after(
    checks: int, make_run: MakeRun, folder: Path, *config: Any, due_at: int = 1, program: Any = None, **more: Any
) -> None:
    """A run that logs to `folder`, saves at check `due_at` and is killed after `checks` of them."""
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, due_at, checks)
        run = make_run(*config, checkpoints=folder / "checkpoint", check_every=1, **more)
        kill_in(run, program or Program())
