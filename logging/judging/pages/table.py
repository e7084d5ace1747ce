"""Tables of text, as wide as the terminal that reads them; in files and pipes as wide as their cells."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Sequence
from typing import Final

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from judging.ground import stdio
from mlevents.terminal_escape import printable

_RULE: Final = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_ONE: Final = r"[-+~]?[$]?[0-9][0-9.,]*(e-?[0-9]+)?( ?[%x]| (s|min|h|[KMGT]?i?B|of [0-9]+))?"
_NUMBER: Final = re.compile(rf"{_ONE}( (-|to) {_ONE})?( \[[0-9][^\]]*\])?")
"""A number, a range or a number with its interval."""
LEAST: Final = 6
"""Columns that a cell of text keeps in the narrowest terminal."""


def number(value: float) -> str:
    """Format a positive number: from 1,000 on as a whole one, below with 4 significant digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def natural_width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns of a table none of whose cells is folded."""
    return sum(max(map(len, column)) + 2 for column in zip(header, *rows, strict=True)) - 2


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    """Format a table as lines without colour, numbers right-aligned.

    Args:
        width: fold cells of text so that no line is longer, as far as the numbers allow. Default: do not fold.
    """
    table = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [list(column) for column in zip(header, *rows, strict=True)]
    numeric = [any(of[1:]) and all(_NUMBER.fullmatch(cell) or cell in ("", "-") for cell in of[1:]) for of in cells]
    widths = _widths(cells, numeric, width)
    for (name, *_), right, own in zip(cells, numeric, widths, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold", width=own)
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=sum(widths) + 3 * len(widths), color_system=None, legacy_windows=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal."""
    stdio.show("\n".join(map(printable, columns(header, rows, width=stdio.terminal_columns(sys.stdout)))))


def _widths(cells: Sequence[Sequence[str]], numeric: Sequence[bool], width: int | None) -> list[int]:
    """Return the columns' widths within `width`: the widest is folded first, between words if that is enough."""
    widths = [max(map(len, column)) for column in cells]
    excess = sum(widths) + 2 * (len(widths) - 1) - (width or math.inf)
    words = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in cells]
    numbers = [max(map(len, column[1:]), default=0) for column in cells]
    fixed = [number if right else LEAST for number, right in zip(numbers, numeric, strict=True)]
    for least in ([max(pair) for pair in zip(words, fixed, strict=True)], fixed):
        while excess > 0 and (wide := [at for at, own in enumerate(widths) if own > least[at]]):
            widths[max(wide, key=lambda at: widths[at])] -= 1
            excess -= 1
    return widths
