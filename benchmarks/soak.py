"""Kill a run with several ranks at random moments, resume it, and compare its end with that of an undisturbed run.

Usage: python benchmarks/soak.py --out FILE.json [--kills 50] [--ranks 2] [--seed 1] [--keep FOLDER]
       [-- CONFIG AND OPTIONS of `timedrun run`, default: image_classification methods --data digits ...]

A trial starts a run, kills one of its processes, or all, at a random moment of the time that the undisturbed run took
(five of six after its clock had started), and resumes it until it ends by itself; half of the trials kill a resumed run
again. What must be equal: the SHA-256 of the final state (weights, optimizer), and every evaluation. What must hold: no
process is left 30 s after a kill, each log parses to the last line, the verdict of the strict checks is that of the
undisturbed log, and a run that was killed before its first checkpoint is refused by --resume and left as it is.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from judging.ground.errors import ExitCode
from judging.ground.result_files import ResultPaths, next_number, read_json, write_json
from mlevents import keys, record
from mlevents.checks.log_check import check
from timedrun.provenance import source, system

RUN = (
    *("image_classification", "methods", "--data", "digits", "--threads", "1", "--global-batch", "128"),
    *("--schedule.epochs", "60", "--evaluation.target", "0.9999", "--evaluation.every", "4", "--evaluation.first", "4"),
)
TARGETS = ("rank 0", "rank 1", "launcher", "all", "SIGTERM", "SIGSTOP of rank 1")
WEIGHTS = (4, 4, 2, 3, 2, 1)
ENDED = (ExitCode.OK, ExitCode.TARGET_NOT_REACHED)
GONE_SECONDS = 30.0
"""The promise: that long after a rank's death nothing of the run is left."""
LIMIT_SECONDS = 600.0
POLL_SECONDS = 0.02


@dataclass
class Kill:
    target: str
    at_seconds: float
    step: int | None = None
    """Optimizer steps that the log's run had done by the last event that says it; None before the first."""
    hit: bool = True
    """False: the run had ended by itself."""
    gone_seconds: float | None = None
    """Until no process of the run was left."""
    exit_code: int | None = None
    words: str = ""
    refused: bool = False
    """Resuming was refused, as there was no whole checkpoint: the run was started anew under the next number."""
    left_alone: bool | None = None
    """After a refusal: the log is byte for byte what it was."""


@dataclass
class Trial:
    """A run, its kills, and its comparison with the undisturbed one."""

    number: int
    kills: list[Kill] = field(default_factory=list)
    same_state: bool = False
    same_evaluations: bool = False
    same_verdict: bool = False
    resumed: int = 0
    steps_lost: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.same_state and self.same_evaluations and self.same_verdict and not self.problems


@dataclass(frozen=True)
class Job:
    arguments: tuple[str, ...]
    ranks: int
    checkpoint_minutes: float

    def start(self, folder: Path, number: int, *, resume: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "timedrun", "run", *self.arguments, "--ranks", str(self.ranks)]
        command += ["--results", str(folder), "--number", str(number)]
        command += ["--checkpoint-minutes", str(self.checkpoint_minutes), *(["--resume"] if resume else [])]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def ranks_of(launcher: int) -> dict[int, psutil.Process]:
    """Return the rank processes below `launcher` by rank."""
    values: dict[int, psutil.Process] = {}
    try:
        children = psutil.Process(launcher).children(recursive=True)
    except psutil.NoSuchProcess:
        return {}
    for child in children:
        try:
            rank = child.environ().get("RANK")
            if rank is not None and "timedrun.run.rank" in child.cmdline():
                values.setdefault(int(rank), child)
        except psutil.Error:
            continue
    return values


def strike(target: str, launcher: subprocess.Popen[str]) -> str:
    """Send the signal of `target` to the processes under `launcher`; return what was struck: before there are ranks,
    the launcher in place of one."""
    ranks = ranks_of(launcher.pid)
    if target == "SIGTERM":
        launcher.terminate()
    elif target == "launcher" or not ranks:
        launcher.kill()
    elif target == "all":
        for process in [*ranks.values(), psutil.Process(launcher.pid)]:
            process.kill()
    elif target.startswith("SIGSTOP"):
        ranks[max(ranks)].send_signal(signal.SIGSTOP)
    else:
        ranks.get(int(target.removeprefix("rank ")), next(iter(ranks.values()))).kill()
    return target if ranks or target in ("SIGTERM", "launcher") else f"launcher, no ranks yet for {target}"


def disturbed(job: Job, paths: ResultPaths, seconds: float, target: str, *, resume: bool) -> tuple[Kill, list[str]]:
    """Start or resume the run, kill `target` after `seconds`, and return how it ended and the problems."""
    kill = Kill(target, seconds)
    process = job.start(paths.folder, paths.number, resume=resume)
    problems: list[str] = []
    try:
        kill.words = process.communicate(timeout=seconds)[0]
        kill.hit = False
    except subprocess.TimeoutExpired:
        try:
            family = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        kill.target = strike(target, process)
        began = time.monotonic()
        process.wait(timeout=LIMIT_SECONDS)
        _, left = psutil.wait_procs(family, timeout=GONE_SECONDS)
        for survivor in left:
            survivor.kill()
        kill.gone_seconds = time.monotonic() - began
        kill.words = process.communicate()[0]
        if left or kill.gone_seconds > GONE_SECONDS:
            problems.append(f"{len(left)} processes were left, the last ended after {kill.gone_seconds:.1f} s")
    kill.exit_code = process.returncode
    kill.words = kill.words.replace(str(paths.folder.parent), "RESULTS")
    if "Traceback" in kill.words:
        problems.append("a traceback was printed")
    if paths.log.is_file():
        problems += unreadable(paths.log)
        steps = [event.metadata.get("step") for event in record.read(paths.log).events]
        kill.step = max((step for step in steps if isinstance(step, int)), default=None)
    return kill, problems


def unreadable(log: Path) -> list[str]:
    """Return a description of the lines of `log` that are not complete events, if any."""
    data = log.read_bytes()
    run = record.read(log)
    lines = data.count(b"\n")
    if (data and not data.endswith(b"\n")) or len(run.events) != lines:
        return [f"{log.name}: {len(run.events)} events in {lines} lines, the end is {data[-40:]!r}"]
    return []


def result(paths: ResultPaths) -> tuple[str, list[tuple[Any, Any]], list[str]]:
    """Return the SHA-256 of the trained state, place and value of every evaluation, and the rules found broken."""
    state = str(read_json(paths.provenance)["final_state"]["sha256"])
    evaluations = record.read(paths.log).quality
    errors = {finding.rule for finding in check(paths.log).findings if finding.level == "error"}
    return state, [(point.progress, point.value) for point in evaluations], sorted(errors)


def kill_and_resume(
    job: Job, number: int, folder: Path, whole: ResultPaths, times: tuple[float, float], chance: random.Random
) -> Trial:
    """Kill a run once or twice, resume it to its end, and compare it with the run `whole`, whose clock started, and
    which ended, after `times` seconds."""
    trial = Trial(number)
    paths = ResultPaths(folder, next_number(folder))
    kills, resume = chance.randint(1, 2), False
    for _ in range(kills):
        target = chance.choices(TARGETS, WEIGHTS)[0]
        earliest = chance.choice([0.1 * times[1], *[times[0]] * 5])
        kill, problems = disturbed(job, paths, chance.uniform(earliest, times[1]), target, resume=resume)
        trial.kills.append(kill)
        trial.problems += problems
        if kill.exit_code in ENDED and record.read(paths.log).stopped is not None:
            break
        before = paths.log.read_bytes() if paths.log.is_file() else b""
        resume = any(paths.checkpoints.glob("rank_*/*.pt"))
        if not resume:
            process = job.start(folder, paths.number, resume=True)
            words, _ = process.communicate(timeout=LIMIT_SECONDS)
            kill.refused = process.returncode not in ENDED
            kill.left_alone = (paths.log.read_bytes() if paths.log.is_file() else b"") == before
            if not kill.refused or not kill.left_alone or "Traceback" in words:
                trial.problems.append(
                    f"--resume without a checkpoint was not refused cleanly (exit code {process.returncode})"
                )
            paths = ResultPaths(folder, next_number(folder))
    while not (paths.log.is_file() and ended(paths.log)):
        process = job.start(folder, paths.number, resume=resume)
        words, _ = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode in ENDED:
            break
        # Killed while it saved its first checkpoint: not every rank has one.
        if resume and "cannot be resumed" in words and not trial.kills[-1].refused:
            trial.kills[-1].refused = trial.kills[-1].left_alone = True
            paths, resume = ResultPaths(folder, next_number(folder)), False
            continue
        trial.problems.append(f"it did not end by itself but with exit code {process.returncode}: {words[-600:]}")
        return trial
    trial.problems += unreadable(paths.log)
    same = [mine == other for mine, other in zip(result(paths), result(whole), strict=True)]
    trial.same_state, trial.same_evaluations, trial.same_verdict = same
    resumptions = record.read(paths.log).all(keys.RESUMED)
    trial.resumed = len(resumptions)
    lost = [event.metadata.get("steps_lost") for event in resumptions]
    trial.steps_lost = sum(steps for steps in lost if isinstance(steps, int))
    return trial


def ended(log: Path) -> bool:
    """Return True if the run of `log` ended by itself."""
    run = record.read(log)
    reason = run.stopped.metadata.get("reason") if run.stopped else None
    return run.status == keys.SUCCESS or reason == "target not reached"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-minutes", type=float, default=0.02)
    parser.add_argument("--keep", type=Path, help="keep all results there")
    parser.add_argument("run", nargs="*", help="what to run, after --")
    given = parser.parse_args()
    job = Job(tuple(given.run) or RUN, given.ranks, given.checkpoint_minutes)
    chance = random.Random(given.seed)
    trials: list[Trial] = []
    with TemporaryDirectory(prefix="timedrun_soak_") as temporary:
        top = given.keep or Path(temporary)
        top.mkdir(parents=True, exist_ok=True)
        whole = ResultPaths(top / "whole", 0)
        took = []
        for number in range(2):  # the second shows that two undisturbed runs are equal to begin with
            began, wall = time.monotonic(), time.time()
            words, _ = (process := job.start(whole.folder, number)).communicate(timeout=LIMIT_SECONDS)
            started = record.read(ResultPaths(whole.folder, number).log).started
            took.append((started.time_ms / 1e3 - wall if started else 0.0, time.monotonic() - began))
            if process.returncode not in ENDED:
                raise SystemExit(f"the undisturbed run ended with exit code {process.returncode}:\n{words[-2000:]}")
        if result(whole)[0] != result(ResultPaths(whole.folder, 1))[0]:
            raise SystemExit("two undisturbed runs end in different weights; nothing can be compared.")
        print(f"undisturbed: clock started and run ended after {took} s, equal to the bit", flush=True)
        while sum(kill.hit for trial in trials for kill in trial.kills) < given.kills:
            trial = kill_and_resume(job, len(trials), top / f"trial_{len(trials)}", whole, min(took), chance)
            trials.append(trial)
            kills = "; ".join(f"{kill.target} at {kill.at_seconds:.1f} s" for kill in trial.kills)
            print(
                f"{len(trials)}: {'equal' if trial.passed else 'NOT EQUAL'} ({kills}) {trial.problems or ''}",
                flush=True,
            )
    report = {
        "command": f"python benchmarks/soak.py --kills N --ranks {job.ranks} --seed {given.seed}",
        "run": ["timedrun", "run", *job.arguments, "--checkpoint-minutes", str(job.checkpoint_minutes)],
        "source": source.provenance(Path(__file__).resolve().parent.parent),
        "system": system.describe("", "", ranks=job.ranks, device="cpu"),
        "undisturbed_seconds_to_start_and_end": took,
        "passed": sum(trial.passed for trial in trials),
        "trials": [asdict(trial) | {"passed": trial.passed} for trial in trials],
    }
    write_json(given.out, report)
    gone = [kill.gone_seconds for trial in trials for kill in trial.kills if kill.gone_seconds is not None]
    print(
        f"{sum(trial.passed for trial in trials)} of {len(trials)} trials ({len(gone)} kills) ended as the undisturbed"
        " run (weights and optimizer state, evaluations, verdict)."
        f" {sum(trial.resumed for trial in trials)} resumptions,"
        f" {sum(trial.steps_lost for trial in trials)} steps done twice. Nothing was left of a run after a median of"
        f" {statistics.median(gone):.1f} s and at most {max(gone):.1f} s."
    )
    if not all(trial.passed for trial in trials):
        sys.exit(1)


if __name__ == "__main__":
    main()
