"""Data model of a round's rules: what its logs must hold, as frozen data that the checks read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, Self

from mlevents import keys
from mlevents.rounds.constraint import Constraint
from mlevents.rounds.required import RequiredKey, named, replaced

Direction = Literal[">=", "<="]
Unit = Literal["epoch", "samples", "tokens", "steps"]


def reaches(value: float, target: float, direction: Direction, *, excluded: bool = False) -> bool:
    """Return True if `value` is on the good side of `target`, or equal to it unless `excluded`; False for NaN."""
    if excluded and value == target:
        return False
    return value >= target if direction == ">=" else value <= target


def highest(target: float, direction: Direction) -> float:
    """Return the highest possible quality: 1 of a fraction, as its target tells, else infinity."""
    return 1.0 if direction == ">=" and target <= 1 else math.inf


@dataclass(frozen=True, kw_only=True)
class EvaluationInterval:
    """Amount of training between two evaluations, in the benchmark's unit: linear in the global batch size."""

    constant: float
    per_batch: float = 0.0
    multiple: int = 1
    whole_batches: bool = False  # rounded up to whole batches
    padded_epoch: int | None = None  # `constant` counts epochs of this many samples, padded to whole batches

    def at(self, global_batch_size: int) -> int:
        """Return the interval in epochs or samples: the linear function rounded down to a multiple of `multiple`."""
        if self.whole_batches:
            return math.ceil(self.constant / global_batch_size) * global_batch_size
        if self.padded_epoch is not None:
            samples = math.ceil(self.padded_epoch / global_batch_size) * global_batch_size
            return math.ceil(self.constant * self.padded_epoch / samples)
        return math.floor((self.constant + self.per_batch * global_batch_size) / self.multiple) * self.multiple


@dataclass(frozen=True, kw_only=True)
class PartTarget:
    """Target of one part of a quality with several parts."""

    target: float
    direction: Direction

    def reached(self, quality: float) -> bool:
        return reaches(quality, self.target, self.direction)


@dataclass(frozen=True, kw_only=True)
class BenchmarkRules:
    """Rules of one benchmark in one round.

    `parts` is set if the quality has several numbers (box and mask precision; FID and CLIP). `metric`, `target` and
    `direction` are then those of the first part, which represents the run wherever one number is shown."""

    name: str
    dataset: str  # value of this project's key "dataset" for the benchmark's own data
    metric: str
    target: float
    direction: Direction = ">="
    runs: int
    unit: Unit = "epoch"  # what the metadata `progress` counts
    evaluation_interval: EvaluationInterval | None = None  # binding in the closed division only; None: unknown
    may_skip_evaluations: bool = True  # False: a closed run is evaluated at every interval
    target_excluded: bool = False  # the target must be exceeded
    progress: str = keys.EPOCH_NUM  # metadata of eval_accuracy that holds the progress of the run
    dropped: int = 1  # runs dropped at each end before taking the mean
    # The reference evaluates timestamped checkpoints after the clock (training_rules.adoc, "Quality measure").
    offline_evaluation: bool = False
    cache_clear_by_time: bool = False  # the reference's logger and the script that clears caches share no file position
    from_first_epoch: bool = True  # False: training continues from a checkpoint whose epochs were counted
    first_block: float = 1  # largest number of the first epoch or block
    ends_in_evaluation: bool = False  # the reference's last evaluation has no eval_stop
    parts: Mapping[str, PartTarget] = field(default_factory=dict)
    # All parts in one eval_accuracy event, or each in its own with its name in the metadata "metric".
    parts_in_one_event: bool = True
    # Smallest and largest number of samples of the benchmark's own data, by key; without keys that submitters count in
    # units of their own.
    samples: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Floating-point operations of the reference's model, forward and backward, in training by one unit of progress: a
    # lower bound, without recomputation, embeddings, normalization, and for language models without attention scores.
    training_flop: float | None = None
    open_keys: tuple[RequiredKey, ...] = ()
    closed_keys: tuple[RequiredKey, ...] = ()
    closed_optimizer_keys: Mapping[str, tuple[RequiredKey, ...]] | None = None  # by the value of opt_name
    # What training_rules.adoc fixes in the closed division and the rule files leave open, by key.
    closed_values: Mapping[str, Constraint] = field(default_factory=dict)

    def reached(self, quality: float | Mapping[str, float], target: float | None = None) -> bool:
        """Return True if `quality` reaches `target` (default: the benchmark's own).

        A mapping must reach the target of every part. A number is compared with the first part's target alone."""
        if isinstance(quality, Mapping):
            return bool(self.parts) and all(
                name in quality and part.reached(quality[name]) for name, part in self.parts.items()
            )
        wanted = self.target if target is None else target
        return reaches(quality, wanted, self.direction, excluded=self.target_excluded)

    def requiring(self, *others: RequiredKey, without: Iterable[str] = (), **changed: Any) -> Self:
        """Return these rules with each of `others` required of closed logs, without the keys `without`, and with the
        fields `changed`."""
        return replace(self, closed_keys=replaced(self.closed_keys, *others, without=without), **changed)

    def quality_parts(self, value: Any, metric: Any = None) -> dict[str, Any]:
        """Return the parts that one eval_accuracy event holds: from its value, or named by its metadata `metric`."""
        if self.parts_in_one_event:
            return {name: value[name] for name in self.parts if name in value} if isinstance(value, Mapping) else {}
        return {metric: value} if isinstance(metric, str) and metric in self.parts else {}


def task(name: str, dataset: str, metric: str, target: float, runs: int) -> "partial[BenchmarkRules]":
    """Return what makes the rules of a benchmark of its other fields."""
    return partial(BenchmarkRules, name=name, dataset=dataset, metric=metric, target=target, runs=runs)


LOSS_BY_SAMPLES: Final[Mapping[str, Any]] = {"direction": "<=", "unit": "samples", "progress": keys.SAMPLES_COUNT}
"""Fields of a benchmark whose metric is a loss, and whose runs count samples."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Repair of today's rule file of MLCommons' checker to the round's own: `text` in `file` is replaced with `by`."""

    file: str  # next to the checker's module: "training_2.1.0/closed_bert.yaml"
    text: str
    by: str


@dataclass(frozen=True)
class UpstreamDefect:
    """A known error in a rule file of MLCommons' checker: it fails logs that pass by the round's rules."""

    rule: str  # short fixed id
    benchmark: str
    division: str
    meaning: str
    source: str
    repair: Repair
    today: tuple[RequiredKey, ...] = ()  # the keys as in today's rule file; (): no log can pass it


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """Rules of one round of MLPerf Training, as in MLCommons' compliance checker of that number."""

    name: str  # in MLCommons' tools: "2.0.0"
    round: str
    last_month: str = ""  # UTC month of the submission deadline: the published logs are from then or before
    checker: str  # version of mlperf-logging that these data were compared with; "": unknown to MLCommons' tools
    status_words: tuple[str, ...]  # of the log's submission_status; (): not required in the round
    system_status_words: tuple[str, ...] = ()  # of the system description's status; (): any
    init_minutes: Mapping[str, float]  # by division: the longest time from init_start to init_stop
    required: tuple[RequiredKey, ...]
    closed_required: tuple[RequiredKey, ...]
    benchmarks: Mapping[str, BenchmarkRules]
    defects: tuple[UpstreamDefect, ...] = ()

    def keys_of(
        self, benchmark: str | None, division: str | None, optimizer: str | None = None
    ) -> tuple[RequiredKey, ...]:
        """Return what a log of `benchmark` and `division` must hold; a benchmark's rule replaces the general one.

        Anything but "closed" is treated as open; an unknown benchmark adds nothing."""
        rules = self.benchmarks.get(benchmark or "")
        if division != keys.CLOSED:
            return replaced(self.required, *(rules.open_keys if rules else ()))
        required = replaced(self.required, *self.closed_required, *(rules.closed_keys if rules else ()))
        by_optimizer = (rules.closed_optimizer_keys or {}) if rules else {}
        return replaced(required, *by_optimizer.get(optimizer or "", ()))

    def defects_of(self, benchmark: str | None, division: str | None) -> tuple[UpstreamDefect, ...]:
        """Return the known upstream defects that concern logs of `benchmark` and `division`."""
        return tuple(d for d in self.defects if (d.benchmark, d.division) == (benchmark, division))


def next_round(
    before: Ruleset,
    name: str,
    *others: RequiredKey,
    required: Iterable[RequiredKey] | None = None,
    without: Iterable[str] = (),
    dropped: Iterable[str] = (),
    benchmarks: Iterable[BenchmarkRules] = (),
    listed: Iterable[str] | None = None,
    **changed: Any,
) -> Ruleset:
    """Return the ruleset `name` as its difference from the round `before`.

    Args:
        others: required keys that are added, or replace those of the round before.
        required: keys to start from instead of those of `before`.
        without: keys that are no longer required.
        dropped: names of the benchmarks that end.
        benchmarks: benchmarks that are new or changed.
        listed: allowed values of submission_benchmark, by default the round's benchmarks.
        changed: other fields of Ruleset."""
    own = {key: rules for key, rules in before.benchmarks.items() if key not in set(dropped)}
    own |= {rules.name: rules for rules in benchmarks}
    names = named(keys.SUBMISSION_BENCHMARK, *(own if listed is None else listed))
    start = before.required if required is None else required
    return replace(
        before,
        name=name,
        last_month=changed.pop("last_month", ""),
        round=f"v{name.removesuffix('.0')}",
        required=replaced(start, names, *others, without=without),
        benchmarks=own,
        defects=changed.pop("defects", ()),
        **changed,
    )
