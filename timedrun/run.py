"""The timed protocol: order of events, clock, target, budget and stop of a run. MLPerf's timing rules live here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar

import torch
from torch import Tensor

from mlevents import keys
from mlevents.runlog import RunLog, Scalar
from timedrun import checkpoint, page_cache
from timedrun.card import Card
from timedrun.config import RunConfig, digest
from timedrun.errors import ExitCode, NonFiniteLoss
from timedrun.fault import Fault
from timedrun.pace import Pace
from timedrun.progress import Progress
from timedrun.ranks import Ranks
from timedrun.read_ahead import ReadAhead
from timedrun.stop import StopRequest
from timedrun.throughput import Throughput
from timedrun.tracked import Stateful, Tracked
from timedrun.watch import Watch

T = TypeVar("T")


class Outcome(Enum):
    """How a run ended, when no error ended it."""

    REACHED = "target reached"
    NOT_REACHED = "target not reached"
    BUDGET_SPENT = "budget spent"
    STOPPED = "stopped by signal"

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit status for this outcome."""
        if self is Outcome.REACHED:
            return ExitCode.OK
        return ExitCode.STOPPED_RESUMABLE if self is Outcome.STOPPED else ExitCode.TARGET_NOT_REACHED


class Announcement(TypedDict):
    """What a benchmark has the log say before the clock starts, beside what every config holds."""

    train_samples: int
    eval_samples: int
    hyperparameters: Mapping[str, Scalar]
    methods: Sequence[str]


class _Ended(Exception):
    """Unwinds the training loop when a run ends between two evaluations."""


@dataclass(frozen=True)
class Block:
    """The stretch of training between two evaluations, both ends included, in the benchmark's unit, counted from 1."""

    first: int
    last: int

    @property
    def count(self) -> int:
        """Units in the block."""
        return self.last - self.first + 1


@dataclass
class Position:
    """Where training stands: steps and samples of the whole run, the epoch under way (from 1) and steps done in it."""

    epoch: int = 1
    step_in_epoch: int = 0
    step: int = 0
    samples: int = 0


@dataclass
class Measurement:
    """What an evaluation found; the evaluation sets `value` before it ends."""

    value: float | None = None


def plan_blocks(total: int, every: int, first: int, multiple: int = 1) -> list[Block]:
    """Blocks of a run of `total` units evaluated at `first`, `first + every`, ... and at the end; each of these moves
    up to the next `multiple`, since an optimizer step is not interrupted.

    Raises:
        ValueError: a number below 1.
    """
    if min(total, every, first, multiple) < 1:
        raise ValueError(f"cannot plan evaluations: total {total}, every {every}, first {first} must all be at least 1")
    ends = sorted({math.ceil(end / multiple) * multiple for end in (*range(first, total, every), total)})
    return [Block(begin + 1, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where a rank keeps its state after optimizer step `step`."""
    return folder / f"step_{step:08d}.pt"


class TimedRun:
    """One timed run. Used as a context, it always ends in run_stop: success, or aborted with the reason."""

    def __init__(
        self,
        config: RunConfig,
        card: Card,
        ranks: Ranks,
        log: RunLog,
        *,
        platform: str,
        progress: Progress,
        stop: StopRequest | None = None,
        data_folder: Path | None = None,
        checkpoints: Path | None = None,
        resume_from: dict[str, Any] | None = None,
        watch: Watch | None = None,
        fault: Fault | None = None,
        check_every: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clear_cache: Callable[[bool], tuple[bool, str]] = page_cache.clear,
    ) -> None:
        self.config = config
        self.card = card
        self.ranks = ranks
        self.log = log
        self.platform = platform
        self.progress = progress
        self.stop = stop or StopRequest()
        self.data_folder = data_folder
        self.checkpoints = checkpoints
        self.tracked = Tracked()
        self.position = Position(**resume_from["position"]) if resume_from else Position()
        self.outcome: Outcome | None = None
        self.pace = Pace(ranks)
        self._resume_from = resume_from
        self._watch = watch
        self._fault = fault
        self._check_every = check_every or (50 if ranks.device.type == "cuda" else 10)
        self._monotonic = monotonic
        self._clear_cache = clear_cache
        self._started: float | None = None
        self._throughput = Throughput.restored(resume_from.get("throughput") if resume_from else None)
        self._data_files: tuple[Sequence[Path], int] | None = None
        self._read_ahead: ReadAhead | None = None
        self._last_loss: Tensor | None = None

    def __enter__(self) -> Self:
        if self._resume_from is None:
            done, reason = self._clear_cache(self.config.clear_cache)
            self.log.event(keys.CACHE_CLEAR, done, **({"reason": reason} if reason else {}))
            self.log.start(keys.INIT_START)
            submission = self.config.submission
            self.log.event(keys.SUBMISSION_BENCHMARK, self.card.mlperf_benchmark)
            self.log.event(keys.SUBMISSION_DIVISION, submission.division)
            self.log.event(keys.SUBMISSION_ORG, submission.organization)
            self.log.event(keys.SUBMISSION_PLATFORM, self.platform)
            self.log.event(keys.SUBMISSION_STATUS, submission.status)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self.outcome is not Outcome.REACHED:
            if error is None or isinstance(error, _Ended):
                self.outcome = self.outcome or Outcome.NOT_REACHED
                reason = self.outcome.value
                if self._started is not None:
                    if self.outcome is not Outcome.STOPPED:  # that one goes on
                        self._log_cold_start()
                    self._end_read_ahead()
            else:
                reason = self._watch.failed(error) if self._watch else f"{type(error).__name__}: {error}"
            self.log.close(reason=reason)
        self.log.close()
        if self._read_ahead is not None:
            self._read_ahead.stop(wait_seconds=1.0)
        return isinstance(error, _Ended)

    def track(self, **parts: Stateful) -> None:
        """Name what training changes (model, optimizer, methods ...): warm-up restores it, a checkpoint holds it."""
        self.tracked.add(**parts)

    def warm_up(self, step: Callable[[T], object], batches: Iterable[T]) -> None:
        """Run `step` on synthetic `batches`, so that compilation and allocation come before the clock, and put every
        tracked state and random generator back: training starts as if nothing had happened.

        Resumed runs are then set to their checkpoint.
        """
        before = self.tracked.state()
        for batch in batches:
            step(batch)
        self.tracked.restore(self._resume_from["state"] if self._resume_from else before)

    def data_files(self, files: Sequence[Path], *, of: int | None = None) -> None:
        """Name the files of the data, before the clock starts, so that the log says how much of them is in the page
        cache of rank 0's node. None of them is read.

        of: where `files` are a sample (`page_cache.evenly`), the number of files that they stand for.
        """
        self._data_files = (files, len(files) if of is None else of)

    def read_ahead(self, files: Iterable[Path], total_bytes: int) -> None:
        """Read `files`, of `total_bytes` in all, into the page cache in their order while training goes on: one thread
        on each node. Refused, and logged so, where the memory that is available does not hold them.

        Raises:
            RuntimeError: the clock is not running, so that it would not cost what it costs.
        """
        if self._started is None:
            raise RuntimeError("read_ahead before start_clock: data may be read only on the clock; nothing was read")
        if self.ranks.local_rank == 0:
            self._read_ahead = ReadAhead(files, total_bytes).start()

    def start_clock(
        self,
        *,
        train_samples: int,
        eval_samples: int,
        hyperparameters: Mapping[str, Scalar],
        methods: Iterable[str] = (),
    ) -> None:
        """Log what is about to run and start the clock. No datum may have been read before; rank 0's run_start is on
        disk before any rank goes on. A resumed run keeps its first run_start.
        """
        if self._resume_from is not None:
            position = self.position
            reached = position.samples if self.card.unit == "samples" else position.epoch
            self.log.event(keys.RESUMED, position.step, epoch_num=reached)
        else:
            config = self.config
            for key, value in {
                keys.SEED: config.seed,
                keys.GLOBAL_BATCH_SIZE: config.global_batch,
                keys.DATASET: config.dataset,
                keys.QUALITY_TARGET: config.evaluation.target,
                keys.CONFIG_NAME: config.name,
                keys.CONFIG_DIGEST: digest(config),
                keys.TRAIN_SAMPLES: train_samples,
                keys.EVAL_SAMPLES: eval_samples,
                **hyperparameters,
            }.items():
                self.log.event(key, value)
            for method in methods:
                self.log.event(keys.METHOD, method)
            if self._fault is not None:
                self.log.event(keys.FAULT, asdict(self._fault))
            if self._data_files is not None and self.ranks.is_first:
                self._log_page_cache(*self._data_files)
            self._synchronize()
            self.log.end(keys.INIT_STOP)
            self.log.start(keys.RUN_START)
        self._synchronize()
        self._started = self._monotonic()
        self.progress.start()

    def blocks(self, total: int) -> Iterator[Block]:
        """The blocks to train, until the target is reached or `total` units (epochs, or samples) are done."""
        evaluation, position = self.config.evaluation, self.position
        in_samples = self.card.unit == "samples"
        step = self.config.global_batch if in_samples else 1
        for block in plan_blocks(total, evaluation.every, evaluation.first, step):
            # A run is stopped before its evaluation, never after it: one that stands at a block's end still owes that.
            if block.last < (position.samples if in_samples else position.epoch):
                continue
            # Otherwise resumed inside this block, which is in the log already.
            if (position.samples < block.first) if in_samples else (position.step_in_epoch == 0):
                self.log.start(keys.BLOCK_START, first_epoch_num=block.first, epoch_count=block.count)
            yield block
            if self.outcome is Outcome.REACHED:
                return

    def epochs(self, block: Block) -> Iterator[int]:
        """The epochs of `block` that are still to train, each logged from its start to its end."""
        for epoch in range(max(block.first, self.position.epoch), block.last + 1):
            self._throughput.begin(self.position.samples, self._monotonic())
            if self.position.step_in_epoch == 0:
                self.log.start(keys.EPOCH_START, epoch_num=epoch)
            yield epoch
            self._check()
            self.log.end(keys.EPOCH_STOP, epoch_num=epoch)
            self._log_throughput(epoch)
            self.position.epoch, self.position.step_in_epoch = epoch + 1, 0

    def steps(self, block: Block) -> Iterator[int]:
        """The optimizer steps of `block` that are still to take, numbered over the whole run from 0: for a benchmark
        that counts samples."""
        self._throughput.begin(self.position.samples, self._monotonic())
        while self.position.samples < block.last:
            yield self.position.step
        self._check()
        self._log_throughput(block.last)

    def step_done(self, samples: int, loss: Tensor) -> None:
        """Count a finished optimizer step of `samples` over all ranks. `loss` (scalar, on the device) is looked at only
        when a check or a line of progress is due, so that the device is not waited for.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite.
        """
        position = self.position
        position.step += 1
        position.step_in_epoch += 1
        position.samples += samples
        self.pace.stepped()
        if self._watch is not None:
            self._watch.at(position.step)
        self._last_loss = self._fault.strike(self.ranks.rank, position.step, loss) if self._fault else loss
        if position.step % self._check_every == 0 or (self.ranks.world == 1 and self.stop.requested):
            self._check()
        if self.progress.due:
            where = f"epoch {position.epoch}, " if self.card.unit == "epoch" else ""
            self.progress.step(f"{where}step {position.step}", position.samples, float(loss))

    @contextmanager
    def evaluation(self, block: Block, before_success: Callable[[], None] = lambda: None) -> Iterator[Measurement]:
        """The evaluation that ends `block`. Stops the clock when the target is reached; all ranks take rank 0's value.

        `before_success` may raise to keep a run from counting (a method that changed nothing, say).

        Raises:
            ValueError: the evaluation set no value.
        """
        self.log.start(keys.EVAL_START, epoch_num=block.last)
        measurement = Measurement()
        yield measurement
        value = self.ranks.from_first(measurement.value)
        if not isinstance(value, float):
            raise ValueError(
                f"the evaluation after {self.card.unit} {block.last} measured {value!r}: set .value to a float"
            )
        self.log.event(keys.EVAL_ACCURACY, value, epoch_num=block.last)
        self.log.end(keys.EVAL_STOP, epoch_num=block.last)
        self.log.end(keys.BLOCK_STOP, first_epoch_num=block.first, epoch_count=block.count)
        if self.card.reached(value, self.config.evaluation.target):
            before_success()
            self.outcome = Outcome.REACHED
            self._end_read_ahead()
            self._log_cold_start()
            elapsed_ms = round((self._monotonic() - self._started) * 1e3) if self._started is not None else 0
            known = {} if self._resume_from else {keys.ELAPSED_MS: elapsed_ms}  # a resumed run's clock began elsewhere
            self.log.end(keys.RUN_STOP, status=keys.SUCCESS, epoch_num=block.last, **known)
            self.log.close()
        verdict = "target reached" if self.outcome is Outcome.REACHED else f"target {self.config.evaluation.target:.4f}"
        self.progress.say(f"{self.card.unit} {block.last}: {self.card.metric} {value:.4f} ({verdict})")

    def _check(self) -> None:
        """Decide with all ranks whether the run goes on."""
        loss = float(self._last_loss) if self._last_loss is not None else 0.0
        minutes = (self._monotonic() - self._started) / 60 if self._started is not None else 0.0
        over_budget = 0 < self.config.budget_minutes < minutes
        broken, stopping, spent = self.ranks.maximum(
            [float(not math.isfinite(loss)), float(self.stop.requested), float(over_budget)]
        )
        if slow := self.pace.compare():
            self.log.event(keys.SLOW_RANK, slow.rank, step=self.position.step, **asdict(slow))
            self.progress.say(slow.words)
        if broken:
            where = f"rank {self.ranks.rank}, " if self.ranks.world > 1 else ""
            raise NonFiniteLoss(
                f"{where}step {self.position.step}: the training loss is {loss}; the run is aborted. Lower the learning"
                " rate, lengthen the warm-up or use a wider precision."
            )
        if stopping:
            self._save()
            self.outcome = Outcome.STOPPED
        elif spent:
            self.outcome = Outcome.BUDGET_SPENT
        if stopping or spent:
            self.progress.say(f"stopping at step {self.position.step}: {self.outcome.value if self.outcome else ''}")
            raise _Ended

    def _save(self) -> None:
        if self.checkpoints is not None:
            path = checkpoint_path(self.checkpoints / f"rank_{self.ranks.rank}", self.position.step)
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.remove_partial(path.parent)  # of a process that was killed while it saved
            throughput = self._throughput.state(self.position.samples, self._monotonic())
            content = {"state": self.tracked.state(), "position": asdict(self.position), "throughput": throughput}
            checkpoint.save(path, content)

    def _log_throughput(self, epoch_num: int) -> None:
        """Samples a second, over all ranks, of the epoch or block of training that ends here: from its start to the
        check that ends it, which waits for all ranks and for the last loss. The device may then still be at the last
        backward pass. Evaluation is not in it; waiting for data and a line of progress are."""
        found = self._throughput.end(self.position.samples, self._monotonic())
        if found is not None:
            self.log.event(keys.TRACKED_STATS, {keys.THROUGHPUT: found}, step=self.position.step, epoch_num=epoch_num)
        if self._read_ahead is not None and self._read_ahead.ended:
            self._end_read_ahead()

    def _log_cold_start(self) -> None:
        if not self._throughput.seconds or self._started is None:
            return
        # A resumed run's clock began in another process.
        elapsed = None if self._resume_from else self._monotonic() - self._started
        self.log.event(keys.COLD_START, self._throughput.cold_start(elapsed))

    def _end_read_ahead(self) -> None:
        """Stop it where it still reads, without waiting, and log what it did: once, and from this thread, since a log's
        times must not go back."""
        if self._read_ahead is not None:
            done, self._read_ahead = self._read_ahead, None
            done.stop()
            why = {} if done.complete else {"reason": done.reason}
            rate = done.bytes / done.seconds if done.seconds else None
            facts = {"seconds": done.seconds, "bytes_per_second": rate, "complete": done.complete}
            self.log.event(keys.READ_AHEAD, done.bytes, **facts, **why)

    def _log_page_cache(self, files: Sequence[Path], of: int) -> None:
        found = page_cache.resident(files)
        facts: dict[str, Scalar] = {"bytes": found.bytes, "asked_bytes": found.asked_bytes, "files": len(files)}
        sample = {"sample_of_files": of} if of != len(files) else {}
        why = {"reason": found.reason} if found.reason else {}
        self.log.event(keys.PAGE_CACHE_RESIDENT, found.fraction, **facts, **sample, **why)

    def _synchronize(self) -> None:
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)
        self.ranks.maximum([0.0])
