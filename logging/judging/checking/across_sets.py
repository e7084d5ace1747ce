"""Find what only a whole round shows: logs that are in two sets."""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from mlevents.checks.copies import candidate_pairs, copied, identical_logs
from mlevents.event import Finding
from mlevents.record import read
from mlevents.summary import RunSummary, summarize

# Hashes of a log that are compared with the whole round. Of two logs that share a third of all their events, the
# smallest 64 have none in common with a probability of (2/3)^64, 5e-12.
KEPT_HASHES: Final = 64
NAMED: Final = 5  # logs that a finding names


def kept(log: RunSummary) -> RunSummary:
    """Return the part of a summary that `shared_logs` needs, a tenth of it."""
    smallest = frozenset(heapq.nsmallest(KEPT_HASHES, log.sketch))
    return replace(log, sketch=smallest, shared=(), hyperparameters={}, final_parts={})


def shared_logs(logs: Sequence[RunSummary], root: Path) -> Iterator[Finding]:
    """Yield findings about logs of two sets, as their folders say, that are byte-identical, or that share events.

    Args:
        logs: of the whole round, `kept`.
        root: folder of the round; names in messages are relative to it.
    """
    identical = identical_logs(logs)
    by_folders: dict[tuple[Path, ...], list[list[RunSummary]]] = defaultdict(list)
    for group in identical:
        folders = tuple(dict.fromkeys(log.path.parent for log in group))
        if len(folders) > 1:
            by_folders[folders].append(group)
    for folders, groups in by_folders.items():
        names = [" = ".join(dict.fromkeys(log.path.name for log in group)) for group in groups]
        where = " and ".join(str(folder.relative_to(root)) for folder in folders)
        count = f"{len(groups)} logs are" if len(groups) > 1 else "1 log is"
        message = f"{count} byte-identical in {where} ({_first(names)})"
        yield Finding(level="error", rule="identical-logs", message=message, path=str(groups[0][0].path))

    full = lru_cache(maxsize=NAMED)(lambda path: summarize(read(path)))  # candidates are few and are read again
    edited: dict[tuple[Path, Path], list[tuple[RunSummary, RunSummary, str]]] = defaultdict(list)
    for first, second in candidate_pairs([group[0] for group in identical]):
        apart = first.path.parent != second.path.parent
        if apart and (how := copied(full(first.path), full(second.path))):
            edited[first.path.parent, second.path.parent].append((first, second, how))
    for (first_folder, other), pairs in edited.items():
        names = [f"{first.path.name} and {second.path.name} {how.partition(':')[0]}" for first, second, how in pairs]
        where = f"{first_folder.relative_to(root)} and {other.relative_to(root)}"
        count = f"{len(pairs)} pairs of logs" if len(pairs) > 1 else "a pair of logs"
        message = f"{count} of {where}: {_first(names, '; ')}"
        yield Finding(level="error", rule="shared-events", message=message, path=str(pairs[0][1].path))


def _first(names: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return between.join(names[:NAMED]) + more
