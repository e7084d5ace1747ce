"""The task of a benchmark and its rules, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mlevents.rounds import BenchmarkRules, ruleset, rulesets_of
from mlevents.rounds.own_rules import BEYOND_MLPERF

if TYPE_CHECKING:  # `timedrun list` does not wait for torch
    from timedrun.config import RunConfig

UNUSED: Final[dict[str, Any]] = {"micro_batch": 0, "precision": "fp32", "compile": False, "methods": ()}
"""Settings of every config that a training loop has to implement, and their values that need nothing of it."""

EVERYTHING: Final = frozenset({*UNUSED, "ranks"})
"""What a benchmark can support: the settings of `UNUSED`, and several ranks."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSpec:
    """Name, rules and data of one benchmark. It has either the rules of an MLPerf round, by `mlperf_benchmark` and
    `ruleset`, or its `own_rules`.

    Raises:
        ValueError: no or unknown rules, a unit that no run counts, an unknown name in `supports`.
    """

    title: str
    mlperf_benchmark: str = ""
    """MLPerf's own short name, as in `submission_benchmark`: "resnet", "bert"; with `own_rules` their name."""
    ruleset: str = BEYOND_MLPERF
    """The ruleset of the round that has this task, such as "2.0.0"."""
    own_rules: BenchmarkRules | None = None
    """Of a benchmark outside of MLPerf: `benchmark_rules(...)`. Each log records them."""
    default_data: str
    """The dataset that needs no download; `run` uses it if `--data` is not given."""
    supports: frozenset[str] = frozenset()
    """The settings of `EVERYTHING` that the training loop implements; a run with any other is refused."""

    def __post_init__(self) -> None:
        if self.own_rules is not None:
            if known := rulesets_of(self.own_rules.name):
                raise ValueError(f"ruleset {known[-1]} has rules for {self.own_rules.name}; use another name")
            object.__setattr__(self, "mlperf_benchmark", self.own_rules.name)
            object.__setattr__(self, "ruleset", BEYOND_MLPERF)
        if self.rules.unit not in ("epoch", "samples"):
            raise ValueError(f"a run counts epochs or samples, but the rules of {self.rules.name} count {self.unit}")
        if unknown := self.supports - EVERYTHING:
            raise ValueError(
                f"supports has {', '.join(sorted(unknown))}; the settings are: {', '.join(sorted(EVERYTHING))}"
            )

    @property
    def rules(self) -> BenchmarkRules:
        """The benchmark's rules: target, metric, direction, number of runs."""
        found = self.own_rules or ruleset(self.ruleset).benchmarks.get(self.mlperf_benchmark)
        if found is None:
            raise ValueError(
                f"ruleset {self.ruleset} has no {self.mlperf_benchmark!r}; give own_rules=benchmark_rules(...)"
            )
        return found

    @property
    def dataset(self) -> str:
        """The benchmark's own dataset; a run on any other is a demonstration."""
        return self.rules.dataset

    @property
    def metric(self) -> str:
        return self.rules.metric

    @property
    def unit(self) -> str:
        """The unit of progress in configs and in the log: "epoch" or "samples"."""
        return self.rules.unit

    @property
    def progress(self) -> str:
        """Metadata that holds the progress of a run: `epoch_num`, or the one in the rules, such as `samples_count`."""
        return self.rules.progress

    def reached(self, value: float, target: float) -> bool:
        """Return True if `value` of the metric reaches `target`. NaN reaches no target."""
        return value >= target if self.rules.direction == ">=" else value <= target

    def unsupported(self, config: RunConfig, ranks: int) -> list[str]:
        """Return an error message for each setting of `config`, and for several `ranks`, that the training loop does
        not implement: it would be recorded, and nothing else."""
        used = {name: getattr(config, name) for name, unused in UNUSED.items() if getattr(config, name) != unused}
        if "methods" in used:
            used["methods"] = ", ".join(method.name for method in used["methods"])
        if ranks > 1:
            used["ranks"] = ranks
        return [
            f"{name} is {value}, which the training loop of {config.benchmark} does not implement; leave it out, or"
            f' implement it and add "{name}" to supports of its SPEC.'
            for name, value in used.items()
            if name not in self.supports
        ]
