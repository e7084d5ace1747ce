"""Training steps of several configs in turns: time, throughput, share of the accelerator's peak, and memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from judging.comparison.extrapolation import over_schedule
from judging.ground import stdio
from judging.ground.errors import TimedrunError
from judging.pages.table import Table, number
from judging.scoring.interval import Interval, as_values
from mlevents.terminal_escape import printable
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_flops import peak_flops
from timedrun.evidence.analysis.step_times import StepTimes, speed_up, step_times
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig, digest
from timedrun.runner.distributed.process_group import choose_device
from timedrun.runner.run.origin import of_measurements

COUNTED: Final = 3  # steps at each position whose operations are counted: sequences of other lengths take others


@dataclass(frozen=True)
class StepRow:
    """Measurements of one config."""

    label: str  # as the user named the config
    config: RunConfig
    times: StepTimes
    speed_up: Interval | None  # ratio of samples per second to the first config's; None: it is the first one
    tokens_per_sample: float | None  # without padding; None: the samples are not text
    peak: float | None
    """Operations per second that the accelerator reaches at most at the config's precision; None: unknown."""

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Return the quartiles of the seconds of a step: those of each position, integrated over the schedule."""
        quartiles = [statistics.quantiles(steps, n=4, method="inclusive") for steps in self.times.seconds_of_steps]
        low, median, high = (over_schedule(self.times.progress, values) for values in zip(*quartiles, strict=True))
        return low, median, high

    @property
    def samples_per_second(self) -> float:
        """Return the samples per second of a step of median length."""
        return self.config.global_batch / self.quartiles[1]

    @property
    def tokens_per_second(self) -> float | None:
        """Return the tokens per second, padding left out; None: the samples are not text."""
        return None if self.tokens_per_sample is None else self.tokens_per_sample * self.samples_per_second

    @property
    def operations(self) -> float:
        """Return the floating-point operations of a step, as the config computes it."""
        return over_schedule(self.times.progress, self.times.operations)

    def utilisation(self, operations_per_sample: float) -> float | None:
        """Return the share of the accelerator's peak that so many operations a sample amount to; None: peak unknown."""
        return None if self.peak is None else operations_per_sample * self.samples_per_second / self.peak

    def as_values(self, first: StepRow) -> dict[str, Any]:
        """Return the measurements as JSON values, compared with those of the `first` config."""
        gain, size = self.speed_up, self.config.global_batch
        return {
            "given": self.label,
            "config": self.config.name,
            "config_digest": digest(self.config),
            "precision": arithmetic(self.config),
            "global_batch": size,
            "seconds_per_step": dict(zip(("lower_quartile", "median", "upper_quartile"), self.quartiles, strict=True)),
            "samples_per_second": self.samples_per_second,
            "tokens_per_sample": self.tokens_per_sample,
            "tokens_per_second": self.tokens_per_second,
            "operations_per_step": self.operations,
            "operations_per_second": self.operations / self.quartiles[1],
            "peak_operations_per_second": self.peak,
            "mfu": self.utilisation(self.operations / size),
            "mfu_with_the_operations_of_the_first": self.utilisation(first.operations / first.config.global_batch),
            "peak_bytes": self.times.peak_bytes,
            "speed_up": {**as_values(gain), "shown": not gain.verdict_against(1, "", "")} if gain else None,
            "progress": self.times.progress,
            "seconds_of_steps": self.times.seconds_of_steps,
            "operations": self.times.operations,
            "losses": self.times.losses,
        }


def arithmetic(config: RunConfig) -> str:
    """Return the precision that matrix products have: tf32 for fp32 on CUDA if the config allows it."""
    reduced = config.precision == "fp32" and config.tf32 and choose_device(config.device).type == "cuda"
    return "tf32" if reduced else config.precision


def measure_steps(
    benchmark: Benchmark,
    configs: Sequence[tuple[str, RunConfig]],
    plan: StepPlan,
    data_folder: Path | None,
    threads: int,
) -> tuple[list[StepRow], dict[str, str]]:
    """Measure steps of `configs`, (label, config) each, in turns on their own data; return the rows, and by label the
    reasons of those that failed."""
    named = {f"{number}: {label}": config for number, (label, config) in enumerate(configs)}
    times, failed = step_times(benchmark.name, named, plan, data_folder=data_folder, threads=threads, counted=COUNTED)
    tokens: Callable[[RunConfig, Path | None], float] | None = benchmark.hook("datasets", "tokens_per_sample")
    first = next(iter(named))
    rows = []
    for name, config in named.items():
        if name not in times:
            continue
        compared = name != first and first in times
        ratio = rate_ratio(named[first], times[first], config, times[name]) if compared else None
        length = tokens(config, data_folder) if tokens else None
        device = choose_device(config.device)
        on_gpu = device.type == "cuda"
        peak = peak_flops(torch.cuda.get_device_name(device), arithmetic(config)) if on_gpu else None
        rows.append(StepRow(name.partition(": ")[2], config, times[name], ratio, length, peak))
    return rows, {name.partition(": ")[2]: reason for name, reason in failed.items()}


def rate_ratio(base_config: RunConfig, base: StepTimes, config: RunConfig, times: StepTimes) -> Interval:
    """Return the ratio of samples per second, with its interval: that of the steps, times that of the batches."""
    return speed_up(base, times).mapped(lambda ratio: config.global_batch / base_config.global_batch * ratio)


def values_of(rows: Sequence[StepRow], failed: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of configs and where they were measured as JSON values. Raises TimedrunError without any row."""
    if not rows:
        raise TimedrunError("; ".join(f"{label}: {reason}" for label, reason in failed.items()))
    device = choose_device(rows[0].config.device).type
    return {"rows": [row.as_values(rows[0]) for row in rows], "failed": failed, **of_measurements(device)}


def show_steps(rows: Sequence[StepRow], failed: Mapping[str, str]) -> None:
    """Print a row per config and the reasons of those that failed. docs/throughput.md says what the columns count."""
    text = any(row.tokens_per_second is not None for row in rows)
    known = any(row.peak is not None for row in rows)
    header = ["config", "ms a step", "quartiles", "samples/s", *["tokens/s"] * text]
    header += ["GFLOP a step", "GFLOP/s", *["MFU"] * known, "memory", f"x {rows[0].label} [95 %]"]
    cells = []
    for row in rows:
        low, median, high = (seconds * 1e3 for seconds in row.quartiles)
        share, tokens = row.utilisation(row.operations / row.config.global_batch), row.tokens_per_second
        cells.append([row.label, number(median), f"{number(low)} - {number(high)}", number(row.samples_per_second)])
        cells[-1] += ["-" if tokens is None else f"{tokens:,.0f}"] * text
        cells[-1] += [number(row.operations / 1e9), number(row.operations / median / 1e6)]
        cells[-1] += ["-" if share is None else f"{share:.1%}"] * known
        cells[-1] += [f"{row.times.peak_bytes / 2**20:,.0f} MiB", row.speed_up.text("") if row.speed_up else "-"]
    Table(header, cells).show()
    for label, reason in failed.items():
        print(stdio.fitted(printable(f"{label}: failed: {reason}"), 4))
    if not known:
        print("MFU: peak unknown of this processor at this precision")
