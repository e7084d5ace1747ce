"""Compare the runs of a set with those that a ledger announced: all of them, the median window, or a selection."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mlevents.checks.finding import Finding, Level
from mlevents.run_status import rules_of
from mlevents.summary import RunSummary
from timedrun.storage import ledger
from timedrun.storage.ledger import AnnouncedRun, Ledger
from timedrun.submission.scoring.olympic import as_summarized, median_window
from timedrun.submission.scoring.run_set import is_packaged

RULE: Final = "ledger"
NAMED: Final = 5  # runs in a finding about many


def packaged_ledger(benchmark_folder: Path) -> Path:
    """Return the path of the ledger of a packaged set: that of its config and environment."""
    package, system, benchmark = benchmark_folder.parents[2], benchmark_folder.parent.name, benchmark_folder.name
    return package / "benchmarks" / benchmark / "implementations" / system / ledger.LEDGER


def find_ledger(folder: Path) -> Path | None:
    """Return the ledger of the set in `folder`: that of its package, else the nearest one in or above the folder."""
    absolute = Path(os.path.abspath(folder))
    if is_packaged(absolute) and (packaged := packaged_ledger(absolute)).is_file():
        return packaged if folder.is_absolute() else Path(os.path.relpath(packaged))
    return ledger.find(folder)


def ledger_findings(summaries: Sequence[RunSummary]) -> list[Finding]:
    """Return the findings about the runs of one set, all in one folder, by the ledger that belongs to it.

    Errors: a broken chain, a log that is not the one the run closed. Warnings: announced runs that are missing or were
    never closed, unless the set is the median window; logs that were not announced; a torn line. Otherwise a note says
    which of the announced runs these are. Empty for logs that no ledger knows and that do not say they were announced.
    """
    if not summaries:
        return []
    path = find_ledger(summaries[0].path.parent)
    if path is None:
        if not any(run.ledger_entry for run in summaries):
            return []
        message = "its runs were announced in a ledger that is not in the folder or above: how many there were is open"
        return [Finding(level="note", rule=RULE, message=message)]
    try:
        return list(_compare(summaries, path, ledger.read(path)))
    except OSError as error:
        message = f"the ledger cannot be read ({error.strerror}); how many runs were announced is open"
        return [Finding(level="error", rule=RULE, message=message, path=str(path))]


def _compare(summaries: Sequence[RunSummary], path: Path, found: Ledger) -> Iterator[Finding]:
    at = {os.path.normpath(path.parent / run.result): run for run in found.runs}
    matched = {one: found.announced_as(one.ledger_entry) or at.get(os.path.normpath(one.path)) for one in summaries}
    chosen = [run for run in found.runs if run in matched.values()]
    unknown = [one for one in summaries if matched[one] is None]
    if not chosen and not any(one.ledger_entry or one.config_digest for one in summaries):
        return  # another's logs, in a folder below a ledger
    if found.broken:
        message = f"the chain is broken: {found.broken}; the ledger proves nothing"
        yield Finding(level="error", rule=RULE, message=message, path=str(path))
        return
    for line in found.torn:
        message = "the line was cut by a crash, or by hand if it is the last one: a run may have been announced in it"
        yield Finding(level="warning", rule=RULE, message=message, line=line, path=str(path))
    for one, run in matched.items():
        if run and run.closing and run.closing.sha256 != one.sha256:
            message = f"{one.path.name} was altered: its SHA-256 is not that of run {run.run} in the ledger"
            yield Finding(level="error", rule=RULE, message=message, path=str(one.path))
    if unknown:
        message = f"the ledger announced no run of {_listed([one.path.name for one in unknown])}"
        packaged = is_packaged(Path(os.path.abspath(summaries[0].path.parent)))
        yield Finding(level="error" if chosen and packaged else "warning", rule=RULE, message=message, path=str(path))
    if chosen:
        level, message = _sentence(summaries, chosen, found)
        yield Finding(level=level, rule=RULE, message=message)


def _sentence(summaries: Sequence[RunSummary], chosen: Sequence[AnnouncedRun], found: Ledger) -> tuple[Level, str]:
    """Return which of the runs announced with the set's config on its system the `chosen` ones are."""
    kinds = {(run.benchmark, run.config_digest, run.system) for run in chosen}
    same = [run for run in found.runs if (run.benchmark, run.config_digest, run.system) in kinds]
    announced = [run for run in same if run in chosen or not _ended_before_clock(run)]
    missing = [run for run in announced if run not in chosen]
    not_closed = [run for run in chosen if run.closing is None]
    what = f"{_count(len(announced))} announced with this config on this system"
    rest = f" (the ledger holds {_count(len(found.runs))}"
    if early := len(same) - len(announced):
        rest += f"; {early} more of this config ended before the clock"
    rest += ")"
    if not missing and not not_closed:
        return "note", f"{'these are all' if len(announced) > 1 else 'this is the'} {what}{rest}"
    rules, _ = rules_of(summaries[0].benchmark or "", None)
    demonstration = any(run.is_demonstration for run in summaries)
    if rules and not not_closed and (len(chosen) > 2 * rules.dropped if demonstration else len(chosen) == rules.runs):
        times = [_minutes(run) for run in announced]
        window = median_window(times, range(len(announced)), runs=len(chosen), dropped=rules.dropped)
        if [announced[i] for i in window] == chosen:
            return "note", f"this is the median window of the {what}{rest}"
    named = {"not in the set": missing, "never closed": not_closed}
    texts = [f"; {how}: {_listed([_named(run, chosen) for run in runs])}" for how, runs in named.items() if runs]
    return "warning", f"{len(chosen)} of the {what}{''.join(texts)}{rest}"


def _ended_before_clock(run: AnnouncedRun) -> bool:
    return run.closing is not None and run.closing.status == ledger.NOT_STARTED


def _minutes(run: AnnouncedRun) -> float | None:
    minutes = run.closing.result_minutes if run.closing else None
    return None if minutes is None else as_summarized(minutes)


def _named(run: AnnouncedRun, chosen: Sequence[AnnouncedRun]) -> str:
    minutes = _minutes(run)
    end = "never closed" if run.closing is None else run.closing.status if minutes is None else f"{minutes:.3f} min"
    source = "" if any((run.commit, run.difference) == (o.commit, o.difference) for o in chosen) else ", other source"
    return f"run {run.run}, {run.result} ({end}{source})"


def _count(runs: int) -> str:
    return f"{runs} run{'' if runs == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
