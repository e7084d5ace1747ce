"""Convert the messages of MLCommons' tools to the lines of the file, and read the values that select rule files."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from mlevents.event import MARK

# The checker builds names of rule files, which it executes, from these values without validation.
NAMES_RULE_FILES: Final = frozenset({"submission_division", "submission_benchmark", "opt_name"})
DIVIDER: Final = "-" * 30
UNPARSED_SHOWN: Final = 10  # unparsable records per file that are reported one by one
UNPARSED: Final = "a record cannot be parsed: "
LONGEST: Final = 1000  # characters of a complaint; a failed test may quote 400 weight names
LONGEST_RECORD: Final = 100_000
"""Characters of a line that MLCommons' parser is given: its time grows with their square, here to 3 s."""
SEVERE: Final = frozenset({"WARNING", "ERROR", "CRITICAL"})


RuleFileValue = tuple[str, str, int]  # key, value and line


def rule_file_values(path: Path) -> list[RuleFileValue]:
    """Return the strings in the log at `path` that select rule files, in file order."""
    values = []
    for number, line in marked_lines(path):
        # Escaped characters may hide a key.
        if "\\" not in line and not any(key in line for key in NAMES_RULE_FILES):
            continue
        try:
            fields = json.loads(line.rpartition(f"{MARK} ")[2])
            key, value = fields["key"], fields["value"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # reported by the checker itself
        if isinstance(key, str) and key in NAMES_RULE_FILES and isinstance(value, str):
            values.append((key, value, number))
    return values


def unsafe(values: Iterable[RuleFileValue], place: str) -> Iterator[str]:
    """Yield complaints about values that would make the checker execute a rule file of the log's choice."""
    for key, value, line in values:
        if re.search(r"[/\\]|\.\.", value):
            yield f"{place}, line {line}: {key} holds a path, {ascii(value)}; MLCommons' checker was not run"


def too_long(path: Path, place: str) -> str | None:
    """Return the complaint about the first record in the log at `path` that is too long for MLCommons' parser."""
    for number, line in marked_lines(path):
        if len(line) > LONGEST_RECORD:
            return (
                f"{place}, line {number} has {len(line):,} characters, and MLCommons' parser gets at most"
                f" {LONGEST_RECORD:,}, since its time grows with their square"
            )
    return None


def marked_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that MLCommons' parser takes for records, with their line numbers in the file."""
    with open(path, encoding="latin-1", newline="\n") as file:
        for number, physical in enumerate(file, start=1):
            if f"{MARK} " not in physical:
                continue
            for line in re.split(r"[\r\n]", physical):
                if f"{MARK} " in line:
                    yield number, line.strip()


def complaints(log: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the warnings and errors of a tool's log, one line each, with the file and line or the folder."""
    file: Path | None = None
    folder = ""
    unparsed = 0
    for level, entry in [*log, ("INFO", "")]:
        if level not in SEVERE:
            if unparsed > UNPARSED_SHOWN:
                yield f"{file}: {unparsed - UNPARSED_SHOWN} more records cannot be parsed"
            unparsed = 0
            if about := re.fullmatch(r"Running compliance on file: (.*)", entry, re.DOTALL):
                file = Path(about[1])
            elif into := re.fullmatch(r" Running compliance checks in dir (.*)", entry, re.DOTALL):
                file, folder = None, into[1]
            elif re.match(r" Running (RCP|Seed) Checker", entry):
                file = None
            continue
        for part in entry.split(f"\n{DIVIDER}\n"):
            complaint = one_line(part)
            if not complaint or complaint in ("FAILED", "Found parsing errors:"):
                continue
            unparsed += complaint.startswith(UNPARSED)
            if complaint.startswith(UNPARSED) and unparsed > UNPARSED_SHOWN:
                continue
            if file is not None and not re.match(r"\d+ files? do", complaint):
                yield f"{file}: {_at_own_line(complaint, file)}"
            elif not folder or folder in complaint or complaint.startswith("Skipping benchmark"):
                yield complaint
            else:
                yield f"{folder}: {complaint}"


def one_line(complaint: str) -> str:
    """Return a complaint without the quoted record and the checker's state, truncated at `LONGEST` characters."""
    text = complaint.partition("\ncurrent context[s]=")[0]
    lines = [line.strip() for line in text.split("\n") if not line.strip().startswith(MARK)]
    text = re.sub(r"^\^\^ *", UNPARSED, " ".join(line for line in lines if line))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _at_own_line(complaint: str, file: Path) -> str:
    """Return `complaint` with the line number of the file in place of the checker's record number."""
    counted = re.search(r"failed in line (\d+)", complaint)
    if counted is None or not file.is_file():
        return complaint
    line = next(islice((number for number, _ in marked_lines(file)), int(counted[1]), None), None)
    return complaint if line is None else complaint.replace(counted[0], f"failed in line {line}", 1)
