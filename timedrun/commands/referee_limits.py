"""Rare limits of the referee in a file of TOML: `timedrun referee --limits FILE`."""

import math
import tomllib
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError, nearest

NUMBER: Final = (int, float)
KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("prepare_seconds", "answer_seconds", "late_seconds", "tolerance", "margin"), NUMBER),
    **dict.fromkeys(("processes", "rows"), int),
    "scratch": str,
}
LEAST_ROWS: Final = 8


def read_limits(file: Path | None) -> dict[str, Any]:
    """Return the limits in `file`, none without one. Raises UsageError for a file that is none, an unknown limit, and a
    value that is no finite number above 0 or, of `scratch`, no text."""
    if file is None:
        return {}
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}. Nothing was run.") from None
    for name, value in values.items():
        if name not in KINDS:
            raise UsageError(f"{file}: no limit {name!r}.{nearest(name, KINDS)} Limits: {', '.join(KINDS)}.")
        known = isinstance(value, KINDS[name]) and not isinstance(value, bool)
        least = LEAST_ROWS if name == "rows" else math.nextafter(0, 1)
        if not known or (name != "scratch" and not least <= value < math.inf):
            kind = "a text" if name == "scratch" else f"a number of at least {least}" if least >= 1 else "above 0"
            raise UsageError(f"{file}: {name} is {value!r}, not {kind}. Nothing was run.")
    return values
