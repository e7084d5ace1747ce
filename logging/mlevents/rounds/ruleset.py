"""The shape of a round's rules: what a log of it must hold, as frozen data that the checks read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mlevents import keys
from mlevents.rounds.constraint import Constraint

Occurrence = Literal["exactly one", "at least one", "at least two", "any"]
Direction = Literal[">=", "<="]
Unit = Literal["epoch", "samples", "tokens", "steps"]

LEAST: Final[dict[Occurrence, int]] = {"exactly one": 1, "at least one": 1, "at least two": 2, "any": 0}


def reaches(value: float, target: float, direction: Direction, *, excluded: bool = False) -> bool:
    """Return True if `value` is on the good side of `target`, or equal to it unless `excluded`; False for NaN."""
    if excluded and value == target:
        return False
    return value >= target if direction == ">=" else value <= target


@dataclass(frozen=True, kw_only=True)
class EvaluationPoints:
    """Where evaluations must fall, in metadata samples_count, by the global batch size logged before."""

    words: str
    first: Callable[[float], float]
    every: Callable[[float], float] | None = None  # all evaluations are whole multiples of it
    without_gap: bool = False  # each evaluation follows the last one by `every`


@dataclass(frozen=True, kw_only=True)
class RequiredKey:
    """A key a log must hold. With `alternative`, a log that holds that key instead is complete as well."""

    key: str
    occurrence: Occurrence = "exactly one"
    alternative: str | None = None
    metadata: tuple[str, ...] = ()  # names that each event's metadata must hold
    metadata_any: tuple[str, ...] = ()  # names of which each event's metadata must hold one
    metadata_with: Mapping[str, str] = field(default_factory=dict)  # where the first is, the second must be as well
    metadata_values: Mapping[str, Constraint] = field(default_factory=dict)  # where the name is, its value must hold
    vocabulary: tuple[str, ...] | None = None  # the values allowed; None: any
    filled: bool = False  # an empty text is no value
    value: tuple[Constraint, ...] = ()  # what every event's value must meet
    some_value: tuple[Constraint, ...] = ()  # what one event's value, at least, must meet
    points: EvaluationPoints | None = None
    # The values of eval_accuracy events that share this metadata name's value are one value, a mapping by their
    # metadata "metric"; such a key is no event of its own.
    joined: str | None = None
    repeatable: bool = (
        True  # several with one value only warn (each rank may log it); False: a second one moves a clock
    )


def once(key: str, *value: Constraint) -> RequiredKey:
    """A key that stands exactly once, its value under the constraints `value`."""
    return RequiredKey(key=key, value=value)


def once_each(*names: str) -> tuple[RequiredKey, ...]:
    """Keys that stand exactly once each, with any value."""
    return tuple(RequiredKey(key=name) for name in names)


def named(key: str, *words: str) -> RequiredKey:
    """A key that stands exactly once, with one of `words`."""
    return RequiredKey(key=key, vocabulary=words)


def evaluation(
    *some_value: Constraint,
    progress: str = keys.EPOCH_NUM,
    value: tuple[Constraint, ...] = (),
    points: EvaluationPoints | None = None,
) -> RequiredKey:
    """The rule for eval_accuracy of one benchmark: each event names its `progress`, one event meets `some_value`."""
    return RequiredKey(
        key=keys.EVAL_ACCURACY,
        occurrence="at least one",
        metadata=(progress,),
        value=value,
        some_value=some_value,
        points=points,
    )


def replaced(
    rules: Iterable[RequiredKey], *others: RequiredKey, without: Iterable[str] = ()
) -> tuple[RequiredKey, ...]:
    """`rules` with each of `others` in the place of the rule for its key, or added; the keys `without` are left out.

    A later rule file of MLCommons' checker overrides an earlier one's rule for the same key in this way.
    """
    by_key = {rule.key: rule for rule in rules} | {rule.key: rule for rule in others}
    return tuple(rule for key, rule in by_key.items() if key not in set(without))


@dataclass(frozen=True, kw_only=True)
class EvaluationInterval:
    """How much is trained between two evaluations, in the benchmark's unit: linear in the global batch."""

    constant: float
    per_batch: float = 0.0
    multiple: int = 1
    whole_batches: bool = False  # rounded up to whole batches
    padded_epoch: int | None = None  # constant counts epochs of so many samples; epochs are padded to whole batches

    def at(self, global_batch_size: int) -> int:
        """The interval in epochs or samples: the linear function rounded down to a multiple of `multiple`."""
        if self.whole_batches:
            return math.ceil(self.constant / global_batch_size) * global_batch_size
        if self.padded_epoch is not None:
            samples = math.ceil(self.padded_epoch / global_batch_size) * global_batch_size
            return math.ceil(self.constant * self.padded_epoch / samples)
        return math.floor((self.constant + self.per_batch * global_batch_size) / self.multiple) * self.multiple


@dataclass(frozen=True, kw_only=True)
class PartTarget:
    """The target of one part of a quality that is several numbers."""

    target: float
    direction: Direction

    def reached(self, quality: float) -> bool:
        """Return True if `quality` reaches the target."""
        return reaches(quality, self.target, self.direction)


@dataclass(frozen=True, kw_only=True)
class BenchmarkRules:
    """What one benchmark asks in one round.

    `parts` is filled where the quality is several numbers (box and mask precision; FID and CLIP). `metric`, `target`
    and `direction` are then those of the first part, which stands for the run wherever one number is shown.
    """

    name: str
    dataset: str  # the name this project logs under the key "dataset" for the benchmark's own data
    metric: str
    target: float
    direction: Direction
    runs: int
    unit: Unit  # what the metadata `progress` counts
    evaluation_interval: EvaluationInterval | None  # binding in the closed division only; None: none is known here
    target_excluded: bool = False  # the target itself does not reach it
    progress: str = keys.EPOCH_NUM  # the metadata of eval_accuracy that says how far the run is
    dropped: int = 1  # runs left out at each end before the mean is taken
    parts: Mapping[str, PartTarget] = field(default_factory=dict)
    # Whether the parts stand in one eval_accuracy event, or each in its own with its name in the metadata "metric".
    parts_in_one_event: bool = True
    open_keys: tuple[RequiredKey, ...] = ()
    closed_keys: tuple[RequiredKey, ...] = ()
    closed_optimizer_keys: Mapping[str, tuple[RequiredKey, ...]] | None = None  # by the value of opt_name

    def reached(self, quality: float | Mapping[str, float], target: float | None = None) -> bool:
        """Return True if `quality` reaches `target` (default: the benchmark's own).

        A mapping must reach the target of every part. A number is compared with the first part's target alone.
        """
        if isinstance(quality, Mapping):
            return bool(self.parts) and all(
                name in quality and part.reached(quality[name]) for name, part in self.parts.items()
            )
        wanted = self.target if target is None else target
        return reaches(quality, wanted, self.direction, excluded=self.target_excluded)

    def quality_parts(self, value: Any, metric: Any = None) -> dict[str, Any]:
        """The parts that one eval_accuracy event holds: from its value, or named by its metadata `metric`."""
        if self.parts_in_one_event:
            return {name: value[name] for name in self.parts if name in value} if isinstance(value, Mapping) else {}
        return {metric: value} if isinstance(metric, str) and metric in self.parts else {}


@dataclass(frozen=True, kw_only=True)
class Repair:
    """How today's rule file of MLCommons' checker becomes the round's own: `text` in `file` is replaced by `by`."""

    file: str  # beside the checker's module: "training_2.1.0/closed_bert.yaml"
    text: str
    by: str


@dataclass(frozen=True, kw_only=True)
class UpstreamDefect:
    """A known error in a rule file of MLCommons' checker: it fails logs that the round's rules let pass."""

    rule: str  # short fixed id
    benchmark: str
    division: str
    meaning: str
    source: str
    repair: Repair
    today: tuple[RequiredKey, ...] = ()  # the keys as today's rule file has them; (): no log can pass it


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """The rules of one round of MLPerf Training, as MLCommons' compliance checker of that number reads them."""

    name: str  # what MLCommons' tools call it: "2.0.0"
    round: str
    checker: str  # the version of mlperf-logging these data were compared with; "": MLCommons' tools do not know them
    status_words: tuple[str, ...]  # of the log's submission_status; (): the round does not ask for it
    system_status_words: tuple[str, ...] = ()  # of the system description's status; (): any
    init_minutes: Mapping[str, float]  # by division: the longest time from init_start to init_stop
    required: tuple[RequiredKey, ...]
    closed_required: tuple[RequiredKey, ...]
    benchmarks: Mapping[str, BenchmarkRules]
    defects: tuple[UpstreamDefect, ...] = ()

    def keys_of(
        self, benchmark: str | None, division: str | None, optimizer: str | None = None
    ) -> tuple[RequiredKey, ...]:
        """What a log of `benchmark` and `division` must hold; a benchmark's rule takes the place of a general one.

        Anything but "closed" is read as open, and an unknown benchmark adds nothing.
        """
        rules = self.benchmarks.get(benchmark or "")
        if division != keys.CLOSED:
            return replaced(self.required, *(rules.open_keys if rules else ()))
        found = replaced(self.required, *self.closed_required, *(rules.closed_keys if rules else ()))
        by_optimizer = (rules.closed_optimizer_keys or {}) if rules else {}
        return replaced(found, *by_optimizer.get(optimizer or "", ()))

    def defects_of(self, benchmark: str | None, division: str | None) -> tuple[UpstreamDefect, ...]:
        """The known upstream defects that concern logs of `benchmark` and `division`."""
        return tuple(d for d in self.defects if (d.benchmark, d.division) == (benchmark, division))
