"""`timedrun reproduce`: recompute scores from logs and compare them with claims, or repeat the runs."""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from judging.ground.cores import usable_cores
from judging.ground.errors import ExitCode, UsageError
from judging.ground.ledger import LEDGER
from judging.ground.result_files import ResultPaths, existing, make_new_folder, read_json, require_log, write_json
from judging.pages.score_table import NOTICE
from judging.scoring.recorded_run import (
    RecordedRun,
    provenance_of,
    recorded_ranks,
    recorded_run_of,
    recorded_runs,
    recorded_threads,
)
from mlevents import keys, record
from mlevents.summary import summarize
from timedrun.benchmark import find
from timedrun.distributed.launch_env import Launch
from timedrun.racing.child_run import run_child
from timedrun.racing.command_run import CommandRun
from timedrun.racing.command_side import side_in
from timedrun.racing.command_source import source_of
from timedrun.racing.race_file import COMMANDS
from timedrun.run.verdict import FINE, verdict_of
from timedrun.storage.method_sources import OWN_METHODS, own_methods, source_file
from timedrun.storage.source_copies import SOURCE, copies_in, digest
from timedrun.submission.reproduction import reproduce as recomputed
from timedrun.submission.reproduction.claims import read_claims
from timedrun.submission.reproduction.reproduce_run import compare_runs

MAX_RANKS = 64
"""Ranks that are started on a result's word alone, or one per processor if that is more."""


def reproduce(arguments: argparse.Namespace) -> ExitCode:
    """Recompute the scores or, with --run, repeat the runs; exit code 0 if everything is reproduced."""
    path = Path(arguments.path)
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a package, a results folder or a round of submissions.")
    require_log(path)
    if arguments.run:
        return run_again(arguments, path)
    if arguments.commands:
        raise UsageError("--commands applies to repeated runs only; add --run.")
    claims = read_claims(arguments.claims) if arguments.claims else None
    reproduction = recomputed.reproduce(path, claims)
    if not reproduction.figures or not existing(path):
        raise UsageError(f"{path} holds no result_*.txt that is an MLPerf log, so there is nothing to reproduce.")
    if arguments.json:
        print(json.dumps({"path": str(path), **reproduction.as_dict()}, indent=2))
    else:
        print(reproduction.text, end="")
    return ExitCode.OK if reproduction.reproduced else ExitCode.ERROR


def run_again(arguments: argparse.Namespace, path: Path) -> ExitCode:
    """Repeat the results at `path`, the first runs of all sets before the second ones, and compare each set. A failed
    run is named in the verdict; the others are still run."""
    if arguments.claims:
        raise UsageError("--claims applies to recomputed scores only; leave out --claims or --run.")
    if arguments.commands and not arguments.commands.is_dir():
        raise UsageError(f"--commands {arguments.commands} is no folder; nothing was run.")
    everything = recorded_runs(path)
    sets = {name: value[: arguments.runs] for name, value in everything.items()}
    if not sets:
        raise UsageError(f"{path} holds no result_*.txt that is an MLPerf log, so there is nothing to repeat.")
    folder = make_new_folder(arguments.results, Path("runs") / "reproduced", path.resolve().name)
    (folder / LEDGER).touch()  # its own: the originals' would announce runs that no set of theirs holds
    problems: dict[tuple[str, int], str] = {}
    turns = sorted((place, name) for name, result_set in sets.items() for place in range(len(result_set)))
    interrupted = False
    for place, name in turns:
        run = sets[name][place]
        problem = run.problem(summarize(record.read(run.log)))
        if interrupted:
            problem = "not run: interrupted before its turn"
        if not problem:
            problem, interrupted = run_one(arguments, run, folder / name, f"{name} {place + 1}/{len(sets[name])}")
        problems[name, place] = problem
    verdicts = []
    for name, result_set in sets.items():
        results = [
            (run, recorded_run_of(ResultPaths(folder / name, run.number).log), problems[name, place])
            for place, run in enumerate(result_set)
        ]
        given = {option: value for option in ("threads", "ranks") if (value := getattr(arguments, option))}
        verdicts.append(compare_runs(name, results, everything[name][len(result_set) :], given))
    report = {
        "reproduced": all(verdict.reproduced for verdict in verdicts),
        "verified": False,
        "notice": NOTICE,
        "sets": [verdict.as_dict() for verdict in verdicts],
    }
    write_json(folder / "reproduced.json", report)
    if arguments.json:
        print(json.dumps({"path": str(path), "results": str(folder), **report}, indent=2))
    else:
        print("\n\n".join(verdict.text for verdict in verdicts))
        print(NOTICE)
        print(f"\nlogs        {folder}/<set>/result_N.txt, files of run N in run_N/; verdicts are in reproduced.json")
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if report["reproduced"] else ExitCode.ERROR


def run_one(arguments: argparse.Namespace, run: RecordedRun, folder: Path, label: str) -> tuple[str, bool]:
    """Repeat `run` in a process of its own, with its result in `folder` and by default with its own ranks and threads,
    unless this machine has fewer cores than threads; return why that failed, or "", and whether a signal interrupted
    it."""
    settings = read_json(run.config)
    if settings["benchmark"] == COMMANDS:
        return run_command_again(run, ResultPaths(folder, run.number), arguments.commands, label)
    ranks = arguments.ranks or recorded_ranks(provenance_of(run))
    if ranks > (limit := max(MAX_RANKS, os.cpu_count() or 1)) and not arguments.ranks:
        return f"it recorded {ranks} ranks, above the limit of {limit} without --ranks; set --ranks", False
    try:
        find(str(settings["benchmark"]))  # not in the working directory: the result names it, not the user
    except UsageError as error:
        return str(error).removesuffix("."), False
    for reference in own_methods(settings):
        if problem := method_problem(reference, Path(arguments.path)):
            return problem, False
    paths = ResultPaths(folder, run.number)
    threads = arguments.threads or recorded_threads(run) or 0
    if not arguments.threads and threads > usable_cores():
        threads = 0
    launch = replace(Launch.of(vars(arguments)), ranks=ranks, threads=threads)
    seed = settings.get("seed", 1)
    command = launch.run_command(settings["benchmark"], str(run.config), paths, label, seed)
    code, output, interrupted = run_child(command, keep_output=True)
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


def run_command_again(run: RecordedRun, paths: ResultPaths, given: Path | None, label: str) -> tuple[str, bool]:
    """Repeat a run of a command in the folder that the user has `given`, if that holds the source which it recorded;
    return as `run_one`."""
    side, original = side_in(run.config), record.read(run.log)
    source = next((folder for folder in (run.side, run.shared) if (folder / SOURCE).is_dir()), run.side)
    if given is None:
        return (
            f"its command is not run unasked: {side.command}. Read it and its source ({source / SOURCE}), then give"
            " --commands FOLDER, which holds that source and its data",
            False,
        )
    found = source_of(side.command, given)
    if digest(found) != original.value(keys.SOURCE_SHA256):
        copies = copies_in(source)
        names = sorted(name for name in found | copies if found.get(name) != copies.get(name))
        named = f" ({', '.join(names)})" if names else ""
        return f"{given} does not hold the source of that run{named}; its copies are in {source / SOURCE}", False
    runs = original.own_rules.runs if original.own_rules else 1
    _, interrupted = CommandRun(side, paths, runs=runs, label=label, directory=given).run()
    verdict = verdict_of(paths)
    return "" if verdict.code in FINE else verdict.words, bool(interrupted)


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
