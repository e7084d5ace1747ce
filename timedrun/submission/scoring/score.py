"""The MLPerf score of each set of runs and what stands behind it: spread, interval, progress to target, quality."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import StatisticsError, fmean, geometric_mean, median, stdev

from mlevents import keys
from mlevents.record import read, result_files
from mlevents.rounds import BenchmarkRules, round_of_path, rulesets_of
from mlevents.rounds import ruleset as rules_named
from mlevents.summary import RunSummary, summarize
from timedrun.submission.scoring.olympic import as_summarized, mean_interval
from timedrun.submission.scoring.power import has_power, set_energies
from timedrun.submission.scoring.run_selection import CountedRuns, count
from timedrun.submission.scoring.run_set import UNKNOWN, copied, is_packaged, mismatch, sets_of
from timedrun.submission.scoring.run_status import failure, reached, rules_of, target
from timedrun.submission.scoring.scaling import ScalingError, scaling_factor
from timedrun.submission.scoring.score_table import NOTICE, UNVERIFIED, as_csv, as_json, duration, table

__all__ = [
    "NOTICE",
    "UNVERIFIED",
    "Score",
    "as_csv",
    "as_json",
    "duration",
    "failure",
    "reached",
    "score",
    "score_set",
    "table",
    "target",
]


@dataclass(frozen=True, kw_only=True)
class Score:
    """One set of runs, of one submitter and system on one benchmark. Times in minutes.

    `runs`, `files`, `progress` and `energies` (joules) are in the natural order of the files; all but `files` are None
    for a run that did not end in success at its target. What follows `reason` is over the other runs, and where there
    is a `window` over its runs only; None where there are too few. Shares are mean parts of the time to train, 0..1.
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
    """Standard deviation of the sample."""
    interval: tuple[float, float] | None
    """95 %, of the mean."""
    progress: list[float | None]
    unit: str
    """What `progress` counts: "epoch", "samples" or what else the benchmark counts."""
    quality: float | None
    """Geometric mean of the final quality, which the open division must report."""
    evaluation_share: float | None
    first_epoch_share: float | None
    """What the first epoch took beyond the median later one: caches that were cold, compilation."""
    first_throughput: float | None
    """Samples a second of training in the first epoch or block."""
    later_throughput: float | None
    """In the median later one."""
    caches_dropped: bool | None
    """Whether the logs of all runs say so."""
    page_cache_resident: float | None
    """How much of the data lay in the page cache before the clock, 0..1: the most of any run."""
    init_minutes: float | None
    gap_minutes: float | None
    """From the end of initialization to run_start: no rule limits it."""
    files: list[str]
    failures: dict[str, str]
    """Why a run has no time, by its file's name."""
    fastest: list[str]
    """Files dropped as the fastest."""
    slowest: list[str]
    """Files dropped as the slowest, runs that failed among them."""
    window: list[str] | None = None
    """The files that the score is of, where there are more runs than it is taken of."""
    windows: int | None = None
    scaling_factor: float | None = None
    """The factor of scaling.json, which a closed score is multiplied by."""
    energies: list[float | None] = field(default_factory=list)
    energy_joules: float | None = None
    notes: list[str] = field(default_factory=list)
    folder: str = ""
    """Where the logs lie below the path that was asked for."""

    @property
    def label(self) -> str:
        """The score in words, never without "unverified"; for none, that there is none."""
        kind = f"{UNVERIFIED}, demonstration" if self.demonstration else UNVERIFIED
        return f"no score ({kind})" if self.score_minutes is None else f"{duration(self.score_minutes)} ({kind})"


def score(paths: Sequence[Path], *, ruleset: str | None = None) -> list[Score]:
    """Score every set of result files at `paths` (files, folders, packages, whole rounds), in the order found.

    In the layout <ORG>/results/<system>/<benchmark>/result_N.txt names come from the folders, elsewhere from the logs;
    files of one folder with the same names are a set. One log at a time is in memory.

    Args:
        ruleset: such as "2.0.0"; default: that of the round named by a folder above (training_results_v2.0), else the
            benchmark's own.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no such ruleset.
    """
    if ruleset is not None:
        rules_named(ruleset)
    folders: dict[Path, dict[Path, None]] = {}
    asked: dict[Path, Path] = {}
    for path in paths:
        for file in result_files(path):
            found = file.resolve()
            folders.setdefault(found.parent, {})[found] = None
            asked.setdefault(found.parent, path.resolve())
    return [
        score_set(
            summaries,
            submitter=submitter,
            system=system,
            benchmark=benchmark,
            ruleset=ruleset or ruleset_of_round(folder, benchmark),
            windows=not is_packaged(folder, [benchmark]),
            folder=os.path.relpath(folder, asked[folder]) if asked[folder].is_dir() else "",
        )
        for folder, files in folders.items()
        for (submitter, system, benchmark), summaries in sets_of(
            folder, [summarize(read(file)) for file in files]
        ).items()
    ]


def score_set(
    summaries: Sequence[RunSummary],
    *,
    submitter: str,
    system: str,
    benchmark: str,
    ruleset: str | None = None,
    windows: bool = False,
    folder: str = "",
) -> Score:
    """The score of `summaries` as one set: the olympic mean of MLPerf's rules, or the reason why there is none.

    The fastest and the slowest run are dropped and the rest averaged (training_rules.adoc, "Benchmark Results"; more
    where the benchmark's rules say so). Runs that failed may be the dropped slowest. A submission needs its benchmark's
    exact number of runs; a demonstration (other data than the benchmark's own) is computed from as many on as leave one
    to average, and labelled.

    Args:
        windows: of more runs than a submission has, score the window of consecutive ones whose score is the median.
    """
    rules, ruleset = rules_of(benchmark, ruleset)
    demonstration = any(one.is_demonstration for one in summaries)
    names = [one.path.name for one in summaries]
    why = [failure(one, ruleset) for one in summaries]
    runs = [
        None if failed or one.minutes is None else as_summarized(one.minutes)
        for one, failed in zip(summaries, why, strict=True)
    ]
    notes: list[str] = []
    counted = (
        count(summaries, runs, rules, demonstration=demonstration, windows=windows)
        if rules
        else CountedRuns(chosen=tuple(range(len(runs))), reason=_no_rules(benchmark, ruleset))
    )
    finished = [one for one, failed in zip(summaries, why, strict=True) if not failed]
    reason = mismatch(summaries, finished, benchmark)
    if reason is None and ruleset is not None:
        reason = copied(summaries, ruleset, notes)
    division = _said(one.division for one in summaries)
    factor = None
    try:
        factor = _applied(scaling_factor(_folder(summaries)), division, notes)
    except ScalingError as error:
        reason = reason or str(error)
    reason = reason or counted.reason
    energies = set_energies(summaries, runs, notes) if has_power(_folder(summaries)) else []
    joules = [found for i in counted.averaged if energies and (found := energies[i]) is not None]
    behind = [summaries[i] for i in counted.chosen if not why[i]]
    times = [time for i in counted.chosen if (time := runs[i]) is not None]
    interval = mean_interval(times)
    notes += _remarks(behind, division, interval, rules if not demonstration else None)
    if division == keys.OPEN and any(failed and failed.startswith("ended at") for failed in why):
        notes.append("the open division may stop by any criterion; this score is the time to the target all the same")
    scored = counted if reason is None else CountedRuns(chosen=counted.chosen)
    return Score(
        submitter=submitter,
        system=system,
        benchmark=benchmark,
        division=division,
        ruleset=ruleset,
        dataset=_said((one.dataset for one in summaries), rules.dataset if rules and not demonstration else UNKNOWN),
        demonstration=demonstration,
        config_name=_said((one.config_name for one in summaries), ""),
        target=next((found for one in (*finished, *summaries) if (found := target(one, ruleset)) is not None), None),
        runs=runs,
        runs_needed=rules.runs if rules and not demonstration else None,
        score_minutes=None if scored.minutes is None else scored.minutes * (factor or 1.0),
        reason=reason,
        mean=fmean(times) if times else None,
        median=median(times) if times else None,
        deviation=stdev(times) if len(times) > 1 else None,
        interval=interval,
        progress=[
            None if failed or not one.quality else one.quality[-1].progress
            for one, failed in zip(summaries, why, strict=True)
        ],
        unit=rules.unit if rules else "",
        quality=_geometric_mean([one.final_quality for one in behind], notes),
        evaluation_share=_mean(one.evaluation_share for one in behind),
        first_epoch_share=_mean(one.first_epoch_share for one in behind),
        first_throughput=_mean(one.first_throughput for one in behind),
        later_throughput=_mean(one.later_throughput for one in behind),
        caches_dropped=_all(one.caches_dropped for one in behind),
        page_cache_resident=max(
            (share for one in behind if (share := one.page_cache_resident) is not None), default=None
        ),
        init_minutes=_mean(one.init_minutes for one in behind),
        gap_minutes=_mean(one.gap_minutes for one in behind),
        files=names,
        failures={name: failed for name, failed in zip(names, why, strict=True) if failed},
        fastest=[names[i] for i in scored.fastest],
        slowest=[names[i] for i in scored.slowest],
        window=None if counted.windows is None else [names[i] for i in counted.chosen],
        windows=counted.windows,
        scaling_factor=factor,
        energies=energies,
        energy_joules=sum(joules) / len(joules) * (factor or 1.0) if joules and not reason else None,
        notes=notes,
        folder=folder,
    )


def _folder(summaries: Sequence[RunSummary]) -> Path:
    return summaries[0].path.parent


def _no_rules(benchmark: str, ruleset: str | None) -> str:
    if ruleset is None:
        return f"no rules are known here for a benchmark '{benchmark}'"
    return f"ruleset {ruleset} has no benchmark '{benchmark}'"


def ruleset_of_round(folder: Path, benchmark: str) -> str | None:
    """The ruleset of the round that a folder above the logs names; None where none does, or has no such benchmark."""
    found = round_of_path(folder)
    return found if found in rulesets_of(benchmark) else None


def _said(values: Iterable[str | None], otherwise: str = UNKNOWN) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value)) or otherwise


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _all(values: Iterable[bool | None]) -> bool | None:
    known = [value for value in values if value is not None]
    return all(known) if known else None


def _geometric_mean(values: Iterable[float | None], notes: list[str]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    try:
        return geometric_mean(known)
    except (StatisticsError, OverflowError):
        notes.append("the final qualities are not all above 0, or one is beyond measure: they have no geometric mean")
        return None


def _applied(factor: float | None, division: str, notes: list[str]) -> float | None:
    """`factor` where it may be applied. The summarizer multiplies open scores too, which no rule gives a reason for."""
    if factor is None:
        return None
    if division != keys.CLOSED:
        notes.append(f"scaling.json ({factor:g}) is ignored: the rules scale closed results only")
        return None
    notes.append(f"the score is multiplied by the scaling_factor {factor} of scaling.json")
    return factor


def _remarks(
    behind: Sequence[RunSummary],
    division: str,
    interval: tuple[float, float] | None,
    rules: BenchmarkRules | None,
) -> list[str]:
    remarks = [f"{one.path.name} was stopped and resumed; its clock went on" for one in behind if one.resumed]
    if interval and interval[0] == 0:
        remarks.append("the runs are too few and too far apart to bound their mean from below")
    if division == keys.CLOSED and rules is not None:
        remarks.append("whether a closed result converges no faster than the reference is not part of this score")
    return remarks
