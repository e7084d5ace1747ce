"""Side of a race that is a command: what is run, and what is read of its output."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from judging.ground.errors import UsageError
from judging.ground.result_files import read_json
from mlevents.rounds.own_rules import benchmark_rules
from mlevents.rounds.ruleset import BenchmarkRules
from timedrun.racing.output_reader import MLLOG, OutputReader, OutputSettings
from timedrun.racing.race_file import COMMANDS, structured


@dataclass(frozen=True, kw_only=True)
class CommandSide(OutputSettings):
    """Settings of a run of a command, as config.json holds them."""

    name: str  # of its folder
    benchmark: str = COMMANDS
    command: str  # command line for the shell; `{seed}` stands for the seed
    directory: str = "."  # working directory, relative to that of the race
    log: str = ""
    """File that the command writes, in `directory`, which is read in place of its output; it may have wildcards."""
    environment: Sequence[str] = ()  # further environment variables, as NAME=VALUE
    seed_variable: str = "SEED"  # environment variable with the seed
    to_end: bool = False  # without `stop`, the clock stops when the process ends, whatever the quality
    stop_at_target: bool = False
    """The first evaluation that reaches the target stops the clock, whatever else would, and ends the command."""
    minutes: float = 0.0  # longest time of the process; 0: no limit
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError for a pattern that cannot be used."""
        if not self.command.strip():
            raise UsageError("a side is an empty command; give the command line that trains.")
        if not self.seed_variable or {*"=\0"} & {*self.seed_variable} or "\0" in self.command:
            raise UsageError(
                f"--seed-variable {self.seed_variable!r} or a command has a character that no process can be given (="
                " or NUL); nothing was run."
            )
        OutputReader(self)
        self.rules(1)

    def rules(self, runs: int) -> BenchmarkRules:
        """Return the rules of the benchmark that the log records. Raises UsageError if a value is none."""
        direction: Literal["<=", ">="] = "<=" if self.lower else ">="
        try:
            return benchmark_rules(
                self.benchmark,
                dataset="read by the command",
                metric=self.metric,
                target=self.target,
                direction=direction,
                runs=runs,
            )
        except ValueError as error:
            raise UsageError(f"--target and --metric: {error}.") from None

    @property
    def waits_for_start(self) -> bool:
        """True if a line of output starts the clock."""
        return bool(self.start) or self.quality == MLLOG

    @property
    def waits_for_stop(self) -> bool:
        """True if a line of output stops the clock."""
        return bool(self.stop) or self.to_end or self.quality == MLLOG

    @property
    def ends_at_target(self) -> bool | None:
        """True if the clock stops at the first evaluation at the target, False if at the process's end, whatever the
        quality; None if a line stops it, which may be that of either."""
        if self.stop_at_target or not self.waits_for_stop:
            return True
        return None if self.stop or self.quality == MLLOG else False

    def names_seed(self, source: Mapping[str, bytes]) -> bool:
        """Return True if the command, or one of the files of its `source`, names the seed or its variable."""
        texts = [self.command, *(raw.decode(errors="replace") for raw in source.values())]
        return "{seed}" in self.command or any(re.search(rf"\b{self.seed_variable}\b", text) for text in texts)


def side_in(file: Path) -> CommandSide:
    """Return the settings of runs of a command in a file of JSON. Raises UsageError if it holds none."""
    return structured(read_json(file), CommandSide, file)
