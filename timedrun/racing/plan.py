"""Plan of a race: its sides, each a command line with settings of its own, and how often they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from judging.comparison.sequential import FIRST_LOOK
from judging.ground import ledger
from judging.ground.errors import UsageError
from judging.ground.result_files import make_new_folder, write_json
from timedrun.racing.decision import KeepIf
from timedrun.racing.race_file import CONTROL, Race, Tuned, Turn, side_file


@dataclass(frozen=True, kw_only=True)
class Side:
    """One contestant of a race."""

    name: str
    """Of the folder of its runs."""
    label: str
    settings: Mapping[str, Any]
    """What its file holds: a config, which `timedrun run` takes, or a command line and how its output is read."""
    tuned: Tuned | None = None
    """How its settings were tuned; None: not recorded."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Number of runs of each side, and what ends or decides the race."""

    runs: int
    first_seed: int = 1
    unpaired_seeds: bool = False
    control: int = 0
    """Rounds in which the first side runs once more."""
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


@dataclass(frozen=True)
class RacePlan:
    """A new race: what it is, its sides and its rounds."""

    race: Race
    """With all that neither the sides nor the rounds say."""
    sides: Sequence[Side]
    rounds: Rounds

    @property
    def all_sides(self) -> list[Side]:
        """The sides, and the first one again as the control."""
        first = self.sides[0]
        settings = {**first.settings, "name": CONTROL}
        control = Side(name=CONTROL, label=f"{first.label} (control)", settings=settings)
        return [*self.sides, *[control] * bool(self.rounds.control)]

    def scheduled(self) -> Race:
        """Return the race with all its turns. Raises UsageError for rounds that these sides cannot run."""
        rounds, names = self.rounds, [side.name for side in self.sides]
        rounds.require_possible(self.sides)
        return replace(
            self.race,
            sides={side.name: side.label for side in self.all_sides},
            tuned={side.name: side.tuned for side in self.sides if side.tuned},
            control=CONTROL if rounds.control else "",
            until_decided=rounds.until_decided,
            keep_if=rounds.keep_if or "",
            turns=schedule(
                names, rounds.runs, rounds.first_seed, unpaired_seeds=rounds.unpaired_seeds, control=rounds.control
            ),
        )

    def make_folder(self, results: str | None) -> Path:
        """Make the folder of the race, `results` or one of the next number, with a file for each side; return it."""
        folder = make_new_folder(results, Path("runs") / self.race.benchmark, self.scheduled().verb)
        (folder / "sides").mkdir()
        ledger.place(folder).touch()  # one for all sets
        for side in self.all_sides:
            write_json(side_file(folder, side.name), dict(side.settings))
        return folder


def schedule(
    sides: Sequence[str], runs: int, first_seed: int, *, unpaired_seeds: bool = False, control: int = 0
) -> list[Turn]:
    """Return all runs in order: every side once a round, in an order that is reversed every other round (A B, B A, A B
    ...), so that a machine which slows down or speeds up favours none. The runs of a round share a seed, or with
    `unpaired_seeds` all runs have different ones. The side `CONTROL` runs in the first `control` rounds as well."""
    turns = []
    for number in range(runs):
        of_round = [*sides, CONTROL] if number < control else sides
        for place, side in list(enumerate(of_round))[:: -1 if number % 2 else 1]:
            seed = first_seed + number + (place * runs if unpaired_seeds else 0)
            turns.append(Turn(side=side, number=number, seed=seed))
    return turns
