"""This program as a command line, for what it starts in processes of its own."""

from __future__ import annotations

import os
import sys


def command(*words: str) -> list[str]:
    """`timedrun WORDS` with this Python. Its packages are found where this process finds them: `python -m` alone would
    look in the working directory first, which may be somebody else's package."""
    here = {"", os.getcwd()}
    return [sys.executable, *([] if here & set(sys.path) else ["-P"]), "-m", "timedrun", *words]
