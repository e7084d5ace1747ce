"""race.json: sides, schedule and outcome of a race, rewritten after every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import cattrs

from judging.ground.errors import TimedrunError, UsageError
from judging.ground.race_labels import RACE_FILE
from judging.ground.result_files import ResultPaths, read_json, write_json

COMMANDS: Final = "command"
"""What stands for a benchmark in a race of commands."""
BUDGET: Final = "{budget}"
"""Stands for the budget in a command of a sweep."""
CONTROL: Final = "control"
"""Folder of the first side's repetition."""
ALONE: Final = ", alone"
"""End of an ablation's row that is about its side `fast`."""
Status = Literal["planned", "running", "finished", "failed", "interrupted", "left out", "not needed"]


@dataclass(kw_only=True)
class Turn:
    """One run of the schedule."""

    side: str
    """Folder of its side."""
    number: int
    """N of result_N.txt; the runs of a round share it."""
    seed: int
    status: Status = "planned"
    why: str = ""
    """Reason of a status other than planned, running or finished."""
    seconds: float = 0.0
    """Wall-clock time of the process."""
    session: int = 0
    """How often the race had been resumed."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row of the table: the speed-up of the side `fast` over the side `slow`."""

    row: str
    slow: str
    fast: str


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Place of a side of a sweep on its curve."""

    curve: str
    """Label of the config that the side is a length of."""
    ratio: float
    """Length of the schedule, as a multiple of the config's; of a command, its budget."""
    text: str = ""
    """Budget of a command, as typed."""

    @property
    def label(self) -> str:
        """Of a side that is a command."""
        filled = self.curve.replace(BUDGET, self.text)
        return filled if filled != self.curve else f"{filled} {self.text}"


@dataclass(kw_only=True)
class Race:
    """Plan of a race and what became of its runs."""

    benchmark: str
    runs: int
    """Runs of each side."""
    options: dict[str, Any] = field(default_factory=dict)
    """Launch options of each run."""
    emulated: dict[str, str] = field(default_factory=dict)
    """What the CPU has no instructions for, by the folder of a side that computes in it."""
    sides: dict[str, str]
    """Label of each side by its folder."""
    commands: dict[str, str] = field(default_factory=dict)
    """Command line of each side whose label is shorter, by its label."""
    comparisons: list[Comparison] = field(default_factory=list)
    ablation: bool = False
    budgets: dict[str, Budget] = field(default_factory=dict)
    """Sweep: budget of each side by its folder; the first curve is the baseline. Empty for a race."""
    differences: list[str] = field(default_factory=list)
    """What differs between the commits of the sides, as lines."""
    until_decided: bool = False
    """The race ends with the round after which every comparison has a verdict."""
    control: str = ""
    """Folder of the side that is the first one again, in the first rounds only."""
    keep_if: str = ""
    """Condition under which the last side is kept."""
    no_package: str = ""
    """Why the sides make no package, "" if they make one."""
    turns: list[Turn]
    session: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    """Results: times, ratios, verdicts, package."""

    def of_side(self, side: str, status: Status) -> list[Turn]:
        """Return the turns of a side with a status, by number."""
        turns = [turn for turn in self.turns if (turn.side, turn.status) == (side, status)]
        return sorted(turns, key=lambda turn: turn.number)

    @property
    def verb(self) -> str:
        """The verb that planned a race of commands."""
        return "sweep" if self.budgets else "run" if len(self.racing) == 1 else "race"

    @property
    def racing(self) -> dict[str, str]:
        """Label of each side by its folder, without the control."""
        return {side: label for side, label in self.sides.items() if side != self.control}

    def save(self, folder: Path) -> None:
        """Write race.json atomically; the results come first."""
        plan: dict[str, Any] = cattrs.unstructure(self)
        write_json(folder / RACE_FILE, {**plan.pop("report"), "race": plan})


def load(folder: Path) -> Race:
    """Return the race in `folder`; raise UsageError if it holds none, or one without a schedule."""
    if not (folder / RACE_FILE).is_file():
        raise UsageError(f"{folder} holds no {RACE_FILE}; name the folder of a race.")
    values = read_json(folder / RACE_FILE)
    if not isinstance(values, dict) or "race" not in values:
        raise UsageError(f"{folder / RACE_FILE} holds no schedule to go on with; `timedrun report` reads the results.")
    plan = values.pop("race")
    try:
        return cattrs.structure({**plan, "report": values}, Race)
    except (cattrs.BaseValidationError, TypeError) as error:
        raise UsageError(f"{folder / RACE_FILE}: {'; '.join(cattrs.transform_error(error))}.") from None


def paths_of(folder: Path, turn: Turn) -> ResultPaths:
    return ResultPaths(folder / turn.side, turn.number)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the race in `folder`; raise TimedrunError if another process has it."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise TimedrunError(f"{folder}: this race is still running; wait until it has finished, or end it.") from None
