"""Text of others as a terminal may be sent it."""


def printable(text: str) -> str:
    """`text` with what no terminal should be sent (line breaks, controls, bytes that are no UTF-8) escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """`text` likewise, with its line breaks kept: for messages that are several lines of our own."""
    return "\n".join(map(printable, text.split("\n")))
