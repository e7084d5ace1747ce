"""Logs of runs on toy data, and a planned race of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlevents import keys
from tests.judging.conftest import write_run as write_log
from timedrun.racing.plan import Rounds, schedule
from timedrun.racing.race_file import Comparison, Race, Start, Turn
from timedrun.racing.turns import run_all

__all__ = ["write_log"]


def run_turns(
    race: Race, folder: Path, start: Start, note: Callable[[Turn], object] = lambda turn: None, **options: Any
) -> int:
    """Run what is planned, with a call of `note` before and after each run; return the signal that ended it, or 0."""
    received: list[int] = []
    for turn in run_all(race, folder, start, received, **options):
        note(turn)
    return received[0] if received else 0


@pytest.fixture
def write_run(write_log: Callable[..., Path]) -> Callable[..., Path]:
    """Writes result_<number>.txt of a run of `seconds` that reached its target, with the seed `number`; `ends` is False
    if it was killed."""

    def write(folder, number, seconds=60.0, *, start=0.0, ends=True, quality=None):
        qualities = [0.5 + number / 100 if quality is None else quality]
        begin = 1.7e9 + (start or number * 1000)
        logged = {keys.SEED: number, keys.DATASET: "toy", keys.QUALITY_TARGET: 0.5}
        path = write_log(folder, number, minutes=seconds / 60, qualities=qualities, start=begin, **logged)
        if not ends:
            lines = [line for line in path.read_text().splitlines(keepends=True) if keys.RUN_STOP not in line]
            path.write_text("".join(lines))
        return path

    return write


@pytest.fixture
def plan() -> Callable[..., Race]:
    """Plans a race of sides with the given folders; the last one is compared with each of the others."""

    def make(sides: Sequence[str] = ("a", "b"), runs: int = 3) -> Race:
        return Race(
            benchmark="toy",
            runs=runs,
            options={},
            sides={side: f"config {side}" for side in sides},
            comparisons=[Comparison(row=f"config {side}", slow=side, fast=sides[-1]) for side in sides[:-1]],
            turns=schedule(sides, Rounds(runs=runs)),
        )

    return make


@pytest.fixture
def race(tmp_path: Path, plan: Callable[..., Race], write_run: Callable[..., Path]) -> Race:
    """A race of two sides whose three runs each finished: in 40, 44 and 41 seconds, and in 20, 21 and 20.5."""
    made = plan()
    times = {"a": [40.0, 44.0, 41.0], "b": [20.0, 21.0, 20.5]}
    for place, turn in enumerate(made.turns):
        write_run(tmp_path / turn.side, turn.number, times[turn.side][turn.number], start=1000.0 * (place + 1))
        turn.status = "finished"
    return made
