"""All strict findings about a package: of each log, of each set, and of the tree as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mlevents.check import check_record, check_set
from mlevents.finding import Finding
from mlevents.record import read
from mlevents.rounds import Ruleset
from mlevents.submission.tree import check_tree, result_sets
from mlevents.summary import RunSummary

ORDER: Final = ("error", "warning", "note")


def check_strictly(folder: Path, rules: Ruleset) -> list[Finding]:
    """The findings about the package in `folder`, errors first; their paths are relative to it."""
    found: list[Finding] = []
    read_so_far: dict[Path, RunSummary] = {}
    for one in result_sets(folder):
        summaries: dict[Path, RunSummary] = {}
        for file in one.files:
            record = read(file)
            found += check_record(record, rules)
            summaries[file] = record.summary
        found += check_set(list(summaries.values()), rules)
        read_so_far |= summaries
    found += check_tree(folder, read_so_far, rules.name)
    inside = [replace(one, path=one.path.removeprefix(f"{folder}/")) if one.path else one for one in found]
    return sorted(dict.fromkeys(inside), key=lambda one: ORDER.index(one.level))


def told(findings: Sequence[Finding]) -> list[str]:
    """A line for each finding; what is said alike of several files is said once."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for one in findings:
        places.setdefault((one.level, one.rule, one.message), []).append(one.path or "")
    return [
        f"{level} [{rule}] {paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {message}"
        for (level, rule, message), paths in places.items()
    ]
