"""Validate the values of log events: every reader of MLPerf logs must read them back unchanged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from mlevents.event import MARK

Scalar: TypeAlias = "str | int | float | bool | None | Sequence[Scalar] | Mapping[str, Scalar]"

DEEPEST: Final = 16  # levels of nested lists and dicts in a value; a cycle always exceeds it
LONGEST_REASON: Final = 400  # characters


def require_loggable(value: object, what: str, depth: int = 0) -> None:
    """Raise TypeError or ValueError, naming `what`, unless every reader of MLPerf logs reads `value` back unchanged."""
    if depth > DEEPEST:
        raise ValueError(f"{what} is nested more than {DEEPEST} deep; nothing was logged")
    if value is None or isinstance(value, bool | int):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"{what} is an integer that exceeds 64 bits; nothing was logged")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is {value!r}, which JSON cannot represent; nothing was logged")
    elif isinstance(value, str):
        if MARK in value:
            raise ValueError(f"{what} contains {MARK!r}, at which readers split records; nothing was logged")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{what} is not valid Unicode text: {value!r}; nothing was logged")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            require_loggable(item, f"{what}, item {index},", depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{what} has the key {name!r}, which is not a string; nothing was logged")
            require_loggable(name, f"{what}, name {name!r},", depth + 1)
            require_loggable(item, f"{what}, {name!r},", depth + 1)
    else:
        raise TypeError(
            f"{what} is {type(value).__module__}.{type(value).__qualname__}, not a string, number, bool, None, "
            "list or dict; convert it (a tensor with .item()); nothing was logged"
        )


def loggable(text: str) -> str:
    """Return `text` truncated and escaped so that it can always be logged; used for the reason of a failure."""
    return text.encode("ascii", "backslashreplace").decode("ascii").replace(MARK, "::: MLLOG")[:LONGEST_REASON]
