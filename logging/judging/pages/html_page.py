"""Parts of a self-contained HTML page without scripts: head and escaped text."""

from collections.abc import Iterator
from html import escape
from typing import Final

from mlevents.terminal_escape import printable, printable_lines

STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { overflow-wrap: break-word; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8886; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
summary { cursor: pointer; } details { margin: .5rem 0; } li, code { font-size: .9rem; }
.source { opacity: .75; }
"""


def head(title: str, style: str = "") -> Iterator[str]:
    """Yield the page down to its heading; `style` is added to `STYLE`."""
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{text(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<h1>{text(title)}</h1>"


def text(raw: str) -> str:
    """Escape a text of a log or a round."""
    return escape(printable(raw))


def lines(raw: str) -> str:
    """Escape a text of several lines."""
    return escape(printable_lines(raw))
