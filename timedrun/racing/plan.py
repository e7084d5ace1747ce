"""Plan of a race: its sides, each a command line with settings of its own, and how often they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

from judging.comparison.sequential import FIRST_LOOK
from judging.ground import ledger
from judging.ground.errors import UsageError
from judging.ground.result_files import make_new_folder, write_json
from timedrun.racing.decision import KeepIf
from timedrun.racing.race_file import CONTROL, Race, Tuned, Turn, side_file


@dataclass(frozen=True, kw_only=True)
class Side:
    """One contestant of a race."""

    name: str  # of the folder of its runs
    label: str
    settings: Mapping[str, Any]
    """What its file holds: a config, which `timedrun run` takes, or a command line and how its output is read."""
    tuned: Tuned | None = None  # how its settings were tuned; None: not recorded


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Number of runs of each side, and what ends or decides the race."""

    runs: int
    first_seed: int = 1
    unpaired_seeds: bool = False
    control: int = 0  # rounds in which the first side runs once more
    until_decided: bool = False
    keep_if: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the rounds that the options of a command line describe; they may have others, too."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    def require_possible(self, sides: Sequence[Side]) -> None:
        """Raise UsageError for what these `sides` cannot do."""
        if self.until_decided and self.runs < FIRST_LOOK:
            raise UsageError(f"--until-decided looks after {FIRST_LOOK} pairs for the first time; give more --runs.")
        if self.control > self.runs:
            raise UsageError(f"--control {self.control} is more than the {self.runs} rounds; give more --runs.")
        if self.control and CONTROL in [side.name for side in sides]:
            raise UsageError(f"--control writes a folder {CONTROL}, which a config is named; rename the config.")
        if self.keep_if is not None:
            if len(sides) != 2:
                raise UsageError(f"--keep-if compares two sides, here are {len(sides)}; nothing was run.")
            if KeepIf.parsed(self.keep_if).time is None and self.until_decided:
                raise UsageError("--until-decided looks at times only; add `time < 1x` to --keep-if, or leave it out.")


class RacePlan(NamedTuple):
    """A new race and its sides, the control among them."""

    race: Race
    sides: list[Side]

    @classmethod
    def of(cls, sides: Sequence[Side], rounds: Rounds, **facts: Any) -> Self:
        """Return the plan of a race of `sides`, with the `facts` of a race that neither they nor the rounds say. Raises
        UsageError for rounds that these sides cannot run."""
        rounds.require_possible(sides)
        first = sides[0]
        settings = {**first.settings, "name": CONTROL}
        control = Side(name=CONTROL, label=f"{first.label} (control)", settings=settings)
        everyone = [*sides, *[control] * bool(rounds.control)]
        race = Race(
            runs=rounds.runs,
            sides={side.name: side.label for side in everyone},
            tuned={side.name: side.tuned for side in sides if side.tuned},
            control=CONTROL if rounds.control else "",
            until_decided=rounds.until_decided,
            keep_if=rounds.keep_if or "",
            turns=schedule([side.name for side in sides], rounds),
            **facts,
        )
        return cls(race, everyone)

    def make_folder(self, results: str | None) -> Path:
        """Make the folder of the race, `results` or one of the next number, with a file for each side; return it."""
        folder = make_new_folder(results, Path("runs") / self.race.benchmark, self.race.verb)
        (folder / "sides").mkdir()
        ledger.place(folder).touch()  # one for all sets
        for side in self.sides:
            write_json(side_file(folder, side.name), dict(side.settings))
        return folder


def schedule(sides: Sequence[str], rounds: Rounds) -> list[Turn]:
    """Return all runs in order: every side once a round, in an order that is reversed every other round (A B, B A, A B
    ...), so that a machine which slows down or speeds up favours none. The runs of a round share a seed, or with
    `unpaired_seeds` all runs have different ones. The side `CONTROL` runs in the first `control` rounds as well."""
    turns = []
    for number in range(rounds.runs):
        of_round = [*sides, CONTROL] if number < rounds.control else sides
        for place, side in list(enumerate(of_round))[:: -1 if number % 2 else 1]:
            seed = rounds.first_seed + number + (place * rounds.runs if rounds.unpaired_seeds else 0)
            turns.append(Turn(side=side, number=number, seed=seed))
    return turns
