"""Findings: what a reader or a check reports about a log, with level, rule and place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of a check: an `error` breaks a rule, a `warning` is doubtful but allowed, a `note` only informs.

    `rule` is a fixed short id such as "target-reached"; `line` is the line number in the file, from 1; `path` names the
    file, or is None if the finding concerns no single file.
    """

    level: Level
    rule: str
    message: str
    line: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line) if part is not None)
        return f"{place + ': ' if place else ''}{self.level} [{self.rule}] {self.message}"
