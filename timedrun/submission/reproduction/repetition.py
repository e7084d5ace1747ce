"""Repetition of recorded runs, the first ones of all sets before the second ones, and the comparison of each set."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from judging.ground.cores import usable_cores
from judging.ground.errors import ExitCode, UsageError
from judging.ground.ledger import LEDGER
from judging.ground.result_files import ResultPaths, make_new_folder, read_json
from judging.scoring.recorded_run import (
    RecordedRun,
    provenance_of,
    recorded_ranks,
    recorded_run_of,
    recorded_runs,
    recorded_threads,
)
from mlevents import record
from mlevents.summary import summarize
from timedrun.benchmark import find
from timedrun.storage.method_sources import OWN_METHODS, own_methods, source_file
from timedrun.submission.reproduction.reproduce_run import compare_runs
from timedrun.submission.reproduction.set_verdict import SetVerdict

MAX_RANKS = 64
"""Ranks that are started on a result's word alone, or one per processor if that is more."""

Outcome = tuple[str, bool]
"""Why a run was not repeated, "" if it was, and whether a signal interrupted it."""


def repeat(
    path: Path,
    out: str | None,
    one: Callable[[RecordedRun, ResultPaths, str], Outcome],
    *,
    most: int | None,
    given: Mapping[str, int],
) -> tuple[Path, list[SetVerdict], bool]:
    """Repeat the results at `path`; a failed run is named in the verdict of its set, and the others are still run.

    Args:
        out: the new folder; None: one in runs/reproduced.
        one: repeats a run, with its result at the paths, under a label.
        most: runs of a set; None: all.
        given: "threads" and "ranks" that replace those of the originals.

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
        problem = run.problem(summarize(record.read(run.log)))
        if interrupted:
            problem = "not run: interrupted before its turn"
        if not problem:
            problem, interrupted = one(run, paths, f"{name} {place + 1}/{len(sets[name])}")
        results[name].append((run, recorded_run_of(paths.log), problem))
    rest = {name: runs[len(sets[name]) :] for name, runs in everything.items()}
    return folder, [compare_runs(name, of, rest[name], given) for name, of in results.items()], interrupted


def repeat_config(
    run: RecordedRun,
    paths: ResultPaths,
    package: Path,
    given: Mapping[str, int],
    start: Callable[[int, int], tuple[int, str, int]],
) -> Outcome:
    """Repeat a run of a config, with the `given` ranks and threads or its own, unless this machine has fewer cores.

    Args:
        package: where copies of its own methods' sources lie.
        start: runs it with so many ranks and threads; returns exit code, last lines and the signal that came, or 0.
    """
    settings = read_json(run.config)
    ranks, most = given.get("ranks") or recorded_ranks(provenance_of(run)), max(MAX_RANKS, os.cpu_count() or 1)
    if ranks > most and not given.get("ranks"):
        return f"it recorded {ranks} ranks, above the limit of {most} without --ranks; set --ranks", False
    try:
        find(str(settings["benchmark"]))  # not in the working directory: the result names it, not the user
    except UsageError as error:
        return str(error).removesuffix("."), False
    for reference in own_methods(settings):
        if problem := method_problem(reference, package):
            return problem, False
    recorded = recorded_threads(run) or 0
    code, output, interrupted = start(ranks, given.get("threads") or (recorded if recorded <= usable_cores() else 0))
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
