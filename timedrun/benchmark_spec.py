"""The MLPerf task of a benchmark, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class BenchmarkSpec:
    """MLPerf name, rules, metric and data of one benchmark."""

    title: str
    mlperf_benchmark: str
    """MLPerf's own short name, as in `submission_benchmark`: "resnet", "bert"."""
    ruleset: str
    """The ruleset of the round that has this task, such as "2.0.0"."""
    dataset: str
    """The benchmark's own dataset; a run on any other is a demonstration."""
    metric: str
    direction: Literal[">=", "<="] = ">="
    """The side of the target on which the metric's good values are."""
    unit: Literal["epoch", "samples"]
    """The unit of `epoch_num` in the log."""
    default_data: str
    """The dataset that needs no download; `run` uses it if `--data` is not given."""

    def reached(self, value: float, target: float) -> bool:
        """Return True if `value` of the metric reaches `target`. NaN reaches no target."""
        return value >= target if self.direction == ">=" else value <= target
