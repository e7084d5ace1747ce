"""Rules of MLPerf's rounds as data, by the names of MLCommons' rulesets."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mlevents import keys
from mlevents.rounds import training
from mlevents.rounds.required import RequiredKey as RequiredKey
from mlevents.rounds.ruleset import BenchmarkRules as BenchmarkRules
from mlevents.rounds.ruleset import Ruleset as Ruleset

# For logs of a round or benchmark without rules here: no rules of another round count.
NO_RULES: Final = replace(
    training.BEYOND_MLPERF, name="none", required=(), closed_required=(), benchmarks={}, init_minutes={}
)
# Oldest first.
MLPERF_RULESETS: Final[dict[str, Ruleset]] = {rules.name: rules for rules in training.ROUNDS}
RULESETS: Final[dict[str, Ruleset]] = {
    rules.name: rules for rules in (NO_RULES, *training.ROUNDS, training.BEYOND_MLPERF)
}

# The dataset of each benchmark; a log with another dataset is a demonstration.
BENCHMARK_DATASET: Final[dict[str, str]] = {
    name: benchmark.dataset for rules in RULESETS.values() for name, benchmark in rules.benchmarks.items()
}

KNOWN_ROUNDS: Final = f"{training.ROUNDS[0].round} to {training.ROUNDS[-1].round}"
FIRST_ROUND_MS: Final = 1_514_764_800_000  # 1 January 2018, the year of MLPerf's first round
FIRST_RUN_MS: Final = 1_638_316_800_000  # 1 December 2021: v1.1, the round before the first one here, had closed
LAST_TIME_MS: Final = 253_402_300_800_000  # the year 10000, which datetime lacks

# The rounds of the published open-division results that these benchmarks are compared with.
_REFERENCE: Final = {keys.RESNET: training.V2_0.name, keys.BERT: training.V2_1.name}


def ruleset(name: str) -> Ruleset:
    """Return the rules named `name`, such as "2.0.0". Raises ValueError that lists the known ones."""
    try:
        return RULESETS[name]
    except KeyError:
        raise ValueError(f"no ruleset {name!r}; known: {', '.join(RULESETS)}") from None


def rulesets_of(benchmark: str) -> tuple[str, ...]:
    """Return the names of the rulesets that have `benchmark`, oldest first; () for an unknown one."""
    return tuple(name for name, rules in RULESETS.items() if benchmark in rules.benchmarks)


def is_older(benchmark: str | None, started_ms: float) -> bool:
    """Return True for a run of one of MLPerf's benchmarks in a round before the first one here."""
    known = any(benchmark in rules.benchmarks for rules in training.ROUNDS)
    return known and FIRST_ROUND_MS <= started_ms < FIRST_RUN_MS


def default_ruleset(benchmark: str, started_ms: float | None = None) -> str:
    """Return the name of the default ruleset of `benchmark`: the newest that has it.

    For ResNet and BERT it is the round of the published results that they are compared with. For a run that started at
    `started_ms`, milliseconds since 1970, it is the first round with the benchmark that was open then or later, if any.
    A run before the first round here has `NO_RULES`. Raises ValueError if the benchmark is unknown."""
    known = rulesets_of(benchmark)
    if not known:
        raise ValueError(f"no rules for benchmark {benchmark!r}; known: {', '.join(BENCHMARK_DATASET)}")
    if started_ms is not None and is_older(benchmark, started_ms):
        return NO_RULES.name
    if started_ms is not None and FIRST_RUN_MS <= started_ms < LAST_TIME_MS:
        month = datetime.fromtimestamp(started_ms / 1e3, UTC).strftime("%Y-%m")
        for name in known:
            if month <= RULESETS[name].last_month:
                return name
    return _REFERENCE.get(benchmark, known[-1])


def named_round(path: Path | str) -> str | None:
    """Return the round after which the innermost such folder of `path` is named: "2.1.0" for training_results_v2.1/...,
    MLCommons' repository, or v2.1/..., and "hpc 3.0.0" for hpc_results_v3.0/...; None without such a folder.

    The folder v1.0 of a project is no round unless it holds SUBMITTER/results."""
    parts = Path(path).parts
    for index in reversed(range(len(parts))):
        match = re.match(r"(?:(training|hpc)_results_)?v([0-9]+[.][0-9]+)(?![0-9.])", parts[index])
        if match and (match[1] or match.end() == len(parts[index])):
            name = f"{'hpc ' if match[1] == 'hpc' else ''}{match[2]}.0"
            if name in MLPERF_RULESETS or match[1] or parts[index + 2 : index + 3] == ("results",):
                return name
    return None


def round_of_path(path: Path | str) -> str | None:
    """Return the ruleset of `named_round`; None without such a folder, or for a round without rules here."""
    name = named_round(path)
    return name if name in MLPERF_RULESETS else None
