"""race.json: sides, schedule and outcome of a race, rewritten after every run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

import cattrs

from judging.comparison.sequential import FIRST_LOOK, confidence_of_look
from judging.ground.config_values import digest_of
from judging.ground.errors import TimedrunError, UsageError
from judging.ground.race_labels import RACE_FILE
from judging.ground.result_files import ResultPaths, read_json, write_json
from mlevents.record import read
from mlevents.summary import RunSummary, summarize

COMMANDS: Final = "command"  # what stands for a benchmark in a race of commands
BUDGET: Final = "{budget}"  # stands for the budget in a command of a sweep
CONTROL: Final = "control"  # folder of the first side's repetition
RANGE: Final = re.compile(r"(\d+\.?\d*(?:e[-+]?\d+)?)\.\.(\d+\.?\d*(?:e[-+]?\d+)?)", re.IGNORECASE)
ALONE: Final = ", alone"  # end of an ablation's row that is about its side `fast`
LEFT_OUT: Final = ", left out"
PROFILES: Final = "profiles.json"
"""In the folder of an ablation: profiles of its bare config and of each method alone, made before its runs."""
Kind = TypeVar("Kind")
Status = Literal["planned", "running", "finished", "failed", "interrupted", "left out", "not needed"]


@dataclass(kw_only=True)
class Turn:
    """One run of the schedule."""

    side: str  # folder of its side
    number: int  # n of result_N.txt; the runs of a round share it
    seed: int
    status: Status = "planned"
    why: str = ""  # reason of a status other than planned, running or finished
    seconds: float = 0.0  # wall-clock time of the process
    session: int = 0  # how often the race had been resumed


Start = Callable[[Turn, str], tuple[int, int]]
"""Runs a turn, with its label for progress lines, to its end; returns the exit code, and the signal that came, or 0."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A row of the table: the speed-up of the side `fast` over the side `slow`."""

    row: str
    slow: str
    fast: str


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Place of a side of a sweep on its curve."""

    curve: str  # label of the config that the side is a length of
    ratio: float  # length of the schedule, as a multiple of the config's; of a command, its budget
    text: str = ""  # budget of a command, as typed

    @property
    def label(self) -> str:
        """Of a side that is a command."""
        filled = self.curve.replace(BUDGET, self.text)
        return filled if filled != self.curve else f"{filled} {self.text}"


@dataclass(frozen=True)
class Range:
    """Values of a setting that a tuning tries, evenly on a logarithmic scale."""

    low: float
    high: float
    whole: bool = False  # whole numbers only

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise UsageError(f"{self.text} is no range of a logarithmic scale; give LOW..HIGH with 0 < LOW <= HIGH.")
        if self.whole:  # 1 is the least: the scale has no 0
            for end in ("low", "high"):
                object.__setattr__(self, end, float(max(1, int(getattr(self, end)))))

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """Return the range in a text such as 0.01..1 or 16..256, whose ends are whole, None if it is none."""
        match = RANGE.fullmatch(text)
        return match and cls(float(match[1]), float(match[2]), all(map(str.isdecimal, match.groups())))

    @property
    def text(self) -> str:
        return f"{self.low:.4g}..{self.high:.4g}"

    def at(self, value: float) -> float:
        """Return the nearest value within the range, of a whole number or three digits."""
        return min(max(round(value) if self.whole else float(f"{value:.3g}"), self.low), self.high)


@dataclass(kw_only=True)
class Tuning:
    """Search for the settings of sides. Each setting that is tried is a side of its own, named after its base's."""

    minutes: float  # machine time of each side
    seed: int
    split: str  # data on which the trials are evaluated, as their logs name it; of commands as the user states it
    spaces: dict[str, dict[str, Range]]  # ranges of the settings by side
    bases: dict[str, dict[str, Any]]  # settings of each side as given
    labels: dict[str, str]
    target: float | None = None  # quality at which a trial ends; None: the side's own target
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    """Values of each setting that was tried, by the folder of its runs."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Record of the tuning of a side, as the file of its settings states it."""

    minutes: float  # machine time of all runs of the search
    trials: int  # runs
    settings: int  # settings tried
    space: dict[str, str]
    split: str
    target: float
    seed: int
    ledger: str  # SHA-256 of the last line of the ledger, which has the SHA-256 of every log, after the last run
    of: str  # digest of the settings that were chosen
    changed: bool = False  # the settings of the race are others

    @classmethod
    def read(cls, values: Any, settings: Mapping[str, Any], source: Path) -> Tuned | None:
        """Return the record `values` of `source`, with whether `settings` are those that it is of; None if there is
        none. Raises UsageError for values that are no record."""
        record = structured(values, cls, f"{source}: tuning") if values is not None else None
        return record and replace(record, changed=record.of != chosen_digest(settings))

    @property
    def words(self) -> str:
        split = f"on {self.split}" if self.split else "on data that is not stated"
        then = ", then changed" if self.changed else ""
        return f"tuned {self.minutes:.3g} min ({self.trials} runs {split}){then}"


def chosen_digest(settings: Mapping[str, Any]) -> str:
    """Return the digest of the settings that a tuning chooses: of all but names, the seed and the submission."""
    return digest_of({key: value for key, value in settings.items() if key not in ("name", "notes", "submission")})


@dataclass(kw_only=True)
class Race:
    """Plan of a race and what became of its runs."""

    benchmark: str
    runs: int  # runs of each side
    options: dict[str, Any] = field(default_factory=dict)  # launch options of each run
    emulated: dict[str, str] = field(default_factory=dict)
    """What the CPU has no instructions for, by the folder of a side that computes in it."""
    sides: dict[str, str]  # label of each side by its folder
    commands: dict[str, str] = field(default_factory=dict)
    """Command line of each side whose label is shorter, by its label."""
    comparisons: list[Comparison] = field(default_factory=list)
    ablation: bool = False
    budgets: dict[str, Budget] = field(default_factory=dict)
    """Sweep: budget of each side by its folder; the first curve is the baseline. Empty for a race."""
    differences: list[str] = field(default_factory=list)  # what differs between the commits of the sides, as lines
    until_decided: bool = False  # the race ends with the round after which every comparison has a verdict
    tuning: Tuning | None = None  # the runs are trials of a search; None: a race or a sweep
    tuned: dict[str, Tuned] = field(default_factory=dict)
    """How sides were tuned, by their folder; of the others that is not recorded."""
    control: str = ""  # folder of the side that is the first one again, in the first rounds only
    keep_if: str = ""  # condition under which the last side is kept
    no_package: str = ""
    """Why the sides make no package, "" if they make one."""
    turns: list[Turn]
    session: int = 0
    report: dict[str, Any] = field(default_factory=dict)  # results: times, ratios, verdicts, package

    def of_side(self, side: str, status: Status) -> list[Turn]:
        """Return the turns of a side with a status, by number."""
        turns = [turn for turn in self.turns if (turn.side, turn.status) == (side, status)]
        return sorted(turns, key=lambda turn: turn.number)

    def finished(self, folder: Path, side: str) -> list[RunSummary]:
        """Return the runs of a side that have finished, by number, as their logs in `folder` have them."""
        return [summarize(read(paths_of(folder, turn).log)) for turn in self.of_side(side, "finished")]

    @property
    def verb(self) -> str:
        """The verb that planned it."""
        return "tune" if self.tuning else "race"

    @property
    def is_single_command(self) -> bool:
        return self.benchmark == COMMANDS and not self.tuning and len(self.racing) == 1

    @property
    def left(self) -> bool:
        """True if a run has not ended, or may follow, as in a tuning."""
        return self.tuning is not None or any(
            turn.status in ("planned", "running", "interrupted") for turn in self.turns
        )

    @property
    def racing(self) -> dict[str, str]:
        """Label of each side by its folder, without the control."""
        return {side: label for side, label in self.sides.items() if side != self.control}

    @property
    def confidence(self) -> float:
        """Of each interval, so that all hold at once with 95 %, in a race until it is decided at all of its looks."""
        comparisons = max(1, len(self.comparisons))
        if self.until_decided:
            pairs = min(len(self.of_side(side, "finished")) for side in self.racing)
            return confidence_of_look(max(pairs, FIRST_LOOK), self.runs, comparisons)
        return 1 - 0.05 / comparisons

    def save(self, folder: Path) -> None:
        """Write race.json atomically; the results come first."""
        plan: dict[str, Any] = cattrs.unstructure(self)
        write_json(folder / RACE_FILE, {**plan.pop("report"), "race": plan})


def structured(values: Any, kind: type[Kind], source: object) -> Kind:
    """Return the `kind` that `values` describe. Raises UsageError, which names their `source`, if they do not."""
    try:
        return cattrs.structure(values, kind)
    except (cattrs.BaseValidationError, TypeError) as error:
        raise UsageError(f"{source}: {'; '.join(cattrs.transform_error(error))}.") from None


def load(folder: Path) -> Race:
    """Return the race in `folder`; raise UsageError if it holds none, or one without a schedule."""
    if not (folder / RACE_FILE).is_file():
        raise UsageError(f"{folder} holds no {RACE_FILE}; name the folder of a race.")
    values = read_json(folder / RACE_FILE)
    if not isinstance(values, dict) or "race" not in values:
        raise UsageError(f"{folder / RACE_FILE} holds no schedule to go on with; `timedrun report` reads the results.")
    plan = values.pop("race")
    return structured({**plan, "report": values}, Race, folder / RACE_FILE)


def planned(folder: Path) -> Race | None:
    """Return the race in `folder`, None if it holds none with a schedule, such as one of before there were schedules.
    Raises UsageError if that cannot be read."""
    values = read_json(folder / RACE_FILE) if (folder / RACE_FILE).is_file() else None
    return load(folder) if isinstance(values, dict) and "race" in values else None


def side_file(folder: Path, side: str) -> Path:
    return folder / "sides" / f"{side}.json"


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
