"""Logs of runs on toy data, and a planned race of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mlevents import keys
from mlevents.runlog import RunLog
from timedrun.race.race_file import Comparison, Race
from timedrun.race.schedule import schedule


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """Writes result_<number>.txt of a run of `seconds` that reached its target, with the seed `number`; `ends` is False
    if it was killed."""

    def write(
        folder: Path,
        number: int,
        seconds: float = 60.0,
        *,
        start: float = 0.0,
        ends: bool = True,
        quality: float | None = None,
    ) -> Path:
        folder.mkdir(exist_ok=True, parents=True)
        now = [1.7e9 + (start or number * 1000)]
        path = folder / f"result_{number}.txt"
        log = RunLog(path, clock=lambda: now[0], durable=False)
        for key, value in {
            keys.SUBMISSION_BENCHMARK: "resnet",
            keys.SUBMISSION_ORG: "Example",
            keys.DATASET: "toy",
            keys.QUALITY_TARGET: 0.5,
            keys.SEED: number,
        }.items():
            log.event(key, value)
        log.start(keys.RUN_START)
        now[0] += seconds
        if ends:
            log.event(keys.EVAL_ACCURACY, 0.5 + number / 100 if quality is None else quality, epoch_num=1)
            log.end(keys.RUN_STOP, status=keys.SUCCESS)
        log.close(reason="test")
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
            turns=schedule(sides, runs, 1),
        )

    return make
