"""MLPerf score of each set of runs, with its spread, confidence interval, progress to target and quality."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import StatisticsError, fmean, geometric_mean, median, stdev
from typing import Final

from judging.ground.race_labels import label_of
from judging.ground.stdio import progress
from judging.scoring.announced_runs import ledger_findings
from judging.scoring.clocks import Clocks, clocks
from judging.scoring.cost import Cost, cost
from judging.scoring.decomposition import TimeParts, run_parts, shared_unit, time_parts
from judging.scoring.olympic import RunSelection, added, as_summarized, mean_interval, olympic, select_runs
from judging.scoring.run_set import UNKNOWN, SetName, copied, is_packaged, mismatch, sets_of
from judging.scoring.target_test import NotTestable, TargetTest, target_test_of
from mlevents import keys
from mlevents.checks.convergence import Convergence, convergence, scaling_factor, scaling_fault
from mlevents.checks.log_check import usual_ruleset
from mlevents.record import read, result_files
from mlevents.rounds import KNOWN_ROUNDS, NO_RULES, BenchmarkRules, rulesets_of
from mlevents.rounds import ruleset as rules_named
from mlevents.rounds.own_rules import usual_ruleset_of
from mlevents.run_status import failure, rules_of, target
from mlevents.summary import RunSummary, summarize


@dataclass(frozen=True, kw_only=True)
class ScoredSet:
    """Set of runs, of one submitter and system on one benchmark. `files` are in natural order."""

    submitter: str
    system: str
    benchmark: str
    division: str
    ruleset: str | None
    dataset: str
    demonstration: bool
    config_name: str
    label: str  # of a side of a race, "" of another set
    target: float | None
    runs_needed: int | None
    unit: str  # of the progress: "epoch", "samples" or another unit of the benchmark
    files: list[str]
    folder: str = ""  # of the logs, relative to the path passed to `score`


@dataclass(frozen=True, kw_only=True)
class SetTimes:
    """Times to train of a set in minutes. `runs` are in the order of the files; None for a run that did not end in
    success at its target.

    Statistics are over the successful runs, of the `window` only if there is one, and None if there are too few; they
    and the score, but not `runs`, are multiplied by `scaling_factor`."""

    runs: list[float | None]
    score_minutes: float | None
    mean: float | None
    median: float | None
    deviation: float | None  # of the sample
    interval: tuple[float, float] | None  # 95 % confidence interval of the mean
    fastest: list[str]  # dropped files
    slowest: list[str]  # dropped files, including failed runs
    window: list[str] | None  # files that were scored, if there are more runs than a submission has
    windows: int | None  # number of windows of consecutive runs that `window` was chosen from
    scaling_factor: float | None  # of scaling.json, by which a closed score is multiplied
    # By which MLCommons' package checker would scale it, since it converges faster than the reference; not applied.
    unapplied_factor: float | None
    undisturbed_minutes: float | None  # the score of the undisturbed runs alone, if some were disturbed
    # Of the mean before `scaling_factor`, without a score of all runs that reached the target.
    parts: TimeParts | None
    # Energy of the GPUs and of the processors, by counters in the logs; why they are not known, if the logs say it.
    gpu_joules: float | None = None
    cpu_joules: float | None = None
    unmeasured: str = ""
    cost: Cost | None = None  # of the score, if a price was asked for


@dataclass(frozen=True, kw_only=True)
class RunMeans:
    """Means over the successful runs, None if no log has the value. Shares are parts of the time to train, 0..1."""

    progress: list[float | None]  # of each run
    quality: float | None  # geometric mean of the final quality, which the open division must report
    evaluation_share: float | None
    first_epoch_share: float | None  # excess of the first epoch over the median later one: cold caches, compilation
    init_minutes: float | None
    gap_minutes: float | None  # from the end of initialization to run_start: no rule limits it


AVERAGED: Final = ("evaluation_share", "first_epoch_share", "init_minutes", "gap_minutes")


@dataclass(frozen=True, kw_only=True)
class Score(RunMeans, Clocks, SetTimes, ScoredSet):  # the fields of the last base come first
    """Score of one set of runs: the set, its times, its other clocks, means of its runs, and what to know beside them.

    The other clocks are never scaled and enter no other value; of a set with a `target_test` they are of all its runs.
    """

    reason: str | None  # for no score; None if there is one
    failures: dict[str, str]  # reasons why a run has no time, by file name
    disturbances: dict[str, str]  # by other load of the machine, by file name
    target_test: TargetTest | None  # if one was asked for and the runs are of one fixed length
    untestable: str | None  # the reason why they are not tested
    notes: list[str]


@dataclass(frozen=True)
class _Runs:
    """Runs of a set by the rules: the failure and the minutes of each, and which of them the score is of."""

    summaries: Sequence[RunSummary]
    benchmark: str
    rules: BenchmarkRules | None
    ruleset: str | None
    demonstration: bool
    failures: Sequence[str | None]
    minutes: list[float | None]
    selected: RunSelection

    @property
    def succeeded(self) -> list[RunSummary]:
        """The chosen runs that reached their target."""
        return [self.summaries[i] for i in self.selected.chosen if not self.failures[i]]

    @property
    def division(self) -> str:
        return _joined(run.division for run in self.summaries)

    @property
    def disturbances(self) -> dict[str, str]:
        """Disturbances of the chosen runs, by file name."""
        runs = (self.summaries[i] for i in self.selected.chosen)
        return {run.path.name: "; ".join(run.disturbances) for run in runs if run.disturbances}


def score(
    paths: Sequence[Path],
    *,
    ruleset: str | None = None,
    show_progress: bool = False,
    price: float | None = None,
    tested_target: float | None = None,
) -> list[Score]:
    """Score every set of result files at `paths` (files, folders, packages, whole rounds), in the order found.

    In the layout <ORG>/results/<system>/<benchmark>/result_N.txt names come from the folders, elsewhere from the logs;
    files of one folder with the same names are a set. One log is in memory at a time. Raises FileNotFoundError if a
    path does not exist, and ValueError for an unknown ruleset.

    Args:
        ruleset: such as "2.0.0"; default: that of the round named by a parent folder (training_results_v2.0), else that
            of the benchmark and of the date of each set's first log.
        show_progress: write the progress of many sets to a terminal.
        price: US dollars per hour, for the cost of each score; default: no cost.
        tested_target: quality that each set's mean is tested to reach; default: no test."""
    if ruleset is not None:
        rules_named(ruleset)
    scores: list[Score] = []
    for folder, (root, files) in progress(log_folders(paths).items(), "sets scored", shown=show_progress):
        name = os.path.relpath(folder, root) if root.is_dir() else ""
        for score in score_folder(folder, [summarize(read(file)) for file in files], ruleset, name, tested_target):
            spent = cost(score.score_minutes, price) if price is not None else None
            scores.append(replace(score, cost=spent))
    return scores


def log_folders(paths: Sequence[Path]) -> dict[Path, tuple[Path, list[Path]]]:
    """Return the folders of the result files at `paths`, each with the path that it was found at and its files, in the
    order found, without those of a race's package if the race's own results are there, too. Raises FileNotFoundError if
    a path does not exist."""
    folders: dict[Path, tuple[Path, dict[Path, None]]] = {}
    for path in paths:
        for file in result_files(path):
            resolved = file.resolve() if file.exists() else file.parent.resolve() / file.name  # a broken link
            folders.setdefault(resolved.parent, (path.resolve(), {}))[1][resolved] = None
    logs = {folder: (root, list(files)) for folder, (root, files) in folders.items()}
    return {folder: own for folder, own in logs.items() if not copied_by_race(folder, own[0])} or logs


def copied_by_race(folder: Path, root: Path) -> bool:
    """Return True if `folder` is in the package of a race whose own results are scored, too."""
    parents = [parent for parent in folder.parents if parent.is_relative_to(root) and parent != root]
    return any(parent.name == "package" and (parent.parent / "race.json").is_file() for parent in parents)


def score_folder(
    folder: Path, summaries: Sequence[RunSummary], ruleset: str | None, name: str, tested_target: float | None = None
) -> list[Score]:
    """Score every set of the logs in `folder`; `name` is that folder in the scores."""
    return [
        score_set(
            runs,
            set_name,
            ruleset=ruleset or scored_ruleset(set_name[2], next((run for run in runs if run.own_rules), runs[0])),
            windows=not is_packaged(folder, [set_name[2]]),
            folder=name,
            tested_target=tested_target,
        )
        for set_name, runs in sets_of(folder, summaries).items()
    ]


def score_set(
    summaries: Sequence[RunSummary],
    name: SetName,
    *,
    ruleset: str | None = None,
    windows: bool = False,
    folder: str = "",
    tested_target: float | None = None,
) -> Score:
    """Score `summaries` as one set: the olympic mean of MLPerf's rules, or the reason why there is none.

    The fastest and the slowest run are dropped and the rest averaged (training_rules.adoc, "Benchmark Results"; more
    are dropped where the benchmark's rules say so). Failed runs may be the dropped slowest. A submission needs its
    benchmark's exact number of runs; a demonstration (data other than the benchmark's own) needs enough runs to leave
    one to average, and is labelled. `windows`: if there are more runs than a submission has, score the window of
    consecutive runs with the median score. `tested_target`: quality that the mean of runs of one length is tested to
    reach."""
    submitter, system, benchmark = name
    runs = _runs(summaries, benchmark, ruleset, windows)
    rules, ruleset, notes = runs.rules, runs.ruleset, list[str]()
    names = [run.path.name for run in summaries]
    own = rules if rules and not runs.demonstration else None
    finished = [run for run, failed in zip(summaries, runs.failures, strict=True) if not failed]
    reason = mismatch(summaries, finished, benchmark)
    if reason is None and ruleset is not None:
        reason = copied(summaries, ruleset, notes)
    converged = factor = None
    if runs.division == keys.CLOSED and ruleset is not None:
        converged = convergence([summaries[i] for i in runs.selected.chosen], rules_named(ruleset))
    try:
        factor = _scaling(summaries[0].path.parent, runs.division, converged, notes)
    except ValueError as error:
        reason = reason or str(error)
    if reason := reason or runs.selected.reason:
        unscored = RunSelection(chosen=runs.selected.chosen, windows=runs.selected.windows)
        runs = replace(runs, selected=unscored)
    times = _times(runs, factor, converged)
    notes += _remarks(runs, times, converged)
    test, untestable = _tested(runs, tested_target)
    counted = [run if test or not failed else None for run, failed in zip(summaries, runs.failures, strict=True)]
    beside = clocks(counted, rules, range(len(counted)) if test else runs.selected.chosen)
    return Score(
        submitter=submitter,
        system=system,
        benchmark=benchmark,
        division=runs.division,
        ruleset=ruleset,
        dataset=_joined((run.dataset for run in summaries), own.dataset if own else UNKNOWN),
        demonstration=runs.demonstration,
        config_name=_joined((run.config_name for run in summaries), ""),
        label=label_of(summaries[0].path.parent),
        target=next((t for run in (*finished, *summaries) if (t := target(run, ruleset)) is not None), None),
        runs_needed=own.runs if own else None,
        unit=rules.unit if rules else "",
        files=names,
        folder=folder,
        **vars(times),
        **vars(beside),
        **vars(_means(runs, notes)),
        reason=reason,
        failures={name: failed for name, failed in zip(names, runs.failures, strict=True) if failed},
        disturbances=runs.disturbances,
        target_test=test,
        untestable=untestable,
        notes=notes,
    )


def _runs(summaries: Sequence[RunSummary], benchmark: str, ruleset: str | None, windows: bool) -> _Runs:
    """Return the runs of a set with their failures by the rules, and those that the score is of."""
    rules, ruleset = rules_of(benchmark, ruleset, summaries)
    demonstration = any(run.is_demonstration for run in summaries)
    failures = [failure(run, ruleset) for run in summaries]
    minutes = [
        None if failed or run.minutes is None else as_summarized(run.minutes)
        for run, failed in zip(summaries, failures, strict=True)
    ]
    if rules:
        selected = select_runs(summaries, minutes, rules, demonstration=demonstration, windows=windows)
    else:
        unknown = "there are no rules for" if ruleset is None else f"ruleset {ruleset} does not have"
        if ruleset == NO_RULES.name:
            unknown = f"there are only rules of {KNOWN_ROUNDS}, not for the round of these logs of"
        selected = RunSelection(chosen=tuple(range(len(summaries))), reason=f"{unknown} benchmark '{benchmark}'")
    return _Runs(summaries, benchmark, rules, ruleset, demonstration, failures, minutes, selected)


def _times(runs: _Runs, factor: float | None, converged: Convergence | None) -> SetTimes:
    """Return the times of a set."""
    selected, minutes, scale = runs.selected, runs.minutes, factor or 1.0
    names = [run.path.name for run in runs.summaries]
    times = [time for i in selected.chosen if (time := minutes[i]) is not None]
    interval = mean_interval(times)
    quiet = None
    if runs.disturbances and runs.rules and selected.minutes is not None:
        calm = [minutes[i] for i in selected.chosen if names[i] not in runs.disturbances]
        quiet = olympic(calm, runs.rules.dropped)
    timed = selected.averaged or [i for i in selected.chosen if minutes[i] is not None]
    counted = [[used for i in timed if (used := runs.summaries[i].joules.get(kind))] for kind in ("gpu", "cpu")]
    gpu, cpu = (added(of) / len(of) * scale if of and len(of) == len(timed) else None for of in counted)
    parts = [part for i in timed if (part := run_parts(runs.summaries[i], runs.rules)) is not None]
    unit = shared_unit(parts) if parts and len(parts) == len(timed) else None
    return SetTimes(
        runs=minutes,
        score_minutes=None if selected.minutes is None else selected.minutes * scale,
        mean=fmean(times) * scale if times else None,
        median=median(times) * scale if times else None,
        deviation=stdev(times) * scale if len(times) > 1 else None,
        interval=(interval[0] * scale, interval[1] * scale) if interval else None,
        fastest=[names[i] for i in selected.fastest],
        slowest=[names[i] for i in selected.slowest],
        window=None if selected.windows is None else [names[i] for i in selected.chosen],
        windows=selected.windows,
        scaling_factor=factor,
        unapplied_factor=converged.factor if converged and factor is None and converged.factor > 1 else None,
        undisturbed_minutes=None if quiet is None else quiet[0] * scale,
        parts=time_parts(parts, unit) if unit else None,
        gpu_joules=gpu,
        cpu_joules=cpu,
        unmeasured=next((run.unmeasured for run in runs.summaries if run.unmeasured), ""),
    )


def _means(runs: _Runs, notes: list[str]) -> RunMeans:
    """Return means over the successful runs; `notes` get the remark on a missing quality."""
    succeeded = runs.succeeded
    return RunMeans(
        progress=[
            None if failed or not run.quality else run.quality[-1].progress
            for run, failed in zip(runs.summaries, runs.failures, strict=True)
        ],
        quality=_geometric_mean([run.final_quality for run in succeeded], notes),
        **{name: _mean(getattr(run, name) for run in succeeded) for name in AVERAGED},
    )


def _remarks(runs: _Runs, times: SetTimes, converged: Convergence | None) -> Iterator[str]:
    """Yield what a reader of the score should know beside it."""
    if (runs.summaries[0].path.parent / "power").is_dir():
        yield "the files in power/ are not read; MLCommons' result_summarizer computes their energy"
    for run in runs.succeeded:
        if run.resumed:
            yield f"{run.path.name} was interrupted and resumed; its time includes the interruption"
    if times.interval and times.interval[0] == 0:
        yield "too few runs with too much spread: the lower confidence limit is not meaningful"
    if runs.division == keys.CLOSED and runs.rules and not runs.demonstration and converged is None:
        yield "score computed without the check that a closed result converges no faster than the reference"
    if runs.division == keys.OPEN and any(failed and failed.startswith("ended at") for failed in runs.failures):
        yield "the open division allows any stopping criterion; this score is the time to the target"
    for finding in ledger_findings([runs.summaries[i] for i in runs.selected.chosen]):
        yield finding.message


def _tested(runs: _Runs, tested_target: float | None) -> tuple[TargetTest | None, str | None]:
    """Return the test that the mean reaches a target, and the reason if there is none."""
    if tested_target is None:
        return None, None
    try:
        if other := mismatch(runs.summaries, (), runs.benchmark) or (
            runs.ruleset and copied(runs.summaries, runs.ruleset, [])
        ):
            raise NotTestable(other)
        return target_test_of(runs.summaries, runs.rules, tested_target), None
    except NotTestable as error:
        return None, str(error)


def _scaling(folder: Path, division: str, converged: Convergence | None, notes: list[str]) -> float | None:
    """Return the factor of scaling.json in `folder` for a closed score, None for a score that is not scaled.

    MLCommons' summarizer scales by the same file, which its package checker writes; it scales open scores too, which no
    rule allows. Raises ValueError if the file holds no factor, or one below 1."""
    given, fault = scaling_factor(folder), scaling_fault(folder, division, converged)
    if given is not None and division == keys.CLOSED:
        if fault and fault[0] == "error":
            raise ValueError(fault[1])
        notes.append(f"the score, its spread and its interval are multiplied by {given}, the factor of scaling.json")
    notes += [fault[1]] if fault else []
    if division != keys.CLOSED or given is not None:
        return given if division == keys.CLOSED else None
    if converged is not None and converged.outcome == "scaled":
        factor = f"{converged.factor:.6f}"
        notes.append(f"{converged}: MLCommons' package checker writes a scaling.json of {factor}, not applied here")
    elif converged is not None and converged.outcome != "as slow":
        notes.append(f"{converged}: {'a closed result may not' if converged.outcome == 'too fast' else 'not compared'}")
    return given


def scored_ruleset(benchmark: str, log: RunSummary) -> str | None:
    """Return the ruleset by which `log` is checked if it has the benchmark, else the benchmark's at the date of `log`;
    None if no round has it."""
    name = usual_ruleset(replace(log, path=Path(os.path.realpath(log.path))))
    return name if name in rulesets_of(benchmark) else usual_ruleset_of(benchmark, log.own_rules, log.started_ms)


def _joined(values: Iterable[str | None], otherwise: str = UNKNOWN) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value)) or otherwise


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _geometric_mean(values: Iterable[float | None], notes: list[str]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    try:
        return geometric_mean(known)
    except (StatisticsError, OverflowError):
        notes.append("the final qualities have no geometric mean: one is not above 0 or not finite")
        return None
