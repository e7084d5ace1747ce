"""State of a run at one moment: train state, progress, statistics and clock, saved together and resumed from."""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch

from judging.ground.errors import NonFiniteLoss, TimedrunError
from mlevents import keys
from mlevents.runlog import RunLog, Scalar
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.train_state import TrainState
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed import config_consistency
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process.blocks import TrainProgress
from timedrun.runner.process.clock_check import ClockCheck
from timedrun.runner.run.checkpoint_file import CheckpointError
from timedrun.runner.run.checkpoint_manager import CheckpointManager
from timedrun.runner.run.replica_check import Replicas
from timedrun.runner.run.run_info import RunInfo
from timedrun.runner.run.train_stats import TrainStats


class RunState:
    """A rank's state of its run, with its checkpoints and their events in the log.

    resume_from: the result of `newest_on_all` for a resumed run; `restore` releases its tensors.
    """

    def __init__(
        self,
        ranks: ProcessGroup,
        log: RunLog,
        checkpoints: CheckpointManager,
        monotonic: Callable[[], float],
        resume_from: dict[str, Any] | None,
    ) -> None:
        self.ranks, self.log, self.checkpoints = ranks, log, checkpoints
        self.train_state = TrainState()
        self.replicas = Replicas(ranks, self.train_state.parts)
        saved = resume_from or {"position": {}, "throughput": {}}
        self.position = TrainProgress(**saved["position"])
        self.stats = TrainStats(**saved["throughput"])
        self.is_resumed = resume_from is not None
        self.minutes_before = log.rollback.since_start_seconds / 60 if log.rollback is not None else 0.0
        """On the clock before training continued in this process; known to rank 0."""
        self._identity: str | None = saved.get("run")
        self._saved: dict[str, Any] | None = saved.get("state")
        self._info: dict[str, object] | None = saved.get("announced")
        self.wall_clock: ClockCheck | None = None
        """Rank 0's, from `check_clock` on."""
        self._clock_saved: dict[str, Any] | None = saved.get("clock")
        self._monotonic = monotonic
        self._begun = monotonic()

    def restore(self) -> None:
        """Load the checkpoint of a resumed run into the tracked state, once."""
        saved, self._saved = self._saved, None
        if saved is not None:
            self.train_state.restore(saved)

    def require_same_info(self, info: RunInfo) -> None:
        """Raise TimedrunError, on all ranks, unless `info` is that of the other ranks and, in a resumed run, of the
        interrupted process: no setting shows that a folder holds other data."""
        now: dict[str, object] = json.loads(json.dumps(info))  # as a checkpoint holds it
        config_consistency.require(self.ranks, now, "the clock was not started")  # most likely data differ
        before, self._info = self._info, now
        if before is not None and (differing := [name for name in now if now[name] != before.get(name)]):
            changes = "; ".join(f"{name} was {before.get(name)} and is now {now[name]}" for name in differing)
            raise TimedrunError(
                f"the run cannot be resumed: its data or settings changed ({changes}). Nothing was trained; restore"
                " them, or start it again under another number."
            )

    def check_clock(self) -> None:
        """Detect a wall clock that is set from now on, in a resumed run from its checkpoint on."""
        if self.ranks.is_first:
            self.wall_clock = ClockCheck(self.log, self._monotonic, self._clock_saved)

    def identify(self) -> None:
        """Draw the identity of a new run, which its checkpoints carry; rank 0 draws it for all."""
        self._identity = str(self.ranks.broadcast(secrets.token_hex(16)))

    def start(self) -> None:
        """Begin the interval to the next checkpoint, and forget the warm-up's compilations, once the clock runs."""
        take_compilations()
        if self.is_resumed:  # its clock ran during the start, too
            self.minutes_before += (self._monotonic() - self._begun) / 60
        self.checkpoints.start(self.position.step if self.is_resumed else None)

    def log_recompiled(self, by_rank: Sequence[Sequence[Compilation]], at: Mapping[str, float]) -> str:
        """Log the compilations of each rank, if there were any; return the message about them, else an empty one."""
        if not any(by_rank):
            return ""
        count, seconds = sum(map(len, by_rank)), max(sum(spent for spent, _ in rank) for rank in by_rank)
        reason = next(reason for rank in by_rank for _, reason in rank)
        self.log.event(keys.RECOMPILED, count, seconds=round(seconds, 3), reason=reason, **at)
        times = "once" if count == 1 else f"{count} times"
        return f"torch.compile compiled {times} on the clock, up to {seconds:.1f} s on a rank; first reason: {reason}"

    def log_resumed(self, reached: Mapping[str, float]) -> None:
        """Log that the run resumes after the progress `reached`, and the rollback of its log."""
        facts: dict[str, Scalar] = dict(reached)
        if (back := self.log.rollback) is not None:
            facts |= {"attempt": back.attempt, "gap_seconds": back.gap_seconds, "lines_taken_back": back.lines}
            if back.step is not None:
                facts["steps_lost"] = back.step - self.position.step
        if self.wall_clock is not None:
            facts["clock_compared"] = self.wall_clock.spans_gap
        self.log.event(keys.RESUMED, self.position.step, **facts)
        if self.wall_clock is not None and self.wall_clock.spans_gap:
            self.wall_clock.check(self.position.step)
        elif back is not None and back.clock_set_seconds:  # the time is still wrong by as much
            self.log.event(keys.CLOCK_SET, back.clock_set_seconds, step=self.position.step)

    def log_stats(self, reached: Mapping[str, float]) -> None:
        """Log the samples per second, over all ranks, of the epoch or block of training that ends at `reached`, and the
        loss of its last step. The throughput includes waiting for data, saving and progress lines, but no evaluation.
        """
        now = self._monotonic()
        throughput = self.stats.end(self.position.samples, now)
        rate = {} if throughput is None else {keys.THROUGHPUT: throughput}
        self._log_stats(rate | self.stats.take_loss(now, at_end=True), reached)

    def log_loss(self, losses: Sequence[float], reached: Mapping[str, float]) -> None:
        """Log the training loss, the mean of all ranks' `losses`, if one is due; they are empty if no step was done
        since the last synchronization."""
        if losses:
            self.stats.loss = fmean(losses)
        self._log_stats(self.stats.take_loss(self._monotonic()), reached)

    def _log_stats(self, stats: dict[str, float], reached: Mapping[str, float]) -> None:
        if stats:
            at = {keys.SAMPLES_COUNT: self.position.samples, **reached}
            self.log.event(keys.TRACKED_STATS, stats, step=self.position.step, **at)

    def not_finite(self, loss: float) -> NonFiniteLoss:
        """Return the error for a NaN or infinite loss of some rank; all ranks call it together with their `loss`."""
        losses = self.ranks.all_gather(loss)
        rank = next(rank for rank, other in enumerate(losses) if not math.isfinite(other))
        where = f"rank {rank}, " if self.ranks.world_size > 1 else ""
        return NonFiniteLoss(
            f"{where}step {self.position.step}: the training loss is {losses[rank]}; run aborted. Lower the learning"
            " rate, lengthen the warm-up or use a wider precision."
        )

    def save_to_stop(self) -> None:
        """Save the state of a run that a signal stops. Raises ReplicaDivergence if the ranks' weights differ: nothing
        was saved; CheckpointError, which names the step from which the run can be resumed, if a rank could not save."""
        step, older = self.position.step, self.checkpoints.newest
        self.replicas.require_same(step)
        if (reason := self.checkpoints.save(step, self.train_state.live_state, self._about)) is not None:
            then = "the run cannot be resumed" if older is None else f"resume from step {older} with --resume"
            raise CheckpointError(
                f"stopped by signal at step {step}, but its checkpoint could not be saved ({reason}); {then}."
            )

    def save_periodically(self) -> str | None:
        """Save during training and log it; return None or the reason of a failure, which does not end the run. Raises
        ReplicaDivergence if the ranks' weights differ: nothing was saved."""
        began, step = self._monotonic(), self.position.step
        if self.checkpoints.newest == step:
            return None
        self.replicas.require_same(step)
        reason = self.checkpoints.save(step, self.train_state.live_state, self._about)
        facts = {} if reason is None else {"reason": reason}
        self.log.event(keys.CHECKPOINT, step, seconds=self._monotonic() - began, **facts)
        return reason

    def _about(self) -> dict[str, Any]:
        """Return the entries of this rank's checkpoint besides the state; rank 0 also marks its place in the log."""
        return {
            "run": self._identity,
            "rank": self.ranks.rank,
            "position": asdict(self.position),
            "announced": self._info,
            "throughput": self.stats.state(self.position.samples, self._monotonic()),
            "clock": self.wall_clock.state() if self.wall_clock is not None else None,
            "log": self.log.mark() if self.ranks.is_first else None,
        }


Compilation = tuple[float, str]
"""Seconds of one compilation by torch.compile, and its reason."""


def take_compilations() -> list[Compilation]:
    """Return the compilations in this process since the last call, attempts beyond torch's recompile limit included.
    Nothing is counted during a step: torch keeps the last 64."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not imported: nothing was compiled
    if dynamo is None:
        return []
    # Backward passes, which torch compiles with their forward pass, have records without this time.
    compilations = [
        (item.entire_frame_compile_time_s, (item.recompile_reason or f"first call of {item.co_name}").splitlines()[0])
        for item in dynamo.get_compilation_metrics()
        if item.entire_frame_compile_time_s is not None
    ]
    dynamo.clear_compilation_metrics()
    return compilations


def recompiling_is_an_error() -> AbstractContextManager[None]:
    """Return a context in which torch.compile raises an error instead of compiling a function again."""
    dynamo: Any = sys.modules.get("torch._dynamo.config")  # not imported: nothing was compiled
    patch: AbstractContextManager[None] = dynamo.patch(error_on_recompile=True) if dynamo else nullcontext()
    return patch


class Recompiled(TimedrunError):
    """torch.compile would have compiled a function again on the clock."""


def recompiled(error: BaseException, step: int) -> Recompiled | None:
    """Return the error to report for `error` after step `step`; None unless it is of `recompiling_is_an_error`."""
    dynamo: Any = sys.modules.get("torch._dynamo.exc")
    if dynamo is None or not isinstance(error, dynamo.RecompileError):
        return None
    reason = " ".join(str(error).split())
    return Recompiled(
        f"torch.compile would compile again on the clock after step {step}; run aborted. {reason}. Warm up every shape"
        " before start_clock, compile with dynamic=True, or set --recompile log."
    )


class OutOfMemory(TimedrunError):
    """No memory is left for the run, on the device or the machine."""


# Of the plain RuntimeErrors that torch raises: its CPU allocator, and libraries that allocate on the device themselves.
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUDA out of memory", "ALLOC_FAILED")


def out_of_memory(
    error: BaseException, config: RunConfig, ranks: ProcessGroup, step: int, supports: Collection[str]
) -> OutOfMemory | None:
    """Return the error to report for `error`, raised after optimizer step `step`, or None unless memory ran out;
    `supports` is the benchmark's."""
    plain = isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)
    if not plain and not isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return None
    on_device = ranks.device.type == "cuda" and not isinstance(error, MemoryError)
    where = f"GPU {ranks.local_rank}" if on_device else "the machine"
    micro = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size).micro
    lower = (
        f"--micro-batch below {micro}" if "micro_batch" in supports else f"--global-batch below {config.global_batch}"
    )
    smaller = f"set {lower}" if micro > 1 else "use a smaller model or input, or more ranks"
    return OutOfMemory(f"{where} has no memory left after step {step}; {smaller}.")
