"""Repetition of recorded runs, the first ones of all sets before the second ones, and the comparison of both: quality,
samples to target, quality at every evaluation, and time."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from judging.comparison.speedup_ratio import compare
from judging.ground.cores import usable_cores
from judging.ground.errors import ExitCode, UsageError
from judging.ground.ledger import LEDGER
from judging.ground.result_files import ResultPaths, make_new_folder, read_json
from judging.scoring import recorded_run
from judging.scoring.olympic import as_summarized
from judging.scoring.recorded_run import RecordedRun, differences, recorded_run_of, recorded_runs
from judging.scoring.score import scored_ruleset
from mlevents.event import listed
from mlevents.record import read
from mlevents.run_status import reached, rules_of
from mlevents.student_t import quantile
from mlevents.summary import RunSummary, summarize
from timedrun.evidence.submission.reproduction.set_verdict import Agreement, Repeat, RunResult, SetVerdict, short
from timedrun.runner.benchmark import find
from timedrun.runner.storage.method_sources import OWN_METHODS, own_methods, source_file

MAX_RANKS = 64  # ranks that are started on a result's word alone, or one per processor if that is more

Outcome = tuple[str, bool]
"""Why a run was not repeated, "" if it was, and whether a signal interrupted it."""


def repeat(
    path: Path,
    out: str | None,
    one: Callable[[RecordedRun, ResultPaths, str], Outcome],
    *,
    most: int | None,
    threads: int,
) -> tuple[Path, list[SetVerdict], bool]:
    """Repeat the results at `path`; a failed run is named in the verdict of its set, and the others are still run.

    Args:
        out: the new folder; None: one in runs/reproduced.
        one: repeats a run, with its result at the paths, under a label.
        most: runs of a set; None: all.
        threads: in place of those of the originals; 0: theirs.

    Returns the folder, the verdicts, and whether a signal interrupted it.
    """
    everything = recorded_runs(path)
    sets = {name: value[:most] for name, value in everything.items()}
    if not sets:
        raise UsageError(f"{path} holds no result_*.txt that is an MLPerf log, so there is nothing to repeat.")
    folder = make_new_folder(out, Path("runs") / "reproduced", path.resolve().name)
    (folder / LEDGER).touch()  # its own: the originals' would announce runs that no set of theirs holds
    results: dict[str, list[tuple[RecordedRun, RecordedRun, str]]] = {name: [] for name in sets}
    interrupted = False
    for place, name in sorted((place, name) for name, runs in sets.items() for place in range(len(runs))):
        run = sets[name][place]
        paths = ResultPaths(folder / name, run.number)
        problem = run.problem(summarize(read(run.log)))
        if interrupted:
            problem = "not run: interrupted before its turn"
        if not problem:
            problem, interrupted = one(run, paths, f"{name} {place + 1}/{len(sets[name])}")
        results[name].append((run, recorded_run_of(paths.log), problem))
    rest = {name: runs[len(sets[name]) :] for name, runs in everything.items()}
    return folder, [compare_runs(name, of, rest[name], threads) for name, of in results.items()], interrupted


def repeat_config(
    run: RecordedRun, paths: ResultPaths, package: Path, threads: int, start: Callable[[int, int], tuple[int, str, int]]
) -> Outcome:
    """Repeat a run of a config with so many `threads`, or its own, unless this machine has fewer cores.

    Args:
        package: where copies of its own methods' sources lie.
        start: runs it with so many ranks and threads; returns exit code, last lines and the signal that came, or 0.
    """
    settings = read_json(run.config)
    ranks = recorded_run.recorded_ranks(recorded_run.provenance_of(run))
    most = max(MAX_RANKS, os.cpu_count() or 1)
    if ranks > most:
        return f"it recorded {ranks} ranks, above the limit of {most}; run its config with --ranks {ranks}", False
    try:
        find(str(settings["benchmark"]))  # not in the working directory: the result names it, not the user
    except UsageError as error:
        return str(error).removesuffix("."), False
    for reference in own_methods(settings):
        if problem := method_problem(reference, package):
            return problem, False
    recorded = recorded_run.recorded_threads(run) or 0
    code, output, interrupted = start(ranks, threads or (recorded if recorded <= usable_cores() else 0))
    if code in (ExitCode.OK, ExitCode.TARGET_NOT_REACHED) and paths.log.is_file():
        return "", bool(interrupted)
    if interrupted:
        return "interrupted by a signal", True
    hint = ""
    if settings.get("device") == "cuda" and "CUDA" in output:
        hint = (
            f" Its config requires cuda: run it on a machine with a GPU, or set device to cpu in a copy of"
            f" {run.config.name} and pass that to `timedrun run {settings['benchmark']}`, which is a different run."
        )
    return f"the run ended with exit code {code}: {output or 'no output'}{hint}", False


def method_problem(reference: str, package: Path) -> str:
    """Return why the source of a result's method is not imported, with the package's copy of it, or ""."""
    module = reference.partition(":")[0]
    if source_file(module):
        return ""
    place = module.replace(".", "/")
    copies = sorted(copy for end in (".py", "/__init__.py") for copy in package.rglob(f"{OWN_METHODS}/{place}{end}"))
    read = f" Its copy is {copies[0]}: read it" if copies else " Get its source and read it"
    folder = next(parent for parent in copies[0].parents if parent.name == OWN_METHODS) if copies else "its folder"
    return (
        f"its method {reference} is not on the import path, and a result's code is not run unasked.{read}; to run it,"
        f" set PYTHONPATH={folder}"
    )


def compare_runs(
    name: str,
    results: Sequence[tuple[RecordedRun, RecordedRun, str]],
    rest: Sequence[RecordedRun] = (),
    threads: int = 0,
) -> SetVerdict:
    """Compare the runs of a set with their repetitions.

    Args:
        results: for each run the original, its repetition, and why there is none.
        rest: runs that were not to be repeated; they add to the spread of the set.
        threads: that replaced those of the originals; 0: none did.
    """
    old = [summarize(read(original.log)) for original, _, _ in results]
    known_rules = (rules_of(run.benchmark or "", scored_ruleset(run.benchmark or "", run), [run])[0] for run in old)
    unit = next((rules.unit for rules in known_rules if rules), "")
    runs: list[Repeat] = []
    differs: dict[str, dict[str, list[Any]]] = {"hardware": {}, "versions": {}, "origin": {}}
    for then, (original, again, problem) in zip(old, results, strict=True):
        repeat = Repeat(number=original.number, seed=then.seed, original=run_result(then), problem=problem)
        if not problem:
            now = summarize(read(again.log))
            course, words = compared_courses(then, now, unit)
            repeat = replace(repeat, again=run_result(now), course=course, words=words)
            for kind, names in differences(original, again).items():
                differs[kind] |= names
            recorded = {"hardware": original.system.is_file(), "versions": original.file("environment.txt") is not None}
            for kind in (kind for kind, there in recorded.items() if not there):  # it counts as different
                differs[kind]["description"] = [None, "known"]
            if then.config_digest != now.config_digest:  # same file: this source has other settings
                differs["origin"].setdefault("config_digest", [then.config_digest, now.config_digest])
        runs.append(repeat)
    originals = [run_result(summarize(read(original.log))) for original in rest] + [run.original for run in runs]
    points = [result.progress for result in originals if result.reached and result.progress is not None]
    failures = [f"run {run.number} could not be repeated: {run.problem}" for run in runs if run.problem]
    done = [(run, run.original, run.again) for run in runs if run.again]
    other = [
        f"run {run.number} {'reached' if now.reached else 'did not reach'} its target now, "
        f"but {'reached' if then.reached else 'did not reach'} it originally"
        f" (quality {short(now.quality)}, {short(then.quality)})"
        for run, then, now in done
        if then.reached != now.reached
    ]
    failures += other
    finished = [(then, now) for _, then, now in done if then.reached and now.reached]
    steps = [(then.progress, now.progress) for then, now in finished]
    known = [(a, b) for a, b in steps if a is not None and b is not None]
    to_target: Agreement = "equal" if known else "unknown"
    if any(a != b for a, b in known):
        now_points = [b for _, b in known]
        to_target = "within the spread" if within_spread(points, now_points, min(map(_interval, old))) else "differs"
        if to_target == "differs":
            failures.append(
                f"{unit or 'samples'} to target differ: mean {fmean(points):,.1f} of {len(points)} original runs, "
                f"{fmean(now_points):,.1f} of {len(now_points)} new runs"
            )
    not_comparable = _reasons(differs, threads)
    equal = [run for run, _, _ in done if run.course == "equal"]
    if not not_comparable and len(equal) * 2 > len(done):
        failures += [
            f"the logged quality of run {run.number} is not reproduced, although that of {len(equal)} others is, to "
            f"every digit ({run.words})"
            for run, _, _ in done
            if run.course == "differs"
        ]
    times = [(then.minutes, now.minutes) for then, now in finished if then.minutes and now.minutes]
    # Runs that did the same work again are paired.
    time = compare([a for a, _ in times], [b for _, b in times], paired=to_target == "equal") if times else None
    return SetVerdict(
        name=name,
        unit=unit,
        runs=tuple(runs),
        quality=("differs" if other else "equal") if done else "unknown",
        to_target=to_target,
        courses_equal=len(equal),
        time=time,
        not_comparable=not_comparable,
        differs=differs,
        failures=tuple(failures),
    )


def run_result(run: RunSummary) -> RunResult:
    """Return the result of a run; the target is reached by the rules of scores."""
    fine = reached(run, scored_ruleset(run.benchmark or "", run))
    last = run.quality[-1] if run.quality else None
    return RunResult(
        reached=fine,
        minutes=as_summarized(run.minutes) if fine and run.minutes is not None else None,
        progress=last.progress if last else None,
        quality=last.value if last else None,
        disturbances=run.disturbances,
    )


def compared_courses(old: RunSummary, new: RunSummary, unit: str) -> tuple[Literal["equal", "differs"], str]:
    """Compare the qualities of two runs at every evaluation; also describe the first difference."""
    before = [(point.progress, point.value) for point in old.quality]
    after = [(point.progress, point.value) for point in new.quality]
    if before == after:
        end = f"{unit} {before[-1][0]:,.0f}, {before[-1][1]:.5f}" if before else "no evaluation"
        return "equal", f"equal quality at every evaluation (last: {end})"
    place, then, now = next(
        ((a or b)[0], a, b)  # type: ignore[index]
        for a, b in zip([*before, None], [*after, None], strict=False)
        if a != b
    )
    texts = [f"{point[1]:.5f} at {unit} {point[0]:,.0f}" if point else "no evaluation" for point in (then, now)]
    return "differs", f"quality differs from {unit} {place:,.0f} on: originally {texts[0]}, now {texts[1]}"


def within_spread(then: Sequence[float], now: Sequence[float], interval: float) -> bool:
    """Return True if the mean of `now` is within the 95 % prediction interval of runs like `then` (Student's t), plus
    half an evaluation `interval`: a run reaches its target somewhere between two evaluations."""
    if len(then) < 2 or not now:
        return False
    error = stdev(then) * math.sqrt(1 / len(then) + 1 / len(now))
    return abs(fmean(now) - fmean(then)) <= quantile(len(then) - 1) * error + interval / 2


def _reasons(differs: dict[str, dict[str, list[Any]]], threads: int) -> tuple[str, ...]:
    """Return why times are not comparable, as "1 thread then, 2 now (--threads 2)"."""
    reasons = []
    for name in ("threads", "ranks"):
        if name in differs["origin"]:
            then, now = differs["origin"][name]
            old = f"{name} not recorded" if then is None else f"{then} {name[:-1] if then == 1 else name}"
            option = f" (--threads {threads})" if threads and name == "threads" else ""
            reasons.append(f"{old} then, {now} now{option}")
    reasons += [f"other {kind} ({listed([*differs[kind]], 3)})" for kind in ("hardware", "versions") if differs[kind]]
    return tuple(reasons)


def _interval(run: RunSummary) -> float:
    """Return the smallest progress between two evaluations, 0 if there is only one."""
    points = [point.progress for point in run.quality]
    return min((b - a for a, b in zip(points, points[1:], strict=False) if b > a), default=0.0)
