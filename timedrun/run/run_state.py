"""What a run is at one moment: what training changes, where it stands and how fast it was. It is saved as a whole, and
a run that was interrupted is taken up from there."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from mlevents import keys
from mlevents.runlog import RunLog, Scalar
from timedrun.config import RunConfig
from timedrun.distributed import config_consistency
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.replica_check import Replicas
from timedrun.errors import NonFiniteLoss, TimedrunError
from timedrun.run.blocks import TrainProgress
from timedrun.run.checkpoint_file import CheckpointError
from timedrun.run.checkpoint_manager import CheckpointManager
from timedrun.run.clock_check import ClockCheck
from timedrun.run.run_info import RunInfo
from timedrun.run.throughput import Throughput
from timedrun.run.train_state import TrainState
from timedrun.training.batch_plan import BatchPlan


class RunState:
    """A rank's state of its run, with its checkpoints and what the log says of them.

    resume_from: what `newest_on_all` returned, for a run that is taken up; its tensors are let go of by `restore`.
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
        self.position = TrainProgress(**resume_from["position"]) if resume_from else TrainProgress()
        self.throughput = Throughput.restored(resume_from["throughput"] if resume_from else None)
        self.is_resumed = resume_from is not None
        self.minutes_before = log.rollback.since_start_seconds / 60 if log.rollback is not None else 0.0
        """On the clock before training went on in this process; known to rank 0."""
        self._identity: str | None = resume_from["run"] if resume_from else None
        self._saved: dict[str, Any] | None = resume_from["state"] if resume_from else None
        self._announced: dict[str, object] | None = resume_from["announced"] if resume_from else None
        self.wall_clock: ClockCheck | None = None
        """Rank 0's, once the clock is watched."""
        self._clock_saved: dict[str, Any] | None = resume_from["clock"] if resume_from else None
        self._monotonic = monotonic
        self._begun = monotonic()

    def restore(self) -> None:
        """Set what is tracked to the checkpoint that the run is resumed from, once; nothing for any other run."""
        saved, self._saved = self._saved, None
        if saved is not None:
            self.train_state.restore(saved)

    def announce(self, announced: RunInfo) -> None:
        """Hold what a benchmark says of its data and settings against that of the other ranks and, in a run that is
        taken up, of the process that was interrupted: no setting tells that a folder holds other data.

        Raises:
            TimedrunError: it differs; on all ranks alike.
        """
        now: dict[str, object] = json.loads(json.dumps(announced))  # as a checkpoint holds it and brings it back
        config_consistency.require(self.ranks, now, "the clock was not started")  # data differ, then, most likely
        before, self._announced = self._announced, now
        if before is not None and (differing := [name for name in now if now[name] != before.get(name)]):
            told = "; ".join(f"{name} was {before.get(name)} and is {now[name]}" for name in differing)
            raise TimedrunError(f"the run does not go on: its data or settings are not what they were ({told}).")

    def watch_clock(self) -> None:
        """From now on, or where the run is taken up from its checkpoint on, a wall clock that is set is noticed."""
        if self.ranks.is_first:
            self.wall_clock = ClockCheck(self.log, self._monotonic, self._clock_saved)

    def identify(self) -> None:
        """Draw what tells a fresh run's checkpoints from any other run's: rank 0 does, for all."""
        self._identity = str(self.ranks.broadcast(secrets.token_hex(16)))

    def start(self) -> None:
        """The clock runs: the next checkpoint is due a whole interval from now."""
        if self.is_resumed:  # whose clock ran all the while
            self.minutes_before += (self._monotonic() - self._begun) / 60
        self.checkpoints.start(self.position.step if self.is_resumed else None)

    def log_resumed(self, reached: int) -> None:
        """Log that the run goes on after `reached` epochs or samples, and what of its log was taken back for that."""
        told: dict[str, Scalar] = {}
        if (back := self.log.rollback) is not None:
            told = {"attempt": back.attempt, "gap_seconds": back.gap_seconds, "lines_taken_back": back.lines}
            if back.step is not None:
                told["steps_lost"] = back.step - self.position.step
        if self.wall_clock is not None:
            told["clock_compared"] = self.wall_clock.follows
        self.log.event(keys.RESUMED, self.position.step, epoch_num=reached, **told)
        if self.wall_clock is not None and self.wall_clock.follows:
            self.wall_clock.look(self.position.step)
        elif back is not None and back.clock_set_seconds:  # its time is still wrong by so much
            self.log.event(keys.CLOCK_SET, back.clock_set_seconds, step=self.position.step)

    def log_throughput(self, epoch_num: int) -> None:
        """Log samples a second, over all ranks, of the epoch or block of training that ends here: from its start to the
        check that ends it, which waits for all ranks and for the last loss. The device may then still be at the last
        backward pass. Evaluation is not in it; waiting for data, saving and a line of progress are."""
        found = self.throughput.end(self.position.samples, self._monotonic())
        if found is not None:
            self.log.event(keys.TRACKED_STATS, {keys.THROUGHPUT: found}, step=self.position.step, epoch_num=epoch_num)

    def log_cold_start(self, started: float) -> None:
        """Log what a cold start cost, of a run whose clock started at second `started`."""
        if self.throughput.seconds:
            elapsed = None if self.is_resumed else self._monotonic() - started  # else it began in another process
            self.log.event(keys.COLD_START, self.throughput.cold_start(elapsed))

    def not_finite(self, loss: float) -> NonFiniteLoss:
        """The error of a rank whose `loss`, this rank's own, is NaN or infinite; all ranks ask for it together."""
        losses = self.ranks.all_gather(loss)
        rank = next(rank for rank, one in enumerate(losses) if not math.isfinite(one))
        where = f"rank {rank}, " if self.ranks.world_size > 1 else ""
        return NonFiniteLoss(
            f"{where}step {self.position.step}: the training loss is {losses[rank]}; the run is aborted. Lower the"
            " learning rate, lengthen the warm-up or use a wider precision."
        )

    def save_to_stop(self) -> None:
        """Save, since the run stops here.

        Raises:
            ReplicaDivergence: the ranks' weights differ: nobody would want to go on from them.
            CheckpointError: a rank could not; the message says from where the run can be resumed, if at all.
        """
        step, older = self.position.step, self.checkpoints.newest
        self.replicas.require_same(step)
        if (reason := self.checkpoints.save(step, self.train_state.live_state, self._about)) is not None:
            then = "the run cannot be resumed" if older is None else f"the run can be resumed from step {older} only"
            raise CheckpointError(
                f"stopped by signal at step {step}, whose checkpoint could not be saved ({reason}); {then}."
            )

    def save_on_the_clock(self) -> str | None:
        """Save while training goes on, and log it; why it could not be, which the log says too and ends no run.

        Raises:
            ReplicaDivergence: the ranks' weights differ: nothing was saved.
        """
        began, step = self._monotonic(), self.position.step
        if self.checkpoints.newest == step:
            return None
        self.replicas.require_same(step)
        reason = self.checkpoints.save(step, self.train_state.live_state, self._about)
        why = {} if reason is None else {"reason": reason}
        self.log.event(keys.CHECKPOINT, step, seconds=self._monotonic() - began, **why)
        return reason

    def _about(self) -> dict[str, Any]:
        """Return the entries of this rank's checkpoint beside the state; rank 0 also marks its place in the log."""
        return {
            "run": self._identity,
            "rank": self.ranks.rank,
            "position": asdict(self.position),
            "announced": self._announced,
            "throughput": self.throughput.state(self.position.samples, self._monotonic()),
            "clock": self.wall_clock.state() if self.wall_clock is not None else None,
            "log": self.log.mark() if self.ranks.is_first else None,
        }


class OutOfMemory(TimedrunError):
    """No memory is left for the run, on the device or the machine."""


# Of the plain RuntimeErrors that torch raises: its CPU allocator, and libraries that allocate on the device themselves.
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUDA out of memory", "ALLOC_FAILED")


def out_of_memory(error: BaseException, config: RunConfig, ranks: ProcessGroup, step: int) -> OutOfMemory | None:
    """Return the error to report for `error`, raised after optimizer step `step`, or None unless memory ran out."""
    plain = isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)
    if not plain and not isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return None
    on_device = ranks.device.type == "cuda" and not isinstance(error, MemoryError)
    where = f"GPU {ranks.local_rank}" if on_device else "the machine"
    micro = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size).micro
    smaller = (
        f"set --micro-batch below {micro} (samples of one forward pass of a rank)"
        if micro > 1
        else "a forward pass has one sample already: use a smaller model or input, or more ranks"
    )
    host = "" if on_device else ", or lower the prefetched data (workers, prefetch) or other programs' use of memory"
    return OutOfMemory(f"{where} has no memory left after step {step}; {smaller}{host}.")
