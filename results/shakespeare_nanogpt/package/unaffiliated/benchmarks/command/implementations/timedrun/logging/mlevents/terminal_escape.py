"""Escape untrusted text before printing it to a terminal."""


def printable(text: str) -> str:
    """Return `text` with line breaks, control characters and invalid UTF-8 escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return `text` escaped like `printable` but with its line breaks, for messages of several lines of our own."""
    return "\n".join(map(printable, text.split("\n")))


def shortened(name: str, width: int) -> str:
    """Return `name` without control characters, cut in its middle to `width` characters."""
    shown = printable(name)
    tail = (width - 3) // 2
    return shown if len(shown) <= width else f"{shown[: width - 3 - tail]}...{shown[-tail:]}"
