"""Profile of a config: where the time of its run goes, what the bottleneck is, and what a method can gain at most."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from judging.comparison.composition import COMPUTING
from judging.comparison.extrapolation import over_schedule
from timedrun.evidence.analysis.profiled_run import PositionTimes, StepPlan, profiled
from timedrun.evidence.analysis.step_timer import PARTS
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig

EVALUATION: Final = "evaluation"
IDLE_DEVICE: Final = 0.5  # share of a step in which a GPU runs no kernel, above which the host is the bottleneck


class Part(NamedTuple):
    """A part of a whole run."""

    seconds: float
    share: float  # of the time of the run

    @property
    def bound(self) -> float:
        """Return the speed-up of the run if this part took no time (Amdahl's law)."""
        return 1 / (1 - self.share) if self.share < 1 else float("inf")


@dataclass(frozen=True)
class Profile:
    """Times of a config's steps at positions of its schedule, and of one evaluation."""

    positions: Sequence[PositionTimes]
    steps: int  # of the whole schedule
    evaluations: int
    evaluation_seconds: float | None  # None: not measured
    device: torch.device
    busy: Sequence[float] = ()  # share of the traced time in which a GPU runs a kernel or copy, at each position

    @cached_property
    def step_seconds(self) -> list[float]:
        """Seconds of a step that was not divided, at each position: the median of its chunks' means."""
        return [statistics.median(map(statistics.fmean, at.plain)) for at in self.positions]

    @cached_property
    def part_seconds(self) -> list[dict[str, float]]:
        """Seconds of each part of a step at each position: shares of the divided steps, of the time of plain ones."""
        items = []
        for at, whole in zip(self.positions, self.step_seconds, strict=True):
            names = dict.fromkeys([*PARTS, *sorted({name for step in at.parts for name in step})])
            sums = {name: sum(step.get(name, 0.0) for step in at.parts) for name in names}
            total = sum(sums.values())
            items.append({name: whole * seconds / total for name, seconds in sums.items()})
        return items

    @property
    def training_seconds(self) -> float:
        """Return the estimated time of all steps of the schedule."""
        return self.steps * over_schedule([at.progress for at in self.positions], self.step_seconds)

    @property
    def run_seconds(self) -> float:
        """Return the estimated time of the whole schedule with its evaluations."""
        return self.training_seconds + self.evaluations * (self.evaluation_seconds or 0.0)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Each part of the whole schedule by its name, evaluations included."""
        progress = [at.progress for at in self.positions]
        names = dict.fromkeys(name for parts in self.part_seconds for name in parts)
        seconds = {
            name: self.steps * over_schedule(progress, [parts.get(name, 0.0) for parts in self.part_seconds])
            for name in names
        }
        if self.evaluation_seconds is not None:
            seconds[EVALUATION] = self.evaluations * self.evaluation_seconds
        return {name: Part(value, value / self.run_seconds) for name, value in seconds.items()}

    @property
    def bottleneck(self) -> tuple[str, Part]:
        """Return the largest of the resources that the run takes: computing, loading, each method, ... On a GPU that
        mostly idles in its steps, computing is "host"."""
        computing = sum(self.parts[name].seconds for name in COMPUTING)
        resources = {name: part for name, part in self.parts.items() if name not in COMPUTING}
        resources = {"computing": Part(computing, computing / self.run_seconds), **resources}
        name, part = max(resources.items(), key=lambda item: item[1].seconds)
        idle = 1 - statistics.fmean(self.busy) if self.busy else 0.0
        return ("host" if name == "computing" and idle > IDLE_DEVICE else name), part

    def as_values(self) -> dict[str, Any]:
        name, part = self.bottleneck
        return {
            "positions": [
                {
                    "progress": at.progress,
                    "first_step": at.first_step,
                    "input": at.input,
                    "seconds_per_step": seconds,
                    "seconds_of_steps": at.plain,
                    "parts": parts,
                    "processor_cores": at.cores,
                    "waited_for_a_core": at.waited,
                    "device": {"busy": self.busy[number]} if self.busy else None,
                }
                for number, (at, seconds, parts) in enumerate(
                    zip(self.positions, self.step_seconds, self.part_seconds, strict=True)
                )
            ],
            "evaluation_seconds": self.evaluation_seconds,
            "schedule": {
                "steps": self.steps,
                "evaluations": self.evaluations,
                "training_seconds": self.training_seconds,
                "seconds": self.run_seconds,
                "parts": {name: {**part._asdict(), "bound": part.bound} for name, part in self.parts.items()},
            },
            "bottleneck": {"name": name, "share": part.share, "bound": part.bound},
        }


def busy_share(kernels: Iterable[tuple[float, float]]) -> float:
    """Return the share of a GPU's time in which something ran on it, from the (begin, end) of what did."""
    spans, covered, last = sorted(kernels), 0.0, float("-inf")
    for begin, end in spans:
        covered += max(0.0, end - max(begin, last))
        last = max(last, end)
    return covered / (last - spans[0][0]) if spans else 0.0


def profile(
    benchmark: Benchmark, config: RunConfig, plan: StepPlan, data_folder: Path | None, *, shown: bool
) -> Profile:
    """Measure the steps of `config` at the positions of `plan`."""
    plan = replace(plan, traced=config.device != "cpu" and torch.cuda.is_available())
    run = profiled(benchmark, config, plan, data_folder=data_folder, shown=shown)
    return Profile(
        run.found,
        run.total_steps,
        run.evaluations,
        run.evaluation_seconds,
        run.ranks.device,
        busy=[busy_share(_kernels(at.trace)) for at in run.found if at.trace is not None],
    )


def _kernels(trace: torch.profiler.profile) -> Iterable[tuple[float, float]]:
    """Return kernels and copies of a trace; ranges that it shows on the device are neither."""
    for event in trace.events() or ():  # type: ignore[no-untyped-call]
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            yield event.time_range.start, event.time_range.end
