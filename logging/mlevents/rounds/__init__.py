"""MLPerf's rounds as data: one module a round, found by the name MLCommons' tools give its ruleset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mlevents import keys
from mlevents.rounds import (
    beyond_mlperf,
    training_2_0,
    training_2_1,
    training_3_0,
    training_3_1,
    training_4_0,
    training_4_1,
    training_5_0,
    training_5_1,
    training_6_0,
    training_6_1,
)
from mlevents.rounds.ruleset import (
    BenchmarkRules,
    EvaluationInterval,
    PartTarget,
    Repair,
    RequiredKey,
    Ruleset,
    UpstreamDefect,
)

__all__ = [
    "BENCHMARK_DATASET",
    "MLPERF_RULESETS",
    "RULESETS",
    "BenchmarkRules",
    "EvaluationInterval",
    "PartTarget",
    "Repair",
    "RequiredKey",
    "Ruleset",
    "UpstreamDefect",
    "default_ruleset",
    "round_of_path",
    "ruleset",
    "rulesets_of",
]

# Oldest first.
MLPERF_RULESETS: Final[dict[str, Ruleset]] = {
    module.RULESET.name: module.RULESET
    for module in (
        training_2_0,
        training_2_1,
        training_3_0,
        training_3_1,
        training_4_0,
        training_4_1,
        training_5_0,
        training_5_1,
        training_6_0,
        training_6_1,
    )
}
RULESETS: Final[dict[str, Ruleset]] = {**MLPERF_RULESETS, beyond_mlperf.RULESET.name: beyond_mlperf.RULESET}

# The data each benchmark is defined on; a log that names other data is a demonstration.
BENCHMARK_DATASET: Final[dict[str, str]] = {
    name: benchmark.dataset for rules in RULESETS.values() for name, benchmark in rules.benchmarks.items()
}

# The rounds of the published open-division results that these two are compared with here.
_REFERENCE: Final = {keys.RESNET: training_2_0.RULESET.name, keys.BERT: training_2_1.RULESET.name}


def ruleset(name: str) -> Ruleset:
    """The rules named `name`, such as "2.0.0". Raises ValueError naming the known ones."""
    try:
        return RULESETS[name]
    except KeyError:
        raise ValueError(f"no ruleset {name!r} is known here; the known ones are {', '.join(RULESETS)}") from None


def rulesets_of(benchmark: str) -> tuple[str, ...]:
    """The names of the rulesets that have `benchmark`, oldest first; () where none has."""
    return tuple(name for name, rules in RULESETS.items() if benchmark in rules.benchmarks)


def default_ruleset(benchmark: str) -> str:
    """The name of the ruleset `benchmark` is checked against unless told otherwise. Raises ValueError if unknown.

    The newest that has it; for ResNet and BERT the round of the published results they are compared with here.
    """
    known = rulesets_of(benchmark)
    if not known:
        raise ValueError(
            f"no rules are known here for a benchmark {benchmark!r}; the known ones are {', '.join(BENCHMARK_DATASET)}"
        )
    return _REFERENCE.get(benchmark, known[-1])


def round_of_path(path: Path | str) -> str | None:
    """The ruleset of the round that `path` lies in: below a folder named like MLCommons' repositories of results.

    Such as "2.1.0" for training_results_v2.1/MosaicML/results/... The innermost counts; None where there is none, or
    where its round is not known here.
    """
    for part in reversed(Path(path).parts):
        found = re.match(r"training_results_v([0-9]+)[.]([0-9]+)(?![0-9.])", part)
        if found:
            name = f"{found[1]}.{found[2]}.0"
            return name if name in MLPERF_RULESETS else None
    return None
