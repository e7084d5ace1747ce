"""Whole runs of a benchmark in this process, on one CPU rank, or on ranks that it forks."""

import gc
import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from mlevents.runlog import RunLog
from timedrun.runner.benchmark import BenchmarkSpec, find
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.process.progress import Progress
from timedrun.runner.process.stop_signals import ShutdownRequest
from timedrun.runner.run import checkpoint_file
from timedrun.runner.run.checkpoint_manager import checkpoint_path
from timedrun.runner.run.timed_run import TimedRun

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, 0, CPU)


def run_of(
    config: RunConfig,
    log: RunLog | None = None,
    spec: BenchmarkSpec | None = None,
    ranks: ProcessGroup = ALONE,
    **options: Any,
) -> TimedRun:
    """Return the run of `config` that logs to `log`, if any, with TimedRun's `options`."""
    spec, progress = spec or find(config.benchmark).spec, Progress("test", shown=False)
    return TimedRun(config, spec, ranks, log or RunLog(None), platform="1xCPU", progress=progress, **options)


def trained(config: RunConfig, log: RunLog | None = None, **options: Any) -> TimedRun:
    """Return the same run after its training."""
    with run_of(config, log, **options) as run:
        find(config.benchmark).train(config, run)
    return run


def stopped(config: RunConfig, after: int, checkpoints: Path, log: RunLog | None = None, **options: Any) -> Any:
    """Train until a signal at step `after` ends the run, and return the state that it saved in `checkpoints`."""
    stop, steps = ShutdownRequest(), itertools.count(1)
    with run_of(config, log, stop=stop, checkpoints=checkpoints, check_every=1, **options) as run:
        step_done: Callable[..., None] = run.step_done

        def counted(*arguments: Any) -> None:
            if next(steps) == after:
                stop.signal = signal.SIGTERM
            step_done(*arguments)

        run.step_done = counted
        find(config.benchmark).train(config, run)
    assert run.outcome is Outcome.STOPPED
    return checkpoint_file.load(checkpoint_path(checkpoints / f"rank_{run.ranks.rank}", after))


def recorded_losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that receives the loss of every optimizer step."""
    losses: list[float] = []
    original: Callable[..., None] = TimedRun.step_done

    def step_done(self: TimedRun, samples: int, loss: Tensor) -> None:
        losses.append(float(loss))
        original(self, samples, loss)

    monkeypatch.setattr(TimedRun, "step_done", step_done)
    return losses


def on_ranks(count: int, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(ranks, *arguments)` in each of `count` forked processes, which form a process group."""
    gc.collect()  # objects of earlier tests may have threads, which a forked process lacks when it collects them
    gc.freeze()
    try:
        start_processes(_on_rank, (count, folder, work, arguments), nprocs=count, start_method="fork")
    finally:
        gc.unfreeze()


def _on_rank(rank: int, count: int, folder: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    work(ProcessGroup(rank, count, rank, CPU), *arguments)
    dist.destroy_process_group()
