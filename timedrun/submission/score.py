"""The MLPerf score of each set of runs and what stands behind it: spread, interval, progress to target, quality."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from scipy import stats

from mlevents import keys
from mlevents.record import RunRecord, read, result_files
from mlevents.rounds import RULESETS, BenchmarkRules, default_ruleset
from mlevents.rounds import ruleset as rules_named

UNVERIFIED = "unverified"
NOTICE = "Result not verified by MLCommons Association."
UNKNOWN = "unknown"
LEAST_DEMONSTRATION = 3
"""Runs below which an olympic mean has nothing left after its fastest and slowest are dropped."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One set of runs, of one submitter and system on one benchmark. Times in minutes.

    `runs` and `progress` are in the natural order of the files, None for a run that did not end in success at its
    target. `mean`, `median`, `deviation` (of the sample), `interval` (95 %, Student's t, of the mean), `quality`
    (geometric mean of the final quality, which the open division must report) and `evaluation_share` (mean part of the
    time spent evaluating, 0..1) are over the other runs; None where there are too few.
    """

    submitter: str
    system: str
    benchmark: str
    division: str
    ruleset: str | None
    dataset: str
    demonstration: bool
    config_name: str
    target: float | None
    runs: list[float | None]
    runs_needed: int | None
    score_minutes: float | None
    reason: str | None
    """Why there is no score; None where there is one."""
    mean: float | None
    median: float | None
    deviation: float | None
    interval: tuple[float, float] | None
    progress: list[float | None]
    unit: str
    """What `progress` counts: "epoch" or "samples"."""
    quality: float | None
    evaluation_share: float | None

    @property
    def label(self) -> str:
        """The score in words, never without "unverified"; for none, that there is none."""
        kind = f"{UNVERIFIED}, demonstration" if self.demonstration else UNVERIFIED
        return f"no score ({kind})" if self.score_minutes is None else f"{duration(self.score_minutes)} ({kind})"


def score(paths: Sequence[Path], *, ruleset: str | None = None) -> list[Score]:
    """Score every set of result files at `paths` (files, folders, packages), in the order found.

    In the layout <ORG>/results/<system>/<benchmark>/result_N.txt names come from the folders, elsewhere from the logs;
    files of one folder with the same names are a set. A log that says nothing of itself belongs to its folder's set.

    Args:
        ruleset: such as "2.0.0"; default: the benchmark's own.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no such ruleset.
    """
    if ruleset is not None:
        rules_named(ruleset)
    files = dict.fromkeys(file.resolve() for path in paths for file in result_files(path))
    folders: dict[Path, list[RunRecord]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(read(file))
    return [
        score_set(records, submitter=submitter, system=system, benchmark=benchmark, ruleset=ruleset)
        for folder, found in folders.items()
        for (submitter, system, benchmark), records in _sets(folder, found).items()
    ]


def score_set(
    records: Sequence[RunRecord], *, submitter: str, system: str, benchmark: str, ruleset: str | None = None
) -> Score:
    """The score of `records` as one set: the olympic mean of MLPerf's rules, or the reason why there is none.

    The fastest and the slowest run are dropped and the rest averaged (training_rules.adoc, "Benchmark Results"). One
    run that failed may be the dropped slowest. A submission needs its benchmark's exact number of runs; a demonstration
    (other data than the benchmark's own) is computed from 3 on and labelled.
    """
    rules, ruleset = _rules(benchmark, ruleset)
    demonstration = any(record.is_demonstration for record in records)
    done = [reached(record, ruleset) for record in records]
    finished = [record for record, ok in zip(records, done, strict=True) if ok]
    runs = [record.minutes if ok else None for record, ok in zip(records, done, strict=True)]
    times = [time for time in runs if time is not None]
    qualities = [record.final_quality for record in finished if record.final_quality is not None]
    shares = [record.evaluation_share for record in finished if record.evaluation_share is not None]
    reason = _mismatch(records, finished, benchmark) or _shortage(runs, rules, demonstration, benchmark)
    return Score(
        submitter=submitter,
        system=system,
        benchmark=benchmark,
        division=_said(record.division for record in records),
        ruleset=ruleset,
        dataset=_said((r.dataset for r in records), rules.dataset if rules and not demonstration else UNKNOWN),
        demonstration=demonstration,
        config_name=_said((record.config_name for record in records), ""),
        target=next((found for record in records if (found := target(record, ruleset)) is not None), None),
        runs=runs,
        runs_needed=rules.runs if rules and not demonstration else None,
        score_minutes=None if reason else _olympic_mean(runs),
        reason=reason,
        mean=fmean(times) if times else None,
        median=median(times) if times else None,
        deviation=stdev(times) if len(times) > 1 else None,
        interval=_interval(times),
        progress=[r.quality[-1].progress if ok and r.quality else None for r, ok in zip(records, done, strict=True)],
        unit=rules.unit if rules else "",
        quality=float(stats.gmean(qualities)) if qualities else None,
        evaluation_share=fmean(shares) if shares else None,
    )


def target(record: RunRecord, ruleset: str | None = None) -> float | None:
    """The quality that a run had to reach: as logged; else the benchmark's, unless the data are not the benchmark's."""
    logged = record.value(keys.QUALITY_TARGET)
    if isinstance(logged, int | float) and not isinstance(logged, bool):
        return float(logged)
    rules, _ = _rules(record.benchmark or "", ruleset)
    return rules.target if rules and not record.is_demonstration else None


def reached(record: RunRecord, ruleset: str | None = None) -> bool:
    """Whether a run has a time, ended in success and its last evaluation met its target.

    A run on the benchmark's own data must meet the benchmark's target too, whatever lower one it set itself. False
    where no rules are known for the benchmark, since then not even the direction of its metric is.
    """
    rules, _ = _rules(record.benchmark or "", ruleset)
    quality, wanted = record.final_quality, target(record, ruleset)
    if rules is None or quality is None or wanted is None or record.minutes is None or record.status != keys.SUCCESS:
        return False
    return rules.reached(quality, wanted) and (record.is_demonstration or rules.reached(quality))


def natural(path: Path) -> list[str | int]:
    """A sort key under which result_2.txt comes before result_10.txt."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def duration(minutes: float) -> str:
    """A time to train in MLPerf's minutes; below one minute in seconds too, which is how one would say it."""
    return f"{minutes:.3f} min" if minutes >= 1 else f"{minutes:.4f} min, {minutes * 60:.2f} s"


def as_json(scores: Sequence[Score]) -> str:
    """The scores and the notice that they are not verified, as JSON text."""
    verified = {"verified": False}
    return json.dumps({"notice": NOTICE, "scores": [verified | asdict(one) for one in scores]}, indent=2) + "\n"


def table(scores: Sequence[Score]) -> str:
    """A plain text table of the scores, "unverified" beside every one, with the notice and the reasons below it."""
    rows = [_HEADER, *(_row(one) for one in scores)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += [f"{one.system} {one.benchmark}: no score, because {one.reason}." for one in scores if one.reason]
    if any(one.demonstration for one in scores):
        lines.append("A demonstration ran on other data than its benchmark's: no MLPerf result compares with its time.")
    return "\n".join([*lines, NOTICE, ""])


_HEADER = ["submitter", "system", "benchmark", "data", "runs", "score", "95 % of the mean", "to target", "quality"]


def _row(one: Score) -> list[str]:
    finished = [time for time in one.runs if time is not None]
    steps = [step for step in one.progress if step is not None]
    span = " to ".join(f"{step:,.0f}" for step in sorted({min(steps), max(steps)})) if steps else ""
    scale, unit = (60.0, "s") if finished and max(finished) < 1 else (1.0, "min")
    return [
        one.submitter,
        one.system,
        one.benchmark,
        one.dataset,
        f"{len(finished)} of {len(one.runs)}",
        one.label,
        f"{one.interval[0] * scale:.3f} to {one.interval[1] * scale:.3f} {unit}" if one.interval else "",
        f"{span} {'epochs' if one.unit == 'epoch' and span != '1' else one.unit}" if span else "",
        f"{one.quality:.5f}" if one.quality is not None else "",
    ]


def _sets(folder: Path, found: Sequence[RunRecord]) -> dict[tuple[str, str, str], list[RunRecord]]:
    """The records of one folder by submitter, system and benchmark."""
    records = sorted(found, key=lambda record: natural(record.path))
    known = {name for rules in RULESETS.values() for name in rules.benchmarks} | {r.benchmark for r in records}
    if folder.name in known and folder.parent.parent.name == "results":
        return {(folder.parents[2].name, folder.parent.name, folder.name): records}
    names = [(record.organization, record.platform, record.benchmark) for record in records]
    complete = list(dict.fromkeys(name for name in names if None not in name))
    sets: dict[tuple[str, str, str], list[RunRecord]] = {}
    for name, record in zip(names, records, strict=True):
        taken = complete[0] if None in name and len(complete) == 1 else name
        submitter, system, benchmark = (part or UNKNOWN for part in taken)
        sets.setdefault((submitter, system, benchmark), []).append(record)
    return sets


def _rules(benchmark: str, ruleset: str | None) -> tuple[BenchmarkRules | None, str | None]:
    if ruleset is None:
        try:
            ruleset = default_ruleset(benchmark)
        except ValueError:
            return None, None
    return rules_named(ruleset).benchmarks.get(benchmark), ruleset


def _said(values: Iterable[str | None], otherwise: str = UNKNOWN) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value)) or otherwise


def _mismatch(records: Sequence[RunRecord], finished: Sequence[RunRecord], benchmark: str) -> str | None:
    """Why the records are no set: they differ in what all runs of a set share, or are the same log twice.

    A run that failed early may not have logged all of it.
    """
    shared: dict[str, Callable[[RunRecord], Any]] = {
        "benchmark": lambda record: record.benchmark,
        "division": lambda record: record.division,
        "dataset": lambda record: record.dataset,
        "quality target": lambda record: record.value(keys.QUALITY_TARGET),
        "global batch size": lambda record: record.value(keys.GLOBAL_BATCH_SIZE),
        "config": lambda record: record.value(keys.CONFIG_DIGEST) or record.config_name,
    }
    for what, of in shared.items():
        logged = [of(record) for record in finished] + [v for record in records if (v := of(record)) is not None]
        values = list(dict.fromkeys(map(str, logged)))
        if len(values) > 1:
            return f"its runs differ in {what} ({', '.join(values)})"
    if others := {record.benchmark for record in records} - {benchmark, None}:
        return f"its logs are of {others.pop()}, its folder is named {benchmark}"
    seen: dict[str, str] = {}
    for record in records:
        if record.events and (twin := seen.setdefault(record.sha256, record.path.name)) != record.path.name:
            return f"{record.path.name} is a copy of {twin}"
    return None


def _shortage(
    runs: Sequence[float | None], rules: BenchmarkRules | None, demonstration: bool, benchmark: str
) -> str | None:
    if rules is None:
        return f"no rules are known here for a benchmark '{benchmark}'"
    if demonstration and len(runs) < LEAST_DEMONSTRATION:
        return f"it has {len(runs)} runs and an olympic mean needs {LEAST_DEMONSTRATION}"
    if not demonstration and len(runs) != rules.runs:
        return f"it has {len(runs)} runs and a submission of {benchmark} has exactly {rules.runs}"
    if (failed := runs.count(None)) > 1:
        return f"{failed} of its {len(runs)} runs did not reach the target and only one may be dropped as the slowest"
    return None


def _olympic_mean(runs: Sequence[float | None]) -> float:
    return fmean(sorted(math.inf if time is None else time for time in runs)[1:-1])


def _interval(times: Sequence[float]) -> tuple[float, float] | None:
    if len(times) < 2:
        return None
    error = stdev(times) / math.sqrt(len(times))
    if error == 0:  # scipy makes this NaN
        return times[0], times[0]
    low, high = stats.t.interval(0.95, len(times) - 1, loc=fmean(times), scale=error)
    return float(low), float(high)
