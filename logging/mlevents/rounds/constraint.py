"""Constraints of rule files on logged values, as frozen data that can test a value and describe itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

Before = Callable[[str], Any]  # key -> its last value before the checked event, or None

ROUNDING: Final = 1e-5  # tolerance of is_integer() in MLCommons' checker


class Constraint(Protocol):
    """One condition on a value. `words` completes the sentence "the value must be ..."."""

    @property
    def words(self) -> str: ...

    def holds(self, value: Any, before: Before) -> bool:
        """Return True if `value` meets it. May raise what arithmetic on other types raises; see `satisfied`."""
        ...


def satisfied(constraint: Constraint, value: Any, before: Before) -> bool:
    """Return True if `value` meets `constraint`; False if its arithmetic cannot take the value."""
    try:
        return bool(constraint.holds(value, before))
    except (TypeError, ValueError, ArithmeticError, KeyError):
        return False


def is_whole(value: Any) -> bool:
    """Return True if the number `value` is an integer up to rounding, as in MLCommons' checker (mlp_compliance.py)."""
    return bool(abs(round(value) - value) < ROUNDING)


@dataclass(frozen=True)
class Equal:
    """Equal to one value."""

    value: Any

    @property
    def words(self) -> str:
        return repr(self.value)

    def holds(self, value: Any, before: Before) -> bool:
        return bool(value == self.value)


@dataclass(frozen=True)
class Among:
    """One of several values."""

    values: tuple[Any, ...]

    @property
    def words(self) -> str:
        return " or ".join(repr(value) for value in self.values)

    def holds(self, value: Any, before: Before) -> bool:
        return value in self.values


@dataclass(frozen=True, kw_only=True)
class Within:
    """A number between bounds; `above` and `below` are exclusive, `least` and `most` inclusive."""

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None

    @property
    def words(self) -> str:
        bounds = ((">", self.above), (">=", self.least), ("<", self.below), ("<=", self.most))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    def holds(self, value: Any, before: Before) -> bool:
        return bool(
            (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
            and (self.most is None or value <= self.most)
        )


@dataclass(frozen=True)
class Whole:
    """An integer as a number; 2.0 is one."""

    @property
    def words(self) -> str:
        return "a whole number"

    def holds(self, value: Any, before: Before) -> bool:
        return is_whole(value)


@dataclass(frozen=True)
class Integer:
    """A JSON integer; 2.0 is not one."""

    @property
    def words(self) -> str:
        return "an integer"

    def holds(self, value: Any, before: Before) -> bool:
        return isinstance(value, int)


@dataclass(frozen=True)
class MultipleOf:
    """An integer multiple of `step`."""

    step: float

    @property
    def words(self) -> str:
        return f"a whole multiple of {self.step:g}"

    def holds(self, value: Any, before: Before) -> bool:
        return is_whole(value / self.step)


@dataclass(frozen=True)
class PowerOfTwoTimes:
    """`factor` times a power of two, such as a weight decay of 0.0001 * 2^N."""

    factor: float

    @property
    def words(self) -> str:
        return f"{self.factor:g} times a power of two"

    def holds(self, value: Any, before: Before) -> bool:
        return is_whole(math.log2(value / self.factor))


@dataclass(frozen=True)
class Length:
    """A list of `length` elements."""

    length: int

    @property
    def words(self) -> str:
        return f"a list of {self.length}"

    def holds(self, value: Any, before: Before) -> bool:
        return len(value) == self.length


@dataclass(frozen=True)
class Related:
    """A relation to the values of other keys that were logged before: `relation(value, *values of those keys)`."""

    words: str
    of: tuple[str, ...]
    relation: Callable[..., bool]

    def holds(self, value: Any, before: Before) -> bool:
        others = [before(key) for key in self.of]
        if not all(isinstance(number, int | float) for number in (value, *others)):
            return False
        return bool(self.relation(value, *others))


@dataclass(frozen=True)
class Parts:
    """A mapping with each named part, a number within its bounds."""

    bounds: Mapping[str, Within]

    @property
    def words(self) -> str:
        return ", ".join(f"{name} {within.words}".rstrip() for name, within in self.bounds.items())

    def holds(self, value: Any, before: Before) -> bool:
        if not isinstance(value, Mapping):
            return False
        return all(
            isinstance(value.get(name), int | float) and within.holds(value[name], before)
            for name, within in self.bounds.items()
        )
