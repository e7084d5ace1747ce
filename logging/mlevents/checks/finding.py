"""A finding: one thing a reader or a check has to say about a log, with its level, rule and place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check says: `error` breaks a rule, `warning` is doubtful but allowed, `note` only informs.

    `rule` is a short fixed id such as "target-reached"; `line` is the file's own line number, counted from 1;
    `path` names the file, and is None where the finding is about no single file.
    """

    level: Level
    rule: str
    message: str
    line: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line) if part is not None)
        return f"{place + ': ' if place else ''}{self.level} [{self.rule}] {self.message}"
