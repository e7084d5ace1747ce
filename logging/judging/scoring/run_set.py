"""Sets of runs: group logs into sets, and check that the runs of a set agree and that none is a copy."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError
from judging.ground.result_files import existing, require_log
from mlevents.checks.result_set import check_set
from mlevents.event import short
from mlevents.record import natural, read
from mlevents.rounds import RULESETS
from mlevents.rounds.own_rules import as_recorded
from mlevents.summary import RunSummary, summarize

UNKNOWN: Final = "unknown"

SetName = tuple[str, str, str]  # submitter, system, benchmark


def is_packaged(folder: Path, benchmarks: Sequence[str | None] = ()) -> bool:
    """Return True if `folder` is <ORG>/results/<system>/<benchmark>, which holds logs of one submission only."""
    known = {name for rules in RULESETS.values() for name in rules.benchmarks} | {*benchmarks}
    results = folder.parent.parent
    return results.name == "results" and (folder.name in known or (results.parent / "systems").is_dir())


def sets_of(folder: Path, runs: Sequence[RunSummary]) -> dict[SetName, list[RunSummary]]:
    """Group the runs of one folder by set, each in the natural order of their files.

    In the layout of packages the folders name the set; elsewhere the logs do, and a log without names belongs to the
    only set of its folder."""
    summaries = sorted(runs, key=lambda summary: natural(summary.path.name))
    if is_packaged(folder, [run.benchmark for run in summaries]):
        return {(folder.parents[2].name, folder.parent.name, folder.name): summaries}
    names = [(run.organization, run.platform, run.benchmark) for run in summaries]
    complete = list(dict.fromkeys(name for name in names if None not in name))
    sets: dict[SetName, list[RunSummary]] = {}
    for name, summary in zip(names, summaries, strict=True):
        taken = complete[0] if None in name and len(complete) == 1 else name
        submitter, system, benchmark = (part or UNKNOWN for part in taken)
        sets.setdefault((submitter, system, benchmark), []).append(summary)
    return sets


def sets_at(path: Path) -> list[tuple[SetName, list[RunSummary]]]:
    """Return all sets at `path`, each with its name; raise UsageError if there is none."""
    folders: dict[Path, list[RunSummary]] = {}
    require_log(path)
    for file in existing(path):
        folders.setdefault(file.parent, []).append(summarize(read(file)))
    sets = [(name, runs) for folder, logs in folders.items() for name, runs in sets_of(folder.resolve(), logs).items()]
    if not sets:
        raise UsageError(f"no result_*.txt found in {path}.")
    return sets


def distinct_sets_at(paths: Iterable[Path]) -> list[tuple[SetName, list[RunSummary]]]:
    """Return all sets at `paths`, each with its name; of copies, such as those in a race's package, the first one."""
    sets: dict[frozenset[str], tuple[SetName, list[RunSummary]]] = {}
    for name, runs in (found for path in paths for found in sets_at(path)):
        sets.setdefault(frozenset(run.sha256 for run in runs), (name, runs))
    return [*sets.values()]


def only_set(path: Path) -> list[RunSummary]:
    """Return the runs of the only set at `path`; raise UsageError if there is not exactly one."""
    sets = sets_at(path)
    if len(sets) > 1:
        named = ", ".join(f"{system} {benchmark} in {runs[0].path.parent}" for (_, system, benchmark), runs in sets)
        raise UsageError(f"{path} holds {len(sets)} sets; pass one of them: {named}.")
    return sets[0][1]


def mismatch(summaries: Sequence[RunSummary], finished: Sequence[RunSummary], benchmark: str) -> str | None:
    """Return the shared setting in which the runs differ, so that they are not one set, or None if they agree.
    `finished`: runs that reached their target; if there are any, only they are compared, since a score drops the
    others, or there is none. `benchmark`: name of the benchmark by their folder."""
    for what, of in _SHARED.items():
        logged = [of(run) for run in finished] or [v for run in summaries if (v := of(run)) is not None]
        values = list(dict.fromkeys(short(value, 300).strip("'") for value in logged))
        if len(values) > 1:
            return f"its runs differ in {what} ({', '.join(values)})"
    if others := {run.benchmark for run in summaries} - {benchmark, None}:
        return f"its logs are of {others.pop()}, but its folder is named {benchmark}"
    return None


def copied(summaries: Sequence[RunSummary], ruleset: str, notes: list[str]) -> str | None:
    """Return the finding that a log is a copy of another, or None.

    A seed used twice is added to `notes` only: the open division need not log seeds."""
    findings = check_set([run for run in summaries if run.events], ruleset)  # empty files are equal, but not runs
    notes += [finding.message for finding in findings if finding.rule == "repeated-seed"]
    return next((f.message for f in findings if f.rule == "copied-log" and f.level == "error"), None)


_SHARED: Final[dict[str, Callable[[RunSummary], Any]]] = {
    "benchmark": lambda run: run.benchmark,
    "division": lambda run: run.division,
    "rules": lambda run: run.own_rules and as_recorded(run.own_rules),
    "dataset": lambda run: run.dataset,
    "quality target": lambda run: run.quality_target,
    "global batch size": lambda run: run.global_batch_size,
    "config": lambda run: run.config_digest or run.config_name,
}
