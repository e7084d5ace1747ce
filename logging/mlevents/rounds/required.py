"""Keys that the logs of a round must hold: how often, with which metadata and which values."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from mlevents import keys
from mlevents.rounds.constraint import Constraint, equal

Occurrence = Literal["exactly one", "at least one", "at least two", "any"]

LEAST: Final[dict[Occurrence, int]] = {"exactly one": 1, "at least one": 1, "at least two": 2, "any": 0}


@dataclass(frozen=True, kw_only=True)
class EvaluationPoints:
    """Required positions of evaluations, in metadata samples_count, by the global batch size logged before."""

    words: str
    first: Callable[[float], float]
    every: Callable[[float], float] | None = None  # all evaluations are whole multiples of it
    without_gap: bool = False  # each evaluation follows the last one by `every`


@dataclass(frozen=True, kw_only=True)
class RequiredKey:
    """A key that a log must hold; a log with `alternative` instead is complete, too."""

    key: str
    occurrence: Occurrence = "exactly one"
    alternative: str | None = None
    metadata: tuple[str, ...] = ()  # names that each event's metadata must hold
    metadata_any: tuple[str, ...] = ()  # names of which each event's metadata must hold one
    metadata_with: Mapping[str, str] = field(default_factory=dict)  # if metadata has the first, then also the second
    metadata_values: Mapping[str, Constraint] = field(default_factory=dict)  # of metadata, if present
    vocabulary: tuple[str, ...] | None = None  # the values allowed; None: any
    filled: bool = False  # an empty string is not allowed
    value: tuple[Constraint, ...] = ()  # constraints on every event's value
    some_value: tuple[Constraint, ...] = ()  # constraints on at least one event's value
    points: EvaluationPoints | None = None
    # The values of eval_accuracy events with equal metadata of this name are joined to one mapping by their metadata
    # "metric"; such a key is not an event of its own.
    joined: str | None = None
    repeatable: bool = True  # repetitions of one value are a warning (each rank may log it); False: an error


def once(key: str, *value: Constraint) -> RequiredKey:
    """Return the rule for a key that occurs exactly once, with the constraints `value`."""
    return RequiredKey(key=key, value=value)


def once_each(*names: str, value: tuple[Constraint, ...] = ()) -> tuple[RequiredKey, ...]:
    """Return the rules for keys that occur exactly once each, with the constraints `value`."""
    return tuple(once(name, *value) for name in names)


def fixed(**values: object) -> tuple[RequiredKey, ...]:
    """Return the rules for keys that occur exactly once each, with one value allowed."""
    return tuple(once(key, equal(value)) for key, value in values.items())


def adamw(beta_2: float, epsilon: float, weight_decay: float) -> tuple[RequiredKey, ...]:
    """Return the rules for AdamW's settings in a closed benchmark; beta_1 is 0.9 in all."""
    decay = fixed(opt_adamw_weight_decay=weight_decay)
    return fixed(opt_adamw_beta_1=0.9, opt_adamw_beta_2=beta_2, opt_adamw_epsilon=epsilon) + decay


def named(key: str, *words: str) -> RequiredKey:
    """Return the rule for a key that occurs exactly once, with one of `words`."""
    return RequiredKey(key=key, vocabulary=words)


def evaluation(
    *some_value: Constraint,
    progress: str = keys.EPOCH_NUM,
    value: tuple[Constraint, ...] = (),
    points: EvaluationPoints | None = None,
) -> RequiredKey:
    """Return the rule for a benchmark's eval_accuracy: every event has `progress`, one event meets `some_value`."""
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
    """Return `rules` with each of `others` in place of the rule for its key, or added, and without the keys `without`.

    A later rule file of MLCommons' checker overrides the rule of an earlier one for the same key."""
    by_key = {rule.key: rule for rule in rules} | {rule.key: rule for rule in others}
    return tuple(rule for key, rule in by_key.items() if key not in set(without))
