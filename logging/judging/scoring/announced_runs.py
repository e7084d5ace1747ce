"""Compare the runs of a set with those that a ledger announced: all of them, the median window, or a selection."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from judging.ground import ledger
from judging.ground.ledger import LEDGER, NOT_STARTED, AnnouncedRun, Ledger
from judging.scoring.olympic import as_summarized, median_window
from judging.scoring.run_set import is_packaged
from mlevents import keys
from mlevents.event import Finding, Level, listed
from mlevents.run_status import rules_of
from mlevents.summary import RunSummary

NAMED: Final = 5  # runs in a finding about many


def find_ledger(folder: Path) -> Path | None:
    """Return the ledger of the set in `folder`: in a package the one with its config, else the nearest one in or above
    the folder."""
    logs = Path(os.path.abspath(folder))
    if not is_packaged(logs):
        return ledger.find(folder)
    implementations = logs.parents[2] / "benchmarks" / logs.name / "implementations"
    return ledger.find(folder, implementations / logs.parent.name / LEDGER)


def ledger_findings(summaries: Sequence[RunSummary]) -> list[Finding]:
    """Return the findings about the runs of one set, all in one folder, by its ledger.

    Errors: a broken chain, a log other than the one its run closed. Warnings: announced runs that are missing (unless
    the set is the median window) or were not closed, logs that were not announced, a torn line, a package without the
    ledger. Otherwise a note.
    Empty for logs that neither appear in a ledger nor name one."""
    path = find_ledger(summaries[0].path.parent) if summaries else None
    if path is not None:
        return list(_compare(summaries, path, ledger.parse(path.read_bytes())))
    if not any(run.ledger_entry for run in summaries):
        return []
    level: Level = "warning" if is_packaged(Path(os.path.abspath(summaries[0].path.parent))) else "note"
    message = "no ledger was found in its folder, its package or above, so the number of announced runs is unknown"
    return [_finding(level, message)]


def _finding(level: Level, message: str, path: Path | None = None, line: int | None = None) -> Finding:
    return Finding(level=level, rule="ledger", message=message, line=line, path=str(path) if path else None)


def _compare(summaries: Sequence[RunSummary], path: Path, book: Ledger) -> Iterator[Finding]:
    at = {os.path.normpath(path.parent / run.result): run for run in book.runs}
    of_entry = {run.entry_sha256: run for run in book.runs}
    runs = [of_entry.get(summary.ledger_entry or "") or at.get(os.path.normpath(summary.path)) for summary in summaries]
    numbers = {run.number for run in runs if run}
    chosen = [run for run in book.runs if run.number in numbers]
    if not chosen and not any(summary.ledger_entry or summary.config_digest for summary in summaries):
        return  # another's logs, in a folder below a ledger
    if book.broken:
        yield _finding("error", f"the chain is broken: {book.broken}; the number of runs is unproven", path)
        return
    for line in book.torn:
        message = "the line was cut by a crash, or by hand if it is the last one; it may have announced a run"
        yield _finding("warning", message, path, line)
    for summary, run in zip(summaries, runs, strict=True):
        if run and run.log_sha256 not in (None, summary.sha256):
            message = f"{summary.path.name} was altered: its SHA-256 is not that of run {run.number} in the ledger"
            yield _finding("error", message, summary.path)
    if unknown := [summary.path.name for summary, run in zip(summaries, runs, strict=True) if run is None]:
        packaged = chosen and is_packaged(Path(os.path.abspath(summaries[0].path.parent)))
        message = f"the ledger does not announce the run of {listed(unknown, NAMED)}"
        yield _finding("error" if packaged else "warning", message, path)
    if chosen:
        yield _finding(*_sentence(summaries, chosen, book))


def _sentence(summaries: Sequence[RunSummary], chosen: Sequence[AnnouncedRun], book: Ledger) -> tuple[Level, str]:
    """Return which of the runs announced with the set's config on its system the `chosen` ones are."""
    kinds, numbers = {run.kind for run in chosen}, {run.number for run in chosen}
    same = [run for run in book.runs if run.kind in kinds]
    announced = [run for run in same if run.number in numbers or run.status != NOT_STARTED]
    missing = [run for run in announced if run.number not in numbers]
    not_closed = [run for run in chosen if run.status is None]
    what = f"{len(announced)} run{'s' * (len(announced) > 1)} announced with this config on this system"
    early = len(same) - len(announced)
    rest = f" (runs in the ledger: {len(book.runs)}{f'; {early} of this config ended before the clock' * (early > 0)})"
    if not missing and not not_closed:
        return "note", f"{'these are all' if len(announced) > 1 else 'this is the'} {what}{rest}"
    rules, _ = rules_of(summaries[0].benchmark or "", None, summaries)
    demonstration = any(run.is_demonstration for run in summaries)
    if rules and not not_closed and (len(chosen) > 2 * rules.dropped if demonstration else len(chosen) == rules.runs):
        times = [_minutes(run) for run in announced]
        window = median_window(times, range(len(announced)), runs=len(chosen), dropped=rules.dropped)
        if [announced[i] for i in window] == chosen:
            return "note", f"this is the median window of the {what}{rest}"
    named = {"not in the set": missing, "never closed": not_closed}
    texts = [f"; {how}: {listed([_named(run, chosen) for run in runs], NAMED)}" for how, runs in named.items() if runs]
    return "warning", f"{len(chosen)} of the {what}{''.join(texts)}{rest}"


def _minutes(run: AnnouncedRun) -> float | None:
    return as_summarized(run.minutes) if run.status == keys.SUCCESS and run.minutes is not None else None


def _named(run: AnnouncedRun, chosen: Sequence[AnnouncedRun]) -> str:
    minutes = _minutes(run)
    end = f"{minutes:.3f} min" if minutes is not None else run.status or "never closed"
    source = "" if run.source in {other.source for other in chosen} else ", other source"
    return f"run {run.number}, {run.result} ({end}{source})"
