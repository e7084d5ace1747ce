"""Side of a race that is a command: what is run, and what is read of its output."""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import cattrs

from judging.ground.errors import UsageError
from judging.ground.result_files import read_json
from mlevents import keys
from mlevents.event import MARK, is_number
from mlevents.rounds.own_rules import benchmark_rules
from mlevents.rounds.ruleset import BenchmarkRules
from timedrun.race.race_file import COMMANDS

MLLOG: Final = "mllog"
JSON: Final = "json:"
MOST_DIGITS: Final = 18
"""Of a step: a log has numbers of 64 bits."""
UNITS: Final = {"seconds": 1.0, "ms": 1e-3, "minutes": 60.0}
"""Names of the group of a pattern of reported times, and the unit in seconds."""
NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


class Reading(NamedTuple):
    """Start, quality, stop or reported time in a line of output."""

    kind: Literal["start", "quality", "text", "stop", "reported"]
    value: float = 0.0
    """Quality, or reported seconds."""
    step: int | None = None
    text: str = ""
    """In place of a quality, what is no number."""


@dataclass(frozen=True, kw_only=True)
class CommandSide:
    """Settings of a run of a command, as config.json holds them."""

    name: str
    """Of its folder."""
    benchmark: str = COMMANDS
    command: str
    """Command line for the shell; `{seed}` stands for the seed."""
    directory: str = "."
    """Working directory, relative to that of the race."""
    quality: str
    """Evaluations: a regular expression with a group `quality`, or one group, and maybe a group `step`; `json:KEY` for
    lines of JSON; `mllog` for MLPerf's events."""
    target: float
    lower: bool = False
    """Lower quality is better."""
    metric: str = "quality"
    start: str = ""
    """Pattern of the line at which the clock starts; empty: when the process is started."""
    stop: str = ""
    """Pattern of the line at which the clock stops; empty: the first evaluation that reaches the target."""
    reported: str = ""
    """Pattern of the time that the command reports itself, with a group `seconds`, `ms` or `minutes`."""
    seed_variable: str = "SEED"
    """Environment variable with the seed."""
    to_end: bool = False
    """Without `stop`, the clock stops when the process ends, whatever the quality."""
    stop_at_target: bool = False
    """The first evaluation that reaches the target stops the clock, whatever else would, and ends the command."""
    minutes: float = 0.0
    """Longest time of the process; 0: no limit."""
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
        self.reader()
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

    def reached(self, quality: float) -> bool:
        """Return True if `quality` is that of the target or better."""
        return quality <= self.target if self.lower else quality >= self.target

    def reader(self) -> Callable[[str], Iterator[Reading]]:
        """Return the function that yields what a line of output says, in order. Raises UsageError for a pattern that
        is no regular expression, or has not the groups that are read."""
        start, stop = _pattern("--start", self.start), _pattern("--stop", self.stop)
        reported = _pattern("--reported", self.reported)
        if reported and not UNITS.keys() & reported.groupindex.keys():
            raise UsageError(
                f"--reported {self.reported!r} names no unit; write (?P<seconds>...), (?P<ms>...) or (?P<minutes>...)"
            )
        evaluations = self._evaluations()

        def read(line: str) -> Iterator[Reading]:
            if reported and (match := reported.search(line)):
                unit = next(name for name in UNITS if name in match.groupdict())
                if (seconds := _number(match[unit])) is not None and math.isfinite(seconds):
                    yield Reading("reported", seconds * UNITS[unit])
            yield from evaluations(line)
            if stop and stop.search(line):
                yield Reading("stop")
            if start and start.search(line):  # last: what the line says is of before
                yield Reading("start")

        return read

    def _evaluations(self) -> Callable[[str], Iterator[Reading]]:
        if self.quality == MLLOG:
            return _mllog
        if self.quality.startswith(JSON):
            key = self.quality.removeprefix(JSON)

            def from_json(line: str) -> Iterator[Reading]:
                values = _object(line)
                if is_number(value := values.get(key)) or isinstance(value, float):  # nan
                    step = values.get("step")
                    yield Reading("quality", float(value), _step(str(step)) if type(step) is int else None)

            return from_json
        pattern = _pattern("--quality", self.quality)
        if pattern is None or (pattern.groups != 1 and "quality" not in pattern.groupindex):
            raise UsageError(
                f"--quality {self.quality!r} has no group for the value; write 'val_loss:({NUMBER})', or name the"
                f" group: (?P<quality>...)"
            )

        def from_text(line: str) -> Iterator[Reading]:
            match = pattern.search(line)
            text = match and match["quality" if "quality" in pattern.groupindex else 1]
            if match is None or text is None:  # such as a line with the step alone
                return
            if (value := _number(text)) is None:
                yield Reading("text", text=text)
            else:
                yield Reading("quality", value, _step(match.groupdict().get("step")))

        return from_text


def side_in(file: Path) -> CommandSide:
    """Return the settings of runs of a command in a file of JSON. Raises UsageError if it holds none."""
    try:
        return cattrs.structure(read_json(file), CommandSide)
    except (cattrs.BaseValidationError, TypeError) as error:
        raise UsageError(f"{file}: {'; '.join(cattrs.transform_error(error))}.") from None


def _mllog(line: str) -> Iterator[Reading]:
    """Yield what a line of MLPerf's log format says."""
    _, mark, text = line.partition(MARK)
    values = _object(text) if mark else {}
    key, value = values.get("key"), values.get("value")
    if key == keys.RUN_START:
        yield Reading("start")
    elif key == keys.EVAL_ACCURACY and (is_number(value) or isinstance(value, float)):
        yield Reading("quality", float(value))
    elif key == keys.RUN_STOP:
        yield Reading("stop")


def _object(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`, empty if it is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _number(text: str) -> float | None:
    """Return the number that `text` is, nan and inf among them, at the end of a sentence, too; else None."""
    try:
        return float(text.rstrip(".,;:"))
    except ValueError:
        return None


def _step(text: str | None) -> int | None:
    """Return the step that `text` is, None if it is none or has more digits than a log's numbers."""
    return int(text) if text and text.isdecimal() and len(text) <= MOST_DIGITS else None


def _pattern(option: str, text: str) -> re.Pattern[str] | None:
    """Compile a regular expression, None if it is empty. Raises UsageError if it is none."""
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise UsageError(f"{option} {text!r} is no regular expression: {error}.") from None
