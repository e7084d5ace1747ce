"""Protocol of a timed run by MLPerf's timing rules: order of events, clock, target, budget and stop."""

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from judging.ground.errors import TimedrunError, TrainingLoopError
from mlevents import keys
from mlevents.runlog import ResultFileGone, RunLog
from mlevents.runlog.protocol import Protocol
from timedrun.methods.training.train_state import Stateful
from timedrun.runner.benchmark import BenchmarkSpec
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.watchdog import Watchdog
from timedrun.runner.process.blocks import Block, Measurement, Outcome, plan_blocks
from timedrun.runner.process.load_counters import LoadCounters, log_load
from timedrun.runner.process.progress import Progress
from timedrun.runner.process.stop_signals import ShutdownRequest
from timedrun.runner.run import page_cache
from timedrun.runner.run.checkpoint_manager import CheckpointManager
from timedrun.runner.run.run_info import RunInfo as RunInfo
from timedrun.runner.run.run_info import settings_of, submission_of
from timedrun.runner.run.run_state import (
    RunState,
    out_of_memory,
    recompiled,
    recompiling_is_an_error,
    take_compilations,
)
from timedrun.runner.run.sync_interval import SyncInterval

TrainBatch = TypeVar("TrainBatch")
EvalBatch = TypeVar("EvalBatch")


class _Ended(Exception):
    """Unwinds the training loop of a run that ends between two evaluations."""


class TimedRun:
    """A timed run. As a context manager it always ends its log with run_stop: success, or aborted with the reason."""

    def __init__(
        self,
        config: RunConfig,
        spec: BenchmarkSpec,
        ranks: ProcessGroup,
        log: RunLog,
        *,
        platform: str,
        progress: Progress,
        stop: ShutdownRequest | None = None,
        data_folder: Path | None = None,
        checkpoints: Path | None = None,
        checkpoint_minutes: float = 0.0,
        resume_from: dict[str, Any] | None = None,
        watch: Watchdog | None = None,
        load: LoadCounters | None = None,
        check_every: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clear_cache: Callable[[], str] = page_cache.clear,
    ) -> None:
        self.config = config
        self.spec = spec
        self.ranks = ranks
        self.log = log
        self.protocol = Protocol(log, spec.rules.progress)
        self.platform = platform
        self.progress = progress
        self.stop = stop or ShutdownRequest()
        self.data_folder = data_folder
        self.state = RunState(
            ranks, log, CheckpointManager(checkpoints, ranks, checkpoint_minutes, monotonic), monotonic, resume_from
        )
        self.train_state, self.position = self.state.train_state, self.state.position
        self.outcome: Outcome | None = None
        self._watch = watch
        self._load = load
        self._interval = SyncInterval(ranks.device, check_every)
        self._monotonic = monotonic
        self._clear_cache = clear_cache
        self._started: float | None = None
        self._on_clock = ExitStack()
        """Undoes what holds in this process while the clock runs."""
        self._last_loss: Tensor | None = None
        self._train_samples = 1  # in one unit of the schedule

    def __enter__(self) -> Self:
        try:
            if not self.state.is_resumed:
                reason = "not requested"
                if self.config.clear_cache:
                    reason = page_cache.clear_on_every_node(self.ranks, self._clear_cache)
                settings = submission_of(self.spec, self.config, self.platform)
                self.protocol.begin(settings, cleared=not reason, reason=reason)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            if self.outcome is not Outcome.REACHED:
                self._abort(error)
        finally:
            self._on_clock.close()
            self.log.close()
        return isinstance(error, _Ended)

    def _abort(self, error: BaseException | None) -> None:
        """Log why the run missed its target. Raise OutOfMemory or Recompiled in place of an `error` that means it."""
        meaning: TimedrunError | None = None
        if error is None or isinstance(error, _Ended):
            self.outcome = self.outcome or Outcome.NOT_REACHED
            reason = self.outcome.value
        else:
            step = self.position.step
            meaning = out_of_memory(error, self.config, self.ranks, step, self.spec.supports) or recompiled(error, step)
            shown = meaning or error
            reason = self._watch.failed(shown) if self._watch else f"{type(shown).__name__}: {shown}"
        self.log.close(reason=reason, step=self.position.step)
        if meaning is not None:
            raise meaning from error

    def track(self, **parts: Stateful) -> None:
        """Track the state of `parts` (model, optimizer, methods ...): warm-up restores it, a checkpoint holds it."""
        self.train_state.add(**parts)

    def warm_up(
        self,
        step: Callable[[TrainBatch], object],
        train: Iterable[TrainBatch],
        *,
        evaluate_step: Callable[[EvalBatch], object] = lambda batch: None,
        evaluate: Iterable[EvalBatch] = (),
    ) -> None:
        """Run `step` and `evaluate_step` on synthetic batches before the clock starts, so that compilation and
        allocation are not timed, then restore every tracked state and random generator.

        Tracked modules are in evaluation mode and gradients are off for the batches of `evaluate`, which come first;
        the modules are left in training mode. The state of a resumed run is then loaded from its checkpoint.
        """
        if not self.train_state.parts:
            raise RuntimeError("warm_up would train what it cannot restore: call run.track(model=..., ...) before it")
        self.progress.stage("warm-up on synthetic batches")
        before = self.train_state.state()
        modules = [part for part in self.train_state.parts.values() if isinstance(part, nn.Module)]
        for module in modules:
            module.eval()
        with torch.inference_mode():
            for eval_batch in evaluate:
                evaluate_step(eval_batch)
        for module in modules:
            module.train()
        for number, batch in enumerate(train, 1):
            if self.progress.live:
                self.progress.stage(f"warm-up on synthetic batches, step {number}")
            step(batch)
        self.train_state.restore(before)
        self.state.restore()

    def start_clock(self, info: RunInfo) -> None:
        """Log `info` and start the clock. No datum may be read before; rank 0's run_start is on disk before any rank
        continues. A resumed run keeps its first run_start. Until the run ends, collections of Python's garbage leave
        out the objects that exist by now (`gc.freeze`).
        """
        started: float | None = None
        gc.collect()
        self._on_clock.callback(gc.unfreeze)
        gc.freeze()  # or each full collection would walk over all of torch: 0.2 s once torch.compile is loaded
        if self._load is not None:
            self._load.begin()
        if self.state.is_resumed:
            self.state.restore()  # unless warm-up did
            self.state.replicas.require_same(self.position.step)
            self.state.require_same_info(info)
            self.state.check_clock()
            self.protocol.resume(keys.RUN_START)
            self.state.log_resumed(self.protocol.at(self._progress))
        else:
            settings = settings_of(self.config, info)
            try:
                self.protocol.describe(settings)
            except (TypeError, ValueError) as error:
                raise TrainingLoopError(f"a setting or hyperparameter of the run info: {error}") from error
            self.state.require_same_info(info)
            self.state.replicas.require_same(self.position.step)
            self.state.identify()
            self._synchronize()
            self.protocol.end(keys.INIT_STOP)
            self.state.check_clock()
            started = self._monotonic()  # taken with the wall clock: writing run_start may take long
            self.protocol.start(keys.RUN_START)
        # The clock runs: steps, checkpoints and compilations count from here on.
        self._synchronize()
        self._started = self._monotonic() if started is None else started
        if self._watch is not None:
            self._watch.at(self.position.step)
        self.state.start()
        graph_changes = any(method.recompiles for method in self.config.methods)
        if self.config.recompile == "error" and self.config.warm_up_steps and not graph_changes:
            self._on_clock.enter_context(recompiling_is_an_error())
        if self.spec.rules.unit == "epoch":
            self._train_samples = info["train_samples"]
        self.progress.start(self.state.minutes_before * 60, self.position.samples)
        self.progress.clock_started()

    def blocks(self, total: int) -> Iterator[Block]:
        """Yield the blocks to train until the target is reached or `total` units (epochs, or samples) are done. Raises
        TrainingLoopError if the clock was not started."""
        if self._started is None:
            raise TrainingLoopError("run.blocks was called before run.start_clock: start the clock, then train")
        evaluation, position = self.config.evaluation, self.position
        in_samples = self.spec.rules.unit == "samples"
        step = self.config.global_batch if in_samples else 1
        self.progress.total_samples = total * self._train_samples
        for block in plan_blocks(total, evaluation.every, evaluation.first, step):
            if block.last <= position.evaluated:
                continue
            if in_samples:
                begun = position.samples >= block.first
            else:
                begun = (position.epoch, position.step_in_epoch) > (block.first, 0)
            if begun:
                self.protocol.resume(keys.BLOCK_START)
            else:
                self.protocol.start_block(block.first, block.count, block.first - 1)
            yield block
            if self.outcome is Outcome.REACHED:
                return
            self._sync()  # acts on a signal that came during the evaluation

    def epochs(self, block: Block) -> Iterator[int]:
        """Yield the epochs of `block` that are left to train, and log their starts and ends."""
        self._require_unit("epoch")
        for epoch in range(max(block.first, self.position.epoch), block.last + 1):
            self._begin_training()
            if self.position.step_in_epoch == 0:
                self.protocol.start(keys.EPOCH_START, epoch_num=epoch)
            else:
                self.protocol.resume(keys.EPOCH_START)
            yield epoch
            self._sync()
            self.protocol.end(keys.EPOCH_STOP, epoch_num=epoch)
            self.state.log_stats(self.protocol.at(epoch))
            self.position.epoch, self.position.step_in_epoch = epoch + 1, 0

    def steps(self, block: Block) -> Iterator[int]:
        """Yield the optimizer steps of `block` that are left, numbered from 0 over the run, if samples are counted."""
        self._require_unit("samples")
        self._begin_training()
        while self.position.samples < block.last:
            step = self.position.step
            yield step
            if self.position.step == step:
                raise TrainingLoopError(f"optimizer step {step} was not counted: call run.step_done after each")
        self._sync()
        self.state.log_stats(self.protocol.at(block.last))

    def step_done(self, samples: int, loss: Tensor) -> None:
        """Count a finished optimizer step of `samples` over all ranks. `loss` (scalar, on the device) is this rank's
        part of the mean over the global batch, times the world size: its mean over ranks is logged. It is read only
        when a synchronization or a progress line is due, so that the device is not waited for. Raises NonFiniteLoss."""
        position = self.position
        position.step += 1
        position.step_in_epoch += 1
        position.samples += samples
        if self._watch is not None:
            self._watch.at(position.step)
        self._last_loss = loss
        if self._interval.due(position.step) or (self.ranks.world_size == 1 and self.stop.signal):
            self._sync()
        if self.progress.due:
            where = f"epoch {position.epoch}, " if self.spec.rules.unit == "epoch" else ""
            self.progress.step(f"{where}step {position.step}", position.samples, float(loss))

    @contextmanager
    def evaluation(self, block: Block, before_success: Callable[[], None] = lambda: None) -> Iterator[Measurement]:
        """Log the evaluation that ends `block` and stop the clock if the target is reached; rank 0's value counts.

        Args:
            before_success: may raise to abort a run that must not count, for example one whose method had no effect.

        Raises ReplicaDivergence if the ranks' weights differ, TrainingLoopError if the evaluation set no number or no
        step was counted before it.
        """
        if self.position.step == 0:
            raise TrainingLoopError(
                "no optimizer step was counted before the evaluation: call run.step_done after each"
            )
        self.state.replicas.require_same(self.position.step)
        self.protocol.start(keys.EVAL_START, **self.protocol.at(block.last))
        self.stop.when = "after this evaluation"
        measurement = Measurement()
        yield measurement
        self.stop.when = ""
        load = self._load.block() if self._load is not None else None
        unit = self.spec.rules.unit
        # Rank 0's value counts; the rest of all ranks travels with it, so that it needs no collective of its own.
        (value, *_), *_ = reports = self.ranks.all_gather((measurement.value, load, take_compilations()))
        if not isinstance(value, float) or not math.isfinite(value):
            hint = "the training has diverged" if isinstance(value, float) else "set .value to a float"
            raise TrainingLoopError(
                f"the evaluation after {unit} {block.last} measured {value!r}, no quality was logged: {hint}"
            )
        self.protocol.stop_evaluation(value, block.last)
        self.protocol.stop_block(block.last, first=block.first, count=block.count)
        at = self.protocol.at(block.last)
        if loads := [load for _, load, _ in reports if load is not None]:
            log_load(self.log, loads, **at)
        if message := self.state.log_recompiled([compiled for *_, compiled in reports], at):
            self.progress.say(message)
        self.position.evaluated = block.last
        if self.spec.reached(value, self.config.evaluation.target):
            before_success()
            self.outcome = Outcome.REACHED
            known = {}
            if self._started is not None and not self.state.is_resumed:  # whose clock began in another process
                known[keys.ELAPSED_MS] = round((self._monotonic() - self._started) * 1e3)
            if self.state.wall_clock is not None:
                self.state.wall_clock.check(self.position.step)
            self.protocol.succeed(block.last, **known)
        verdict = "target reached" if self.outcome is Outcome.REACHED else f"target {self.config.evaluation.target:.4f}"
        self.progress.say(f"{unit} {block.last}: {self.spec.rules.metric} {value:.4f} ({verdict})")

    @property
    def _progress(self) -> int:
        return self.position.samples if self.spec.rules.unit == "samples" else self.position.epoch

    def _require_unit(self, unit: str) -> None:
        if (counted := self.spec.rules.unit) != unit:
            use = {"samples": "run.epochs", "epoch": "run.steps"}[unit]
            raise TrainingLoopError(f"the loop counts {unit}, but the rules count {counted}: use {use}(block)")

    def _begin_training(self) -> None:
        now, self.stop.when = self._monotonic(), ""
        self.state.stats.begin(self.position.samples, now)
        self._interval.begin(self.position.step, now)

    def _sync(self) -> None:
        """Decide with all ranks if the run continues, and save it if a checkpoint is due."""
        step = self.position.step
        loss = float(self._last_loss) if self._last_loss is not None else None
        self._last_loss = None
        finite = loss if loss is not None and math.isfinite(loss) else -math.inf
        # One place per rank: the elementwise maximum over ranks has the losses of all.
        losses = [finite if rank == self.ranks.rank else -math.inf for rank in range(self.ranks.world_size)]
        now = self._monotonic()
        if self.state.wall_clock is not None:
            self.state.wall_clock.check(step)
        if self._load is not None:
            self._load.keep_up()
        minutes = self.state.minutes_before + ((now - self._started) / 60 if self._started is not None else 0.0)
        over_budget = 0 < self.config.budget_minutes < minutes
        # All that the ranks have to agree on is one collective, which acts on every rank after the same step.
        broken, gone, stopping, spent, due, slowest, *losses = self.ranks.all_reduce_max(
            [
                float(loss is not None and not math.isfinite(loss)),
                float(self.log.is_gone),
                float(self.stop.signal is not None),
                float(over_budget),
                float(self.ranks.is_first and self.state.checkpoints.due),
                self._interval.seconds_per_step(step, now),
                *losses,
            ]
        )
        if broken:
            raise self.state.not_finite(0.0 if loss is None else loss)
        if gone:  # on all ranks, before a checkpoint is saved beside it
            raise ResultFileGone(self.ranks.broadcast(self.log.path))
        # Before a checkpoint, which holds the log up to here.
        self.state.log_loss([known for known in losses if known > -math.inf], self.protocol.at(self._progress))
        if stopping and self.config.submission.division == keys.CLOSED:
            self.outcome = Outcome.STOPPED_CLOSED
        elif stopping:
            self.state.save_to_stop()
            self.outcome = Outcome.STOPPED
        elif spent:
            self.outcome = Outcome.BUDGET_SPENT
        if stopping or spent:
            self.progress.say(f"stopping at step {step}: {self.outcome.value if self.outcome else ''}")
            raise _Ended
        if due and (reason := self.state.save_periodically()) is not None:
            self.progress.say(f"checkpoint at step {step} NOT saved ({reason}); the run continues")
        self._interval.synced(step, slowest, self._monotonic())

    def _synchronize(self) -> None:
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)
        elif self.ranks.device.type == "mps":
            torch.mps.synchronize()
        self.ranks.all_reduce_max([0.0])
