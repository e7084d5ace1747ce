"""`timedrun reproduce`: scores recomputed from logs and compared with what is claimed; or the results run again."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

from mlevents import record
from mlevents.terminal_escape import printable
from timedrun.distributed import parent_death_signal
from timedrun.distributed.launcher import module_command
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.storage.result_files import new_folder, read_json, write_json
from timedrun.submission.reproduction import reproduce as recomputed
from timedrun.submission.reproduction.claims import read_claims
from timedrun.submission.reproduction.recorded_run import Original, originals, ranks_of, result
from timedrun.submission.reproduction.reproduce_run import SetVerdict, judge
from timedrun.submission.scoring.score import NOTICE

MOST_RANKS = 64
"""Processes that are started because a result says that it had so many; on a larger machine, one a processor."""
LAST_LINES = 12
"""Of what a run said before it failed, kept for the verdict."""


def reproduce(arguments: argparse.Namespace) -> ExitCode:
    """Recompute or, with --run, run again; exit code 0 when everything came out."""
    path = Path(arguments.path)
    if not path.exists():
        raise UsageError(f"{path} does not exist; give a package, a results folder or a round of submissions.")
    if arguments.run:
        return run_again(arguments, path)
    claims = read_claims(Path(arguments.claims)) if arguments.claims else None
    try:
        found = recomputed.reproduce(path, claims)
    except OSError as error:
        raise TimedrunError(
            f"{error.filename or path}: cannot be read ({error.strerror}); nothing was compared."
        ) from None
    if not found.figures:
        raise UsageError(f"{path} holds no result_*.txt that is an MLPerf log, so there is nothing to reproduce.")
    print(json.dumps({"path": str(path), **found.as_dict()}, indent=2) if arguments.json else found.text, end="")
    if arguments.json:
        print()
    return ExitCode.OK if found.reproduced else ExitCode.ERROR


def run_again(arguments: argparse.Namespace, path: Path) -> ExitCode:
    """Run the results at `path` again, the first runs of all sets before the second ones, and judge each set. A run
    that fails is named in the verdict and keeps none of the others from being run."""
    if arguments.claims:
        raise UsageError("--claims is for recomputing scores; leave it out, or leave out --run.")
    everything = originals(path)
    sets = {name: found[: arguments.runs] for name, found in everything.items()}
    if not sets:
        raise UsageError(f"{path} holds no result_*.txt that is an MLPerf log, so there is nothing to run again.")
    folder = new_folder(arguments.results, Path("runs") / "reproduced", path.resolve().name)
    folder.mkdir(parents=True)
    problems: dict[tuple[str, int], str] = {}
    turns = sorted((place, name) for name, found in sets.items() for place in range(len(found)))
    interrupted = False
    for place, name in turns:
        one = sets[name][place]
        problem = "not run: stopped before its turn" if interrupted else one.problem(record.read(one.log))
        if not problem:
            try:
                problem = run_one(arguments, one, folder / name, f"{name} {place + 1}/{len(sets[name])}")
            except KeyboardInterrupt:
                problem, interrupted = "stopped by a signal", True
        problems[name, place] = problem
    verdicts = []
    for name, found in sets.items():
        results = [
            (one, None if problems[name, place] else result(folder / name, one.number), problems[name, place])
            for place, one in enumerate(found)
        ]
        verdicts.append(judge(name, results, everything[name][len(found) :]))
    report = {
        "reproduced": all(one.reproduced for one in verdicts),
        "verified": False,
        "notice": NOTICE,
        "sets": [one.as_dict() for one in verdicts],
    }
    write_json(folder / "reproduced.json", report)
    if arguments.json:
        print(json.dumps({"path": str(path), "results": str(folder), **report}, indent=2))
    else:
        print_verdicts(verdicts, folder)
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if report["reproduced"] else ExitCode.ERROR


def run_one(arguments: argparse.Namespace, one: Original, folder: Path, label: str) -> str:
    """Run `one` again into `folder` in a process of its own, its progress shown; why that failed, or nothing."""
    settings = read_json(one.config)
    ranks = arguments.ranks or ranks_of(one)
    if ranks > (most := max(MOST_RANKS, os.cpu_count() or 1)) and not arguments.ranks:
        return f"it says that it had {ranks} ranks, which are not started unasked (at most {most}); give --ranks"
    command = [
        *module_command("timedrun", "run", settings["benchmark"], str(one.config)),
        *("--results", str(folder), "--number", str(one.number), f"--label={label}"),
        *("--ranks", str(ranks), "--threads", str(arguments.threads)),
    ]
    command += ["--checkpoint-minutes", str(arguments.checkpoint_minutes), "--restarts", str(arguments.restarts)]
    if arguments.data_folder:
        command += ["--data-folder", arguments.data_folder]
    last: deque[str] = deque(maxlen=LAST_LINES)
    with subprocess.Popen(
        command,
        env=parent_death_signal.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as run:
        assert run.stderr is not None
        try:
            for line in run.stderr:
                sys.stderr.write(printable(line.removesuffix("\n")) + "\n")
                last.append(line.strip())
        except KeyboardInterrupt:  # the run has it too and ends in its own way, before anything is judged
            run.wait()
            raise
    if run.returncode in (ExitCode.OK, ExitCode.TARGET_NOT_REACHED) and result(folder, one.number).log.is_file():
        return ""
    said = " ".join(line for line in last if line)
    hint = ""
    if settings.get("device") == "cuda" and "CUDA" in said:
        hint = (
            f" Its config asks for cuda: run it on a machine that has it, or set device to cpu in a copy of"
            f" {one.config.name} and give that to `timedrun run {settings['benchmark']}`, which is another run."
        )
    return f"its run ended with exit code {run.returncode}: {said or 'it said nothing'}{hint}"


def print_verdicts(verdicts: list[SetVerdict], folder: Path) -> None:
    """The verdict on every set, and where everything lies."""
    print("\n\n".join(one.text for one in verdicts))
    print(NOTICE)
    print(f"\nlogs        {folder}/<set>/result_N.txt, each with run_N/ beside it; these verdicts in reproduced.json")
