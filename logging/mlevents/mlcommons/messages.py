"""The words of MLCommons' tools, told with the file's own lines, and the values by which a log names rule files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from mlevents.event import MARK

# The checker builds the names of the rule files it executes from these values, unchecked.
NAMES_RULE_FILES: Final = frozenset({"submission_division", "submission_benchmark", "opt_name"})
DIVIDER: Final = "-" * 30
UNPARSED_TOLD: Final = 10  # records a file that cannot be parsed and are told one by one
UNPARSED: Final = "a record cannot be parsed: "
LONGEST: Final = 1000  # characters of a complaint; a test may hold the names of 400 weights
SEVERE: Final = frozenset({"WARNING", "ERROR", "CRITICAL"})
IN_FOLDER: Final = r" Running compliance checks in dir (.*)"


@dataclass(frozen=True)
class Named:
    """What a log says in the values that name rule files: (key, value, line) of each, in the file's order."""

    values: tuple[tuple[str, Any, int], ...]

    def of(self, key: str) -> frozenset[str]:
        """Every text logged under `key`."""
        return frozenset(value for name, value, _ in self.values if name == key and isinstance(value, str))

    def unsafe(self, place: str) -> Iterator[str]:
        """Complaints about values by which the log would make the checker execute a rule file of the log's choice."""
        for key, value, line in self.values:
            if isinstance(value, str) and re.search(r"[/\\]|\.\.", value):
                told = f"{key} holds a path, {ascii(value)}; MLCommons' checker was not run on it"
                yield f"{place}, line {line}: {told}"


def named(path: Path) -> Named:
    """What the log at `path` says in the values that name rule files."""
    found: list[tuple[str, Any, int]] = []
    for number, line in marked_lines(path):
        # An escaped letter may hide a key.
        if "\\" not in line and not any(key in line for key in NAMES_RULE_FILES):
            continue
        try:
            fields = json.loads(line.rpartition(f"{MARK} ")[2])
            key, value = fields["key"], fields["value"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the checker itself complains about such a record
        if isinstance(key, str) and key in NAMES_RULE_FILES:
            found.append((key, value, number))
    return Named(tuple(found))


def marked_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines MLCommons' parser takes for records, with the file's own numbers."""
    with open(path, encoding="latin-1", newline="\n") as file:
        for number, physical in enumerate(file, start=1):
            if f"{MARK} " not in physical:
                continue
            for line in re.split(r"[\r\n]", physical):
                if f"{MARK} " in line:
                    yield number, line.strip()


def complaints(log: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The warnings and errors in a tool's log, one line each, with the file and line, or the folder, they are about."""
    file: Path | None = None
    folder = ""
    unparsed = 0
    for level, entry in [*log, ("INFO", "")]:
        if level not in SEVERE:
            if unparsed > UNPARSED_TOLD:
                yield f"{file}: {unparsed - UNPARSED_TOLD} more records cannot be parsed"
            unparsed = 0
            if about := re.fullmatch(r"Running compliance on file: (.*)", entry, re.DOTALL):
                file = Path(about[1])
            elif into := re.fullmatch(IN_FOLDER, entry, re.DOTALL):
                file, folder = None, into[1]
            elif re.match(r" Running (RCP|Seed) Checker", entry):
                file = None
            continue
        for part in entry.split(f"\n{DIVIDER}\n"):
            complaint = one_line(part)
            if not complaint or complaint in ("FAILED", "Found parsing errors:"):
                continue
            unparsed += complaint.startswith(UNPARSED)
            if complaint.startswith(UNPARSED) and unparsed > UNPARSED_TOLD:
                continue
            if file is not None and not re.match(r"\d+ files? do", complaint):
                yield f"{file}: {_at_own_line(complaint, file)}"
            elif not folder or folder in complaint or complaint.startswith("Skipping benchmark"):
                yield complaint
            else:
                yield f"{folder}: {complaint}"


def convergence(log: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What the package checker says about reference convergence points, each with the folder it is about."""
    folder = ""
    for _, entry in log:
        if into := re.fullmatch(IN_FOLDER, entry, re.DOTALL):
            folder = f"{into[1]}: "
        elif re.match(r" *(RCP [Tt]est|Submission mean epochs|Results scaling)", entry):
            yield f"{folder}{one_line(entry)}"


def one_line(complaint: str) -> str:
    """A complaint without the record it quotes and the checker's own state, cut at `LONGEST` characters."""
    text = complaint.partition("\ncurrent context[s]=")[0]
    lines = [line.strip() for line in text.split("\n") if not line.strip().startswith(MARK)]
    told = re.sub(r"^\^\^ *", UNPARSED, " ".join(line for line in lines if line))
    return told if len(told) <= LONGEST else f"{told[:LONGEST]} ..."


def _at_own_line(complaint: str, file: Path) -> str:
    """`complaint` with the file's own line where the checker gives a record's index."""
    counted = re.search(r"failed in line (\d+)", complaint)
    if counted is None or not file.is_file():
        return complaint
    found = next(islice((number for number, _ in marked_lines(file)), int(counted[1]), None), None)
    return complaint if found is None else complaint.replace(counted[0], f"failed in line {found}", 1)
