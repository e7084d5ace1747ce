"""MLPerf score of each set of runs, with its spread, confidence interval, progress to target and quality."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import StatisticsError, fmean, geometric_mean, median, stdev

from judging.ground.stdio import progress
from judging.scoring.announced_runs import ledger_findings
from judging.scoring.clocks import clocks
from judging.scoring.cost import Cost, Price, cost
from judging.scoring.decomposition import TimeParts, run_parts, shared_unit, time_parts
from judging.scoring.olympic import RunSelection, added, as_summarized, mean_interval, olympic, select_runs
from judging.scoring.power import set_energies
from judging.scoring.run_set import UNKNOWN, copied, is_packaged, mismatch, sets_of
from judging.scoring.target_test import NotTestable, TargetTest, target_test_of
from mlevents import keys
from mlevents.checks.convergence import Convergence, convergence, scaling_factor
from mlevents.record import read, result_files
from mlevents.rounds import round_of_path, rulesets_of
from mlevents.rounds import ruleset as rules_named
from mlevents.rounds.own_rules import usual_ruleset_of
from mlevents.run_status import failure, rules_of, target
from mlevents.summary import RunSummary, summarize


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of one set of runs, of one submitter and system on one benchmark. Times are in minutes.

    `runs`, `files`, `progress` and `energies` (joules) are in the natural order of the files; all but `files` are None
    for a run that did not end in success at its target. Statistics after `reason` are over the successful runs, of the
    `window` only if there is one, and None if there are too few; they and the score, but not `runs`, are multiplied by
    `scaling_factor`. Shares are mean parts of the time to train, 0..1.

    `speedrun_minutes` and `steps` are of other clocks (`judging.scoring.clocks`), never scaled, and enter
    no other value; of a set with a `target_test` they are of all its runs.
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
    reason: str | None  # for no score; None if there is one
    mean: float | None
    median: float | None
    deviation: float | None  # of the sample
    interval: tuple[float, float] | None  # 95 % confidence interval of the mean
    progress: list[float | None]
    unit: str  # of `progress`: "epoch", "samples" or another unit of the benchmark
    quality: float | None  # geometric mean of the final quality, which the open division must report
    evaluation_share: float | None
    first_epoch_share: float | None  # excess of the first epoch over the median later one: cold caches, compilation
    first_throughput: float | None  # of training in the first epoch or block, samples per second
    later_throughput: float | None  # the same of the median later one
    caches_dropped: bool | None  # True if all logs say so
    page_cache_resident: float | None  # share of the data in the page cache before the clock: the maximum over the runs
    init_minutes: float | None
    gap_minutes: float | None  # from the end of initialization to run_start: no rule limits it
    files: list[str]
    failures: dict[str, str]  # reasons why a run has no time, by file name
    fastest: list[str]  # dropped files
    slowest: list[str]  # dropped files, including failed runs
    window: list[str] | None = None  # files that were scored, if there are more runs than a submission has
    windows: int | None = None  # number of windows of consecutive runs that `window` was chosen from
    scaling_factor: float | None = None  # of scaling.json, by which a closed score is multiplied
    # By which MLCommons' package checker would scale it, since it converges faster than the reference; not applied.
    unapplied_factor: float | None = None
    disturbances: dict[str, str] = field(default_factory=dict)  # by other load of the machine, by file name
    undisturbed_minutes: float | None = None  # the score of the undisturbed runs alone, if some were disturbed
    cost: Cost | None = None  # of the score, if a price was asked for
    # Of the mean before `scaling_factor`, without a score of all runs that reached the target.
    parts: TimeParts | None = None
    speedrun_runs: list[float | None] = field(default_factory=list)  # minutes of training alone
    speedrun_minutes: float | None = None  # mean
    steps_runs: list[int | None] = field(default_factory=list)  # optimizer steps
    steps: float | None = None  # mean
    steps_counted: bool = False  # by the training loop, not computed from progress and global batch
    target_test: TargetTest | None = None  # if one was asked for and the runs are of one fixed length
    untestable: str | None = None  # the reason why they are not tested
    energies: list[float | None] = field(default_factory=list)
    energy_joules: float | None = None
    notes: list[str] = field(default_factory=list)
    folder: str = ""  # of the logs, relative to the path passed to `score`


def score(
    paths: Sequence[Path],
    *,
    ruleset: str | None = None,
    show_progress: bool = False,
    price: Price | None = None,
    tested_target: float | None = None,
) -> list[Score]:
    """Score every set of result files at `paths` (files, folders, packages, whole rounds), in the order found.

    In the layout <ORG>/results/<system>/<benchmark>/result_N.txt names come from the folders, elsewhere from the logs;
    files of one folder with the same names are a set. One log is in memory at a time.

    Args:
        ruleset: such as "2.0.0"; default: that of the round named by a parent folder (training_results_v2.0), else that
            of the benchmark and of the date of each set's first log.
        show_progress: write the progress of many sets to a terminal.
        price: per hour, for the cost of each score; default: no cost.
        tested_target: quality that each set's mean is tested to reach; default: no test.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: no such ruleset.
    """
    if ruleset is not None:
        rules_named(ruleset)
    found: list[Score] = []
    for folder, (root, files) in progress(log_folders(paths).items(), "sets scored", shown=show_progress):
        named = os.path.relpath(folder, root) if root.is_dir() else ""
        scores = score_folder(folder, [summarize(read(file)) for file in files], ruleset, named, tested_target)
        if price is not None:
            scores = [replace(one, cost=cost(folder / one.files[0], one.score_minutes, price)) for one in scores]
        found += scores
    return found


def log_folders(paths: Sequence[Path]) -> dict[Path, tuple[Path, list[Path]]]:
    """Return the folders of the result files at `paths`, each with the path that it was found at and its files, in the
    order found, without those of a race's package if the race's own results are there, too.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    folders: dict[Path, tuple[Path, dict[Path, None]]] = {}
    for path in paths:
        for file in result_files(path):
            resolved = file.resolve()
            folders.setdefault(resolved.parent, (path.resolve(), {}))[1][resolved] = None
    found = {folder: (root, list(files)) for folder, (root, files) in folders.items()}
    return {folder: one for folder, one in found.items() if not copied_by_race(folder, one[0])} or found


def copied_by_race(folder: Path, root: Path) -> bool:
    """Return True if `folder` is in the package of a race whose own results are scored, too."""
    above = [one for one in folder.parents if one.is_relative_to(root) and one != root]
    return any(one.name == "package" and (one.parent / "race.json").is_file() for one in above)


def score_folder(
    folder: Path,
    summaries: Sequence[RunSummary],
    ruleset: str | None,
    named: str,
    tested_target: float | None = None,
) -> list[Score]:
    """Score every set of the logs in `folder`; `named` is that folder in the scores."""
    return [
        score_set(
            members,
            submitter=submitter,
            system=system,
            benchmark=benchmark,
            ruleset=ruleset or scored_ruleset(benchmark, next((m for m in members if m.own_rules), members[0])),
            windows=not is_packaged(folder, [benchmark]),
            folder=named,
            tested_target=tested_target,
        )
        for (submitter, system, benchmark), members in sets_of(folder, summaries).items()
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
    tested_target: float | None = None,
) -> Score:
    """Score `summaries` as one set: the olympic mean of MLPerf's rules, or the reason why there is none.

    The fastest and the slowest run are dropped and the rest averaged (training_rules.adoc, "Benchmark Results"; more
    are dropped where the benchmark's rules say so). Failed runs may be the dropped slowest. A submission needs its
    benchmark's exact number of runs; a demonstration (data other than the benchmark's own) needs enough runs to leave
    one to average, and is labelled.

    Args:
        windows: if there are more runs than a submission has, score the window of consecutive runs with the median
            score.
        tested_target: quality that the mean of runs of one length is tested to reach.
    """
    rules, ruleset = rules_of(benchmark, ruleset, summaries)
    demonstration = any(one.is_demonstration for one in summaries)
    names = [one.path.name for one in summaries]
    why = [failure(one, ruleset) for one in summaries]
    runs = [
        None if failed or one.minutes is None else as_summarized(one.minutes)
        for one, failed in zip(summaries, why, strict=True)
    ]
    notes: list[str] = []
    if rules:
        selected = select_runs(summaries, runs, rules, demonstration=demonstration, windows=windows)
    else:
        unknown = "there are no rules for" if ruleset is None else f"ruleset {ruleset} does not have"
        selected = RunSelection(chosen=tuple(range(len(runs))), reason=f"{unknown} benchmark '{benchmark}'")
    finished = [one for one, failed in zip(summaries, why, strict=True) if not failed]
    reason = mismatch(summaries, finished, benchmark)
    if reason is None and ruleset is not None:
        reason = copied(summaries, ruleset, notes)
    division = _joined(one.division for one in summaries)
    folder_of_logs = summaries[0].path.parent
    converged = None
    if division == keys.CLOSED and ruleset is not None:
        converged = convergence([summaries[i] for i in selected.chosen], rules_named(ruleset))
    factor = None
    try:
        factor = _scaling(folder_of_logs, division, converged, notes)
    except ValueError as error:
        reason = reason or str(error)
    reason = reason or selected.reason
    energies = set_energies(summaries, runs, notes) if (folder_of_logs / "power").is_dir() else []
    joules = [found for i in selected.averaged if energies and (found := energies[i]) is not None]
    succeeded = [summaries[i] for i in selected.chosen if not why[i]]
    times = [time for i in selected.chosen if (time := runs[i]) is not None]
    interval = mean_interval(times)
    resumed = (one.path.name for one in succeeded if one.resumed)
    notes += [f"{name} was interrupted and resumed; its time includes the interruption" for name in resumed]
    if interval and interval[0] == 0:
        notes.append("too few runs with too much spread: the lower confidence limit is not meaningful")
    if division == keys.CLOSED and rules and not demonstration and converged is None:
        notes.append("score computed without the check that a closed result converges no faster than the reference")
    if division == keys.OPEN and any(failed and failed.startswith("ended at") for failed in why):
        notes.append("the open division allows any stopping criterion; this score is the time to the target")
    notes += [one.message for one in ledger_findings([summaries[i] for i in selected.chosen])]
    disturbed = {names[i]: "; ".join(load) for i in selected.chosen if (load := summaries[i].disturbances)}
    quiet = None
    if disturbed and rules and reason is None:
        quiet = olympic([runs[i] for i in selected.chosen if names[i] not in disturbed], rules.dropped)
    scale = factor or 1.0
    dropped = [one.caches_dropped for one in succeeded if one.caches_dropped is not None]
    resident = [one.page_cache_resident for one in succeeded if one.page_cache_resident is not None]
    test, untestable = None, None
    if tested_target is not None:
        try:
            if other := mismatch(summaries, (), benchmark) or (ruleset and copied(summaries, ruleset, [])):
                raise NotTestable(other)
            test = target_test_of(summaries, rules, tested_target)
        except NotTestable as error:
            untestable = str(error)
    counting = [one if test or not failed else None for one, failed in zip(summaries, why, strict=True)]
    beside = clocks(counting, rules, range(len(runs)) if test else selected.chosen)
    scored = selected if reason is None else RunSelection(chosen=selected.chosen)
    timed = scored.averaged or [i for i in scored.chosen if runs[i] is not None]
    parts = [one for i in timed if (one := run_parts(summaries[i], rules)) is not None]
    unit = shared_unit(parts) if parts and len(parts) == len(timed) else None
    return Score(
        submitter=submitter,
        system=system,
        benchmark=benchmark,
        division=division,
        ruleset=ruleset,
        dataset=_joined((one.dataset for one in summaries), rules.dataset if rules and not demonstration else UNKNOWN),
        demonstration=demonstration,
        config_name=_joined((one.config_name for one in summaries), ""),
        target=next((found for one in (*finished, *summaries) if (found := target(one, ruleset)) is not None), None),
        runs=runs,
        runs_needed=rules.runs if rules and not demonstration else None,
        score_minutes=None if scored.minutes is None else scored.minutes * scale,
        reason=reason,
        mean=fmean(times) * scale if times else None,
        median=median(times) * scale if times else None,
        deviation=stdev(times) * scale if len(times) > 1 else None,
        interval=(interval[0] * scale, interval[1] * scale) if interval else None,
        progress=[
            None if failed or not one.quality else one.quality[-1].progress
            for one, failed in zip(summaries, why, strict=True)
        ],
        unit=rules.unit if rules else "",
        quality=_geometric_mean([one.final_quality for one in succeeded], notes),
        evaluation_share=_mean(one.evaluation_share for one in succeeded),
        first_epoch_share=_mean(one.first_epoch_share for one in succeeded),
        first_throughput=_mean(one.first_throughput for one in succeeded),
        later_throughput=_mean(one.later_throughput for one in succeeded),
        caches_dropped=all(dropped) if dropped else None,
        page_cache_resident=max(resident, default=None),
        init_minutes=_mean(one.init_minutes for one in succeeded),
        gap_minutes=_mean(one.gap_minutes for one in succeeded),
        files=names,
        failures={name: failed for name, failed in zip(names, why, strict=True) if failed},
        fastest=[names[i] for i in scored.fastest],
        slowest=[names[i] for i in scored.slowest],
        window=None if selected.windows is None else [names[i] for i in selected.chosen],
        windows=selected.windows,
        scaling_factor=factor,
        unapplied_factor=converged.factor if converged and factor is None and converged.factor > 1 else None,
        disturbances=disturbed,
        undisturbed_minutes=None if quiet is None else quiet[0] * scale,
        parts=time_parts(parts, unit) if unit else None,
        speedrun_runs=beside.speedrun_runs,
        speedrun_minutes=beside.speedrun_minutes,
        steps_runs=beside.steps_runs,
        steps=beside.steps,
        steps_counted=beside.steps_counted,
        target_test=test,
        untestable=untestable,
        energies=energies,
        energy_joules=added(joules) / len(joules) * scale if joules and not reason else None,
        notes=notes,
        folder=folder,
    )


def _scaling(folder: Path, division: str, found: Convergence | None, notes: list[str]) -> float | None:
    """Return the factor of scaling.json in `folder` for a closed score, None for a score that is not scaled.

    MLCommons' summarizer scales by the same file, which its package checker writes; it scales open scores too, which no
    rule allows. Raises ValueError if the file holds no factor.
    """
    given = scaling_factor(folder)
    if division != keys.CLOSED:
        if given is not None:
            notes.append(f"scaling.json ({given:g}) is ignored: the rules scale closed results only")
        return None
    if given is not None:
        notes.append(f"the score, its spread and its interval are multiplied by {given}, the factor of scaling.json")
        if found is not None and not found.matches(given):
            notes.append(f"scaling.json contradicts the reference: {found}, a factor of {found.normalization:.6f}")
    elif found is not None and found.outcome == "scaled":
        notes.append(
            f"{found}: MLCommons' package checker writes a scaling.json of {found.factor:.6f}, not applied here"
        )
    elif found is not None and found.outcome != "as slow":
        notes.append(f"{found}: {'a closed result may not' if found.outcome == 'too fast' else 'not compared'}")
    return given


def scored_ruleset(benchmark: str, log: RunSummary) -> str | None:
    """Return the ruleset of the round that a parent folder of `log` names if it has the benchmark, else the benchmark's
    at the date of `log`; None if no round has the benchmark. A check takes the folder's round in any case."""
    known, found = rulesets_of(benchmark), round_of_path(log.path.resolve())
    if found in known:
        return found
    return usual_ruleset_of(benchmark, log.own_rules, log.started_ms)


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
