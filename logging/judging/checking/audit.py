"""Audit a published round: check and score every set, and compare all logs with each other."""

import heapq
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Final

from judging.checking.check_report import CheckResult, verdict
from judging.checking.verdicts import check_logs, ruleset_of
from judging.ground.errors import UsageError
from judging.scoring.score import Score, score_folder
from mlevents.checks.copies import candidate_pairs, copied, identical_logs
from mlevents.checks.result_set import dropped_runs, two_settings
from mlevents.event import Finding, listed
from mlevents.package_checker.tree import check_tree
from mlevents.record import read, result_files
from mlevents.rounds import RULESETS, round_of_path
from mlevents.summary import RunSummary, summarize

RESULTS: Final = 'training_rules.adoc, "Benchmark Results"'
LAYOUT: Final = 'submission_rules.adoc, "Training"'
# Hashes of a log that are compared with the whole round. Of two logs that share a third of all their events, the
# smallest 64 have none in common with a probability of (2/3)^64, 5e-12.
KEPT_HASHES: Final = 64
NAMED: Final = 5  # logs that a finding names


@dataclass(frozen=True)
class Topic:
    """A question that an audit answers: the ids of the findings about it, and the rule that they touch, if any."""

    title: str
    rules: frozenset[str]
    source: str = ""


CORRUPTED: Final = (
    *("record-json", "record-form", "record-key", "record-mark", "record-metadata", "record-number"),
    *("record-repeats", "record-value", "record-type", "record-alone", "one-record-a-line", "log-empty"),
)
TOPICS: Final = (
    Topic("Byte-identical logs in two sets", frozenset({"identical-logs"}), RESULTS),
    Topic("Logs of two sets with events in common", frozenset({"shared-events"}), RESULTS),
    Topic("Copied logs within a set", frozenset({"copied-log"}), RESULTS),
    Topic("Sets with two settings", frozenset({"two-settings", "one-configuration"}), RESULTS),
    Topic("Sets with too few or too many logs", frozenset({"run-count"}), RESULTS),
    Topic("Corrupted lines and files", frozenset(CORRUPTED)),
    Topic("Times with another number of digits, or no times", frozenset({"time-digits", "record-time", "time-unit"})),
    Topic("Systems without a description", frozenset({"system-without-description"}), LAYOUT),
    Topic("Descriptions without results", frozenset({"system-without-results"}), LAYOUT),
    Topic("Sets without a score", frozenset({"no-score"}), RESULTS),
)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Result of an audit. Paths of `results` and of their findings are relative to the round's folder."""

    name: str
    submitters: int
    scores: list[Score]
    results: list[CheckResult]

    @property
    def logs(self) -> int:
        """The number of logs."""
        return sum(result.kind == "log" for result in self.results)

    @property
    def systems(self) -> int:
        """The number of systems with results."""
        return len({(score.submitter, score.system) for score in self.scores})

    def counts(self) -> dict[str, int]:
        """Return the number of findings about each topic, and of other errors."""
        found = [finding for result in self.results for finding in result.findings]
        counts = {topic.title: sum(finding.rule in topic.rules for finding in found) for topic in TOPICS}
        known = frozenset[str]().union(*(topic.rules for topic in TOPICS))
        others = sum(finding.level == "error" and finding.rule not in known for finding in found)
        return {**counts, "Other errors": others}


def audit(root: Path, ruleset: str | None = None) -> Audit:
    """Check, score and compare all results of the round in `root`, a folder SUBMITTER/{results,systems} each.

    One submitter's summaries are in memory at a time, and of each other log a few kilobytes. `ruleset`: default: that
    of the round's folder, else each benchmark's own. Raises UsageError if the folder has no submitter with results."""
    root = Path(os.path.abspath(root))
    folders = sorted(path.parent for path in root.glob("*/results") if path.is_dir())
    if not folders or not any(result_files(folder / "results") for folder in folders):
        raise UsageError(f"{root}: no SUBMITTER/results with result_*.txt; pass the folder of a round.")
    logs: list[RunSummary] = []
    asked = ruleset or round_of_path(root)
    items = [item for folder in folders for item in _submitter(folder, asked, logs)]
    results = [item for item in items if isinstance(item, CheckResult)]
    shared = list(shared_logs(logs, root))
    for number, item in enumerate(results):  # a fact about two sets is listed with one of them
        if item.kind == "set":
            findings = [*item.findings, *(found for found in shared if os.path.dirname(found.path or "") == item.path)]
            results[number] = replace(item, findings=findings, strict=verdict(findings))
    return Audit(
        name=root.name,
        submitters=len(folders),
        scores=[item for item in items if isinstance(item, Score)],
        results=[_relative(result, root) for result in results],
    )


def _submitter(folder: Path, ruleset: str | None, logs: list[RunSummary]) -> Iterator[CheckResult | Score]:
    """Yield the results of a submitter's logs, sets and tree and its scores; add what is kept of its logs to `logs`."""
    summaries: dict[Path, RunSummary] = {}
    for place, files in groupby(result_files(folder / "results"), key=lambda file: file.parent):
        reports, of_set = check_logs(list(files), ruleset)
        runs = [report.summary for report in reports]
        dropped = dropped_runs(runs, RULESETS[ruleset or ruleset_of(reports)])
        for log in reports:
            result = CheckResult.of(log.path, "log", log.findings, log.ruleset, demonstration=log.demonstration)
            yield replace(result, dropped=log.summary in dropped)
        of_set = [finding for finding in of_set if finding.rule != "two-settings"]  # of the scored runs; here of all
        findings = [*of_set, *two_settings(runs, dropped)]
        for score in score_folder(place, runs, ruleset, str(place.relative_to(folder.parent))):
            if score.reason:
                findings.append(Finding(level="warning", rule="no-score", message=score.reason))
            yield score
        yield CheckResult.of(place, "set", findings, ruleset or ruleset_of(reports))
        summaries |= {report.path: report.summary for report in reports}
        logs += map(kept, runs)
    # Copies are compared over the whole round.
    of_tree = (finding for finding in check_tree(folder, summaries, ruleset) if finding.rule != "copied-log")
    yield CheckResult.of(folder, "package", of_tree, ruleset or "")


def kept(log: RunSummary) -> RunSummary:
    """Return the part of a summary that `shared_logs` needs, a tenth of it."""
    smallest = frozenset(heapq.nsmallest(KEPT_HASHES, log.sketch))
    return replace(log, sketch=smallest, shared=(), hyperparameters={}, final_parts={})


def shared_logs(logs: Sequence[RunSummary], root: Path) -> Iterator[Finding]:
    """Yield findings about logs of two sets, as their folders say, that are byte-identical, or that share events.
    `logs`: of the whole round, `kept`. `root`: folder of the round; names in messages are relative to it."""
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
        message = f"{count} byte-identical in {where} ({listed(names, NAMED)})"
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
        message = f"{count} of {where}: {listed(names, NAMED, '; ')}"
        yield Finding(level="error", rule="shared-events", message=message, path=str(pairs[0][1].path))


def _relative(result: CheckResult, root: Path) -> CheckResult:
    """Return a result whose paths, and those of its findings, are relative to `root`."""
    own = os.path.relpath(result.path, root)
    findings = [replace(f, path=os.path.relpath(f.path, root) if f.path else own) for f in result.findings]
    return replace(result, path=own, findings=findings)
