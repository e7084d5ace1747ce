"""Constraints of rule files on logged values, each with a test and its description."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from typing import Any, Final

Before = Callable[[str], Any]  # key -> its last value before the checked event, or None

ROUNDING: Final = 1e-5  # tolerance of is_integer() in MLCommons' checker


@dataclass(frozen=True)
class Constraint:
    """One condition on a value. `words` completes the sentence "the value must be ..."."""

    words: str
    test: Callable[[Any, Before], object] = field(repr=False)

    def holds(self, value: Any, before: Before) -> bool:
        """Return True if `value` meets it; False if its arithmetic cannot take the value."""
        try:
            return bool(self.test(value, before))
        except (TypeError, ValueError, ArithmeticError, LookupError):
            return False


def is_whole(value: Any) -> bool:
    """Return True if the number `value` is an integer up to rounding, as in MLCommons' checker (mlp_compliance.py)."""
    return bool(abs(round(value) - value) < ROUNDING)


WHOLE: Final = Constraint("a whole number", lambda value, _: is_whole(value))  # 2.0 is one
INTEGER: Final = Constraint("an integer", lambda value, _: isinstance(value, int))  # 2.0 is not one


def equal(wanted: Any) -> Constraint:
    return Constraint(repr(wanted), lambda value, _: value == wanted)


def among(*values: Any) -> Constraint:
    return Constraint(" or ".join(map(repr, values)), lambda value, _: value in values)


def within(
    *, above: float | None = None, least: float | None = None, below: float | None = None, most: float | None = None
) -> Constraint:
    """Return the constraint to a number between bounds; `above` and `below` are exclusive, the others inclusive."""
    all_bounds = ((">", gt, above), (">=", ge, least), ("<", lt, below), ("<=", le, most))
    bounds = [(sign, holds, bound) for sign, holds, bound in all_bounds if bound is not None]
    words = " and ".join(f"{sign} {bound:g}" for sign, _, bound in bounds)
    return Constraint(words, lambda value, _: all(holds(value, bound) for _, holds, bound in bounds))


POSITIVE: Final = within(above=0)
NOT_NEGATIVE: Final = within(least=0)


def multiple_of(step: float) -> Constraint:
    return Constraint(f"a whole multiple of {step:g}", lambda value, _: is_whole(value / step))


def power_of_two_times(factor: float) -> Constraint:
    """Return the constraint to `factor` times a power of two, such as a weight decay of 0.0001 * 2^N."""
    return Constraint(f"{factor:g} times a power of two", lambda value, _: is_whole(math.log2(value / factor)))


def related(words: str, of: tuple[str, ...], relation: Callable[..., bool]) -> Constraint:
    """Return the constraint `relation(value, *others)` to numbers, the others logged before under the keys `of`."""

    def test(value: Any, before: Before) -> bool:
        numbers = [value, *map(before, of)]
        return all(isinstance(number, int | float) for number in numbers) and relation(*numbers)

    return Constraint(words, test)


def parts(**bounds: Constraint) -> Constraint:
    """Return the constraint to a mapping with each named part, a number within its bounds."""

    def test(value: Any, before: Before) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(value.get(name), int | float) and bound.holds(value[name], before)
            for name, bound in bounds.items()
        )

    return Constraint(", ".join(f"{name} {bound.words}".rstrip() for name, bound in bounds.items()), test)
