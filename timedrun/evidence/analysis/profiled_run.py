"""A run that trains a few steps at chosen positions of its schedule, for their times; nothing is logged."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from judging.ground.errors import TrainingLoopError
from mlevents.runlog import RunLog
from timedrun.evidence.analysis.step_flops import flop_counter
from timedrun.evidence.analysis.step_timer import StepTimer
from timedrun.methods.training.precision import set_backends
from timedrun.runner.benchmark import Benchmark, BenchmarkSpec
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.device_clock import Stamp, seconds_between, stamp
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process.blocks import Block, Measurement, plan_blocks
from timedrun.runner.process.process_times import cpu_seconds, thread_times
from timedrun.runner.process.progress import Progress
from timedrun.runner.run.run_info import RunInfo
from timedrun.runner.run.timed_run import TimedRun

Mode = Literal["skip", "gate", "plain", "timed", "traced", "counted"]
"""Of a step. skip: not measured; gate: not measured, after the turns of other configs; timed: divided into parts;
traced: under torch.profiler; counted: not timed, its floating-point operations are counted."""
LOSSES: Final = 3  # first steps whose losses are kept
TRACED: Final = 3  # steps under torch.profiler at a position, after one that starts it


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Steps to measure at each position."""

    positions: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)  # elapsed fractions of the schedule
    chunks: int = 4  # of plain steps, and as many of divided ones, alternating
    chunk: int = 5  # steps measured one after another
    skip: int = 5  # steps before the first chunk: more than a loader prefetches
    timed: bool = True  # divide every other chunk into parts
    traced: bool = False  # end with steps under torch.profiler, at each position
    counted: int = 0  # last steps at each position, whose floating-point operations are counted
    evaluate: bool = True
    gated: bool = False  # call `gate` before the warm-up and each chunk, and skip steps after it again

    def modes(self) -> list[Mode]:
        """Return the modes of the steps at one position."""
        steps: list[Mode] = [] if self.gated else ["skip"] * self.skip
        for number in range(self.chunks):
            if self.gated:
                steps += ["gate"]
                steps += ["skip"] * (self.skip - 1)
            modes: tuple[Mode, ...] = ("plain",)
            if self.timed:
                modes = ("plain", "timed") if number % 2 == 0 else ("timed", "plain")
            for mode in modes:
                steps += [mode] * self.chunk
        if self.traced:
            steps += ["skip"]
            steps += ["traced"] * (1 + TRACED)
        return steps + ["counted"] * self.counted


@dataclass
class PositionTimes:
    """Measurements at one position of the schedule."""

    progress: float  # elapsed fraction of the schedule in the middle of the steps
    first_step: int
    input: str = ""
    """Size of the model's input, "" if it is not known."""
    plain: list[list[float]] = field(default_factory=list)
    """Seconds of each step of each chunk without division into parts."""
    parts: list[dict[str, float]] = field(default_factory=list)  # seconds of each part, of each divided step
    cores: float = 0.0  # processor cores that this process and its children used during plain steps
    waited: float = 0.0  # share of the plain steps' time in which the training thread was ready to run and had no core
    trace: torch.profiler.profile | None = None
    operations: FlopCounterMode | None = None  # of the counted steps together


@dataclass(frozen=True)
class _Ranks(ProcessGroup):
    """Process group that notes the module which a training loop calls: it may contain the model, compiled with it."""

    called: list[nn.Module] = field(default_factory=list)

    def wrap(self, model: nn.Module, *, find_unused_parameters: bool = False) -> nn.Module:
        self.called.append(parallel := super().wrap(model, find_unused_parameters=find_unused_parameters))
        return parallel


class ProfiledRun(TimedRun):
    """A run whose blocks and epochs are the steps of `plan`. It begins as a resumed run would, in the middle of the
    schedule, at each position from the state after warm-up; it ends with one evaluation if the plan has it.

    gate: called before the warm-up and before each chunk of a gated plan. options: those of any `TimedRun`.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: BenchmarkSpec,
        ranks: ProcessGroup,
        *,
        plan: StepPlan,
        gate: Callable[[], object] = lambda: None,
        monotonic: Callable[[], float] = time.perf_counter,
        **options: Any,
    ) -> None:
        self._wrapped = _Ranks(**vars(ranks))
        super().__init__(config, spec, self._wrapped, RunLog(None), platform="", monotonic=monotonic, **options)
        self.plan, self.gate = plan, gate
        self.timer = StepTimer(ranks.device, monotonic)
        self.found: list[PositionTimes] = []
        self.losses: list[Tensor] = []
        """Of the first steps."""
        self.total_steps = 0
        """Optimizer steps of the whole schedule."""
        self.evaluations = 0
        """Evaluations of the whole schedule."""
        self.evaluation_seconds: float | None = None
        self._per_epoch = 1
        self._modes: list[Mode] = []
        self._mode: Mode | None = None
        self._attached = ExitStack()
        self._spans: list[tuple[Stamp, Stamp]] = []
        self._chunks: list[tuple[PositionTimes, Mode, list[tuple[Stamp, Stamp]], list[list[tuple[str, Stamp]]]]] = []
        self._begun: Stamp = 0.0
        self._reading = (0.0, 0.0, 0.0)
        self._used: list[tuple[float, ...]] = []  # by plain chunk, between two readings
        self._initial: dict[str, Any] = {}
        self._built = False

    def warm_up(self, *steps: Any, **batches: Any) -> None:
        """Wait for this config's turn, then warm up; evaluation batches, which may need more memory than a step, only
        for a plan with an evaluation."""
        self._wait_once()
        super().warm_up(*steps, **batches if self.plan.evaluate else {**batches, "evaluate": ()})

    def _wait_once(self) -> None:
        """Call `gate` when the model is built, before it computes: others build meanwhile."""
        if self.plan.gated and not self._built:
            self._built = True
            self.gate()

    def start_clock(self, info: RunInfo) -> None:
        """Keep the state to begin each position with."""
        self._wait_once()  # of a benchmark without warm-up
        self._started = self._monotonic()
        self._per_epoch = self.config.epoch_steps(info["train_samples"])
        self._initial = self.train_state.state()

    def blocks(self, total: int) -> Iterator[Block]:
        """Yield one block, which has the steps of all positions."""
        evaluation, in_samples = self.config.evaluation, self.spec.rules.unit == "samples"
        size = self.config.global_batch if in_samples else 1
        self.total_steps = -(-total // size) if in_samples else total * self._per_epoch
        self.evaluations = len(plan_blocks(total, evaluation.every, evaluation.first, size))
        self._total = total
        self._enter(self.plan.positions[0])
        yield Block(1, total)

    def epochs(self, block: Block) -> Iterator[int]:
        """Yield epochs whose steps left to train are those of the plan."""
        self._require_unit("epoch")
        for _ in self._turns():
            yield min(self.position.epoch, self._total)
            self.position.epoch, self.position.step_in_epoch = self.position.epoch + 1, 0

    def steps(self, block: Block) -> Iterator[int]:
        """Yield the steps of the plan, numbered as in the whole run."""
        self._require_unit("samples")
        for _ in self._turns():
            yield self.position.step

    def _turns(self) -> Iterator[None]:
        """Yield before each epoch or step of the training loop, until the steps of all positions are done."""
        for number, at in enumerate(self.plan.positions):
            if number:
                self._enter(at)
            while left := len(self._modes):
                step = self.position.step
                yield
                if len(self._modes) == left:
                    raise TrainingLoopError(f"no step was counted after step {step}: call run.step_done after each")
        self._finish()

    def step_done(self, samples: int, loss: Tensor) -> None:
        """End a step: keep its time, and prepare the next one."""
        end = stamp(self.ranks.device, self._monotonic)
        if self._mode == "timed":
            self.timer.end_step()
        position = self.position
        position.step += 1
        position.step_in_epoch += 1
        position.samples += samples
        if self._mode in ("plain", "timed"):
            self._spans.append((self._begun, end))
        if len(self.losses) < LOSSES:
            self.losses.append(loss.detach().clone())
        if self._modes:
            self._modes.pop(0)
            self._prepare(self._modes[0] if self._modes else None)
        if self.progress.due:
            self.progress.step(f"step {position.step}", position.samples, float(loss))
        if self._mode == "timed":
            self.timer.begin_step()
        self._begun = stamp(self.ranks.device, self._monotonic)

    @contextmanager
    def evaluation(self, block: Block, before_success: Callable[[], None] = lambda: None) -> Iterator[Measurement]:
        """Time the evaluation, or end the run before it."""
        if not self.plan.evaluate:
            raise ProfileDone
        self.progress.stage("evaluation")
        self._synchronize()
        begun = self._monotonic()
        yield Measurement()
        self._synchronize()
        self.evaluation_seconds = self._monotonic() - begun

    def close(self) -> None:
        """Remove the instruments, also in the middle of a step."""
        self._attached.close()

    def _enter(self, at: float) -> None:
        """Go to the steps around the fraction `at` of the schedule, from the initial state."""
        self._finish()
        self.train_state.restore(self._initial)
        self._modes = self.plan.modes()
        count, position = len(self._modes), self.position
        first = round(at * max(0, self.total_steps - count))
        if self.spec.rules.unit == "epoch":  # end with an epoch, since a training loop does not leave one before
            last = min(-(-(first + count) // self._per_epoch), self._total)
            first = max(0, last * self._per_epoch - count)
            position.epoch, position.step_in_epoch = first // self._per_epoch + 1, first % self._per_epoch
        position.step, position.samples = first, first * self.config.global_batch
        middle = min(1.0, (first + count / 2) / self.total_steps)
        self.found.append(PositionTimes(middle, first))
        if len(self.found) == len(self.plan.positions):
            self._initial = {}  # as large as model and optimizer, beside those of other configs on the device
        self.progress.start(time.monotonic() - self.progress.began, position.samples)
        self.progress.stage(f"steps at {middle:.0%} of the schedule")
        self._prepare(self._modes[0])
        self._begun = stamp(self.ranks.device, self._monotonic)

    def _prepare(self, mode: Mode | None) -> None:
        """Change the instruments for the next step, at the end of a chunk."""
        chunk_ends = len(self._spans) == self.plan.chunk
        if mode == self._mode and not chunk_ends:
            return
        self._end_chunk()
        if mode != self._mode:
            self._attached.close()
            if mode == "timed":
                called = {"called": self._wrapped.called[-1]} if self._wrapped.called else {}
                self._attached.enter_context(self.timer.attached({**called, **self.train_state.parts}))
            if mode == "traced":
                activities = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
                self.found[-1].trace = trace = torch.profiler.profile(activities=activities)
                self._attached.enter_context(trace)
                self._attached.callback(self._synchronize)
            if mode == "counted":
                self.found[-1].operations = self._attached.enter_context(flop_counter())
        self._mode = mode
        if mode == "gate":
            self.gate()
        if mode == "plain":
            self._reading = self._read()

    def _read(self) -> tuple[float, float, float]:
        """Return processor seconds of this process, this thread's seconds of waiting for a core, and the time."""
        times = thread_times([Path("/proc/thread-self")]) or {}
        return cpu_seconds(), sum(waited for _, waited in times.values()), self._monotonic()

    def _end_chunk(self) -> None:
        at = self.found[-1]
        if self._mode == "plain" and self._spans:
            self._used.append(tuple(now - then for now, then in zip(self._read(), self._reading, strict=True)))
        if self._mode == "timed" and self._spans:
            at.input = self.timer.input
        if self._mode is not None and self._spans:
            self._chunks.append((at, self._mode, self._spans, self.timer.steps))
        self._spans, self.timer.steps = [], []

    def _finish(self) -> None:
        """Read the times of a position, once the device has completed it."""
        self._prepare(None)
        self._synchronize()
        for at, mode, spans, marks in self._chunks:
            if mode == "plain":
                at.plain.append([seconds_between(begin, end) for begin, end in spans])
            at.parts += [self.timer.parts_of(mark) for mark in marks]
        if self._used:
            processor, waited, wall = (sum(values) for values in zip(*self._used, strict=True))
            self.found[-1].cores, self.found[-1].waited = processor / max(wall, 1e-9), waited / max(wall, 1e-9)
        self._chunks, self._used = [], []


class ProfileDone(Exception):
    """Unwinds the training loop of a profile without evaluation."""


def profiled(
    benchmark: Benchmark,
    config: RunConfig,
    plan: StepPlan,
    *,
    data_folder: Path | None = None,
    shown: bool = False,
    gate: Callable[[], object] = lambda: None,
) -> ProfiledRun:
    """Train the steps of `plan` on this process's device; return the run with their times."""
    ranks = ProcessGroup.join(config.device)
    set_backends(ranks.device, tf32=config.tf32, cudnn_benchmark=config.cudnn_benchmark)
    progress = Progress(f"{config.name} profile", shown=shown)
    run = ProfiledRun(config, benchmark.spec, ranks, plan=plan, progress=progress, data_folder=data_folder, gate=gate)
    try:
        benchmark.train(config, run)
    except ProfileDone:
        pass
    finally:
        run.close()
    return run
