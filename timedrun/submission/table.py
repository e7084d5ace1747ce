"""Tables of text, as wide as the terminal that reads them; in files and pipes as wide as their cells."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Final

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_RULE: Final = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_NUMBER: Final = re.compile(r"[-+]?[0-9][0-9.,]*(e-?[0-9]+)?( ?[%x]| (s|min|h|[KMGT]?i?B|of [0-9]+))?")


def natural_width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns of a table none of whose cells is folded."""
    return sum(max(map(len, column)) + 2 for column in zip(header, *rows, strict=True)) - 2


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    """Format a table as lines without colour, numbers right-aligned.

    Args:
        width: fold cells of text so that no line is longer, as far as the numbers allow. Default: do not fold.
    """
    table = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, *cells in zip(header, *rows, strict=True):
        numeric = any(cells) and all(_NUMBER.fullmatch(cell) or cell in ("", "-") for cell in cells)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    console = Console(
        file=text, width=width or natural_width(header, rows) + 2, color_system=None, legacy_windows=False
    )
    console.print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
