"""The MLPerf task of a benchmark, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlevents import keys
from mlevents.rounds import ruleset


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
    """The unit of progress in configs and in the log."""
    default_data: str
    """The dataset that needs no download; `run` uses it if `--data` is not given."""

    @property
    def progress(self) -> str:
        """Metadata that holds the progress of a run: of a benchmark that counts samples the one in its rules, such as
        `samples_count`; otherwise, and without rules, `epoch_num`.

        Raises:
            ValueError: unknown ruleset.
        """
        rules = ruleset(self.ruleset).benchmarks.get(self.mlperf_benchmark)
        return rules.progress if rules is not None and self.unit == "samples" else keys.EPOCH_NUM

    def reached(self, value: float, target: float) -> bool:
        """Return True if `value` of the metric reaches `target`. NaN reaches no target."""
        return value >= target if self.direction == ">=" else value <= target
