"""Tables as text, Markdown and HTML; text is as wide as its terminal, in files and pipes as wide as its cells."""

import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import rich.table
from rich.box import Box
from rich.console import Console
from rich.text import Text

from judging.ground import stdio
from judging.pages.html_page import text as escaped
from mlevents.terminal_escape import printable

_RULE: Final = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_ONE: Final = r"[-+~]?[$]?[0-9][0-9.,]*(e-?[0-9]+)?( ?[%x]| (s|min|h|[KMGT]?i?B|of [0-9]+))?"
_NUMBER: Final = re.compile(rf"{_ONE}( (-|to) {_ONE})?( \[[0-9][^\]]*\])?")
"""A number, a range or a number with its interval."""
LEAST: Final = 6  # columns that a cell of text keeps in the narrowest terminal


def number(value: float) -> str:
    """Format a positive number: from 1,000 on as a whole one, below with 4 significant digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Table:
    """Table of texts, rendered for a terminal, as Markdown or as HTML; columns of numbers are aligned to the right."""

    header: Sequence[str]  # names of the columns; empty for an HTML table without them
    rows: Sequence[Sequence[str]]

    @property
    def columns(self) -> list[list[str]]:
        """The cells of each column, after its name if it has one."""
        return [list(cells) for cells in zip(*([self.header] if self.header else []), *self.rows, strict=True)]

    @property
    def numeric(self) -> list[bool]:
        """True for each column that holds numbers only."""
        columns = (column[bool(self.header) :] for column in self.columns)
        return [any(of) and all(_NUMBER.fullmatch(cell) or cell in ("", "-") for cell in of) for of in columns]

    @property
    def width(self) -> int:
        """Width of the text if no cell is folded."""
        return sum(max(map(len, cells)) + 2 for cells in self.columns) - 2

    def lines(self, width: int | None = None) -> list[str]:
        """Return the table as lines without colour. `width`: fold cells of text so that no line is longer, as far as
        the numbers allow. Default: do not fold."""
        table = rich.table.Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        widths = _widths(self.columns, self.numeric, width)
        for name, right, own in zip(self.header, self.numeric, widths, strict=True):
            table.add_column(Text(name), justify="right" if right else "left", overflow="fold", width=own)
        for row in self.rows:
            table.add_row(*map(Text, row))
        text = io.StringIO()
        Console(file=text, width=sum(widths) + 3 * len(widths), color_system=None, legacy_windows=False).print(table)
        return [line.rstrip() for line in text.getvalue().splitlines()]

    def show(self) -> None:
        """Print the table so that it fits the terminal."""
        stdio.show("\n".join(map(printable, self.lines(stdio.terminal_columns(sys.stdout)))))

    def mapped(self, function: Callable[[str], str]) -> "Table":
        """Return the table with a function of each text, such as one that escapes it."""
        return Table([*map(function, self.header)], [[*map(function, row)] for row in self.rows])

    def markdown(self) -> list[str]:
        """Return the table as lines of Markdown."""
        header, *rows = (f"| {' | '.join(cells)} |" for cells in (self.header, *self.rows))
        return [header, f"|{'---|' * len(self.header)}", *rows]

    def html(self) -> Iterator[str]:
        """Yield the table as lines of HTML, its texts escaped."""
        yield '<div class="wide"><table>'
        marks = [' class="number"' if right else "" for right in self.numeric]
        for tag, cells in [*([("th", self.header)] if self.header else []), *(("td", row) for row in self.rows)]:
            row = (f"<{tag}{mark}>{escaped(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
            yield f"<tr>{''.join(row)}</tr>"
        yield "</table></div>"


def _widths(columns: Sequence[Sequence[str]], numeric: Sequence[bool], width: int | None) -> list[int]:
    """Return the columns' widths within `width`: the widest is folded first, between words if that is enough."""
    widths = [max(map(len, column)) for column in columns]
    excess = sum(widths) + 2 * (len(widths) - 1) - (width or math.inf)
    words = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
    numbers = [max(map(len, column[1:]), default=0) for column in columns]
    fixed = [number if right else LEAST for number, right in zip(numbers, numeric, strict=True)]
    for least in ([max(pair) for pair in zip(words, fixed, strict=True)], fixed):
        while excess > 0 and (wide := [at for at, own in enumerate(widths) if own > least[at]]):
            widths[max(wide, key=lambda at: widths[at])] -= 1
            excess -= 1
    return widths
