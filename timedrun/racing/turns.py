"""Runs of a race in turn, each in a process of its own: outcomes, failures, continuation of a stopped race."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Final

from judging.ground import stdio
from judging.ground.result_files import ResultPaths, hold, new_folder
from mlevents.record import read
from timedrun.racing.race_file import COMMANDS, Race, Start, Status, Turn, paths_of
from timedrun.runner.process.progress import duration
from timedrun.runner.process.stop_signals import handling
from timedrun.runner.process.verdict import FINE, verdict_of

MOST_FAILURES: Final = 3  # failures in a row that end a side

MISSING: Final = "its log is missing; put it back and use --resume"


def run_all(
    race: Race,
    folder: Path,
    start: Start,
    received: list[int],
    verb: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Turn]:
    """Run every planned turn, and yield it before and after its run; the caller saves, and may plan more. A run that
    fails is noted, and the others go on; the rest of a side is left out after `MOST_FAILURES` in a row.

    received: takes the signal that ended the runs, in one of them or between two. verb: of progress lines.
    """
    with _noted_signals(received):
        for place, turn in enumerate(race.turns, 1):
            if received:
                break
            if turn.status != "planned":
                continue
            of_side = [other.status for other in race.turns if other.side == turn.side]
            done = [status for status in of_side if status in ("finished", "failed")]
            if done[-MOST_FAILURES:] == ["failed"] * MOST_FAILURES and not race.tuning:
                turn.status, turn.why = "left out", f"{MOST_FAILURES} runs in a row failed"
                yield turn
                continue
            label = race.sides[turn.side]
            turn.status, turn.session = "running", race.session
            yield turn
            of = "" if race.tuning else f"/{len(race.turns)}"
            said = f"timedrun {verb or race.verb}: run {place}{of}, {label}"
            stdio.message(f"{said}, seed {turn.seed}{_left(race)}")
            if received:
                turn.status = "planned"
                yield turn
                break
            began = clock()
            number = sum(other.side == turn.side for other in race.turns[:place])
            code, interrupted = start(turn, turn.side if race.tuning else f"{label} {number}/{race.runs}")
            turn.seconds = clock() - began
            turn.status, turn.why = _outcome(paths_of(folder, turn), code, bool(interrupted))
            yield turn
            if turn.why:
                stdio.message(f"{said}, {turn.status}: {turn.why}")
            if interrupted:
                received[:] = [interrupted]
                break
            if race.benchmark == COMMANDS and turn.status == "failed" and not turn.number:
                end_if_unread(race, folder, turn)
                yield turn


def end_if_unread(race: Race, folder: Path, first: Turn) -> None:
    """Leave out the other runs of a side whose first run has no evaluation, which is most likely true of all, and the
    whole race if that was its first run, or if no comparison is left."""
    paths = paths_of(folder, first)
    if paths.log.is_file() and read(paths.log).quality:
        return
    out = {turn.side for turn in race.turns if turn.status == "left out"} | {first.side}
    compared = [{each.slow, each.fast} for each in race.comparisons]
    useless = first is race.turns[0] or (compared and all(out & sides for sides in compared))
    why = f"the first run of {race.sides[first.side]} had no evaluation"
    left = [turn for turn in race.turns if turn.status == "planned" and (useless or turn.side == first.side)]
    for turn in left:
        turn.status, turn.why = "left out", why
    if left:
        stdio.message(f"{len(left)} runs are left out: {why}")


@contextlib.contextmanager
def _noted_signals(received: list[int]) -> Iterator[None]:
    """Note the signals that come between runs, which have handlers of their own; the second one is the caller's."""

    def receive(number: int, frame: FrameType | None) -> None:
        if received:
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        else:
            received.append(number)

    with handling(receive) as before:
        yield


def _outcome(paths: ResultPaths, code: int | None, interrupted: bool) -> tuple[Status, str]:
    """Return the status of a run and its reason from its exit code, None if unknown, or else from its log: a failure
    of the process after the end of the run does not undo it. Paths in the reason, which race.json holds, are relative
    to the race's folder."""
    logged = verdict_of(paths) if paths.log.is_file() else None
    if code in FINE or (logged and logged.code in FINE):
        return "finished", ""
    how = "its process was killed" if code is None else f"exit code {code}"
    words = f"; {logged.words}" if logged else f"; it wrote no log, see {paths.folder}"
    return "interrupted" if interrupted else "failed", (how + words).replace(str(paths.folder), paths.folder.name)


def _left(race: Race) -> str:
    """Return the estimated time left as ", about 2 min left", "" before the first run has ended."""
    known = {side: [turn.seconds for turn in race.of_side(side, "finished")] for side in race.sides}
    everything = [seconds for times in known.values() for seconds in times]
    if not everything or race.tuning:
        return ""
    left = sum(fmean(known[turn.side] or everything) for turn in race.turns if turn.status in ("planned", "running"))
    return f", about {duration(left)} left"


def settle(race: Race, folder: Path) -> None:
    """Note how runs ended that were going on when the race was killed, and which logs are missing or back. Raises
    BlockingIOError if such a run still goes on."""
    for turn in race.turns:
        if turn.status == "running":
            paths = paths_of(folder, turn)
            if paths.environment.is_file():
                hold(paths)
            turn.status, turn.why = _outcome(paths, None, interrupted=True)
        elif turn.status == "finished" and not paths_of(folder, turn).log.is_file():
            turn.status, turn.why = "failed", MISSING
        elif turn.why == MISSING and paths_of(folder, turn).log.is_file():
            turn.status, turn.why = "finished", ""


def plan_again(race: Race, folder: Path) -> None:
    """Plan the interrupted runs of a race again, with their numbers and seeds, and move their files to interrupted_K,
    each log as interrupted_N.txt, which is no result. They are not resumed: the interruption would count on their
    clocks, and their times would not compare. Failed runs stay failed, since a later repetition would have no partner.
    """
    aside = new_folder(None, folder, "interrupted")
    race.session += race.left  # another report alone is no session
    for turn in race.turns:
        if turn.status == "interrupted":
            paths = paths_of(folder, turn)
            for path, name in ((paths.log, f"interrupted_{turn.number}.txt"), (paths.side, paths.side.name)):
                if path.exists():
                    (aside / turn.side).mkdir(parents=True, exist_ok=True)
                    path.rename(aside / turn.side / name)
            turn.status, turn.why = "planned", ""
    race.save(folder)
