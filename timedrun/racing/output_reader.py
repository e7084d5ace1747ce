"""Readings of a command's output: start, evaluations, stop and reported time. A number is read whole or refused."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from judging.ground.errors import UsageError
from mlevents import keys
from mlevents.event import MARK

MLLOG: Final = "mllog"
JSON: Final = "json:"
MOST_COLUMNS: Final = 16  # of a line, that are not finite
MOST_DIGITS: Final = 18  # of a step: a log has numbers of 64 bits
UNITS: Final = {"seconds": 1.0, "ms": 1e-3, "minutes": 60.0}
"""Names of the group of a pattern of reported times, and the unit in seconds."""
ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9AB]|[0-Z\\^_`a-z])")
"""Control sequences of a terminal, such as colours (ECMA-48)."""
FINITE: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
NOT_FINITE: Final = r"(?<![A-Za-z])[-+]?(?i:nan|inf(?:inity)?)(?![A-Za-z])"
NUMBER: Final = re.compile(f"{FINITE}|{NOT_FINITE}")
PLACE: Final = re.compile(r"(?<!\\)\{(|quality|of|step|seconds|ms|minutes)\}")  # stands for a number in a pattern
BEGINS: Final = re.compile(r"[^\w]*\.?\d")  # of a text that is meant as a number
BEFORE: Final = re.compile(r"\d(?:[._'’\u00a0\u2009\u202f]|[eE][-+]?)?$")
"""Ends the text before a match that is the end of a number."""
SIGN: Final = re.compile(r"(?:^|[^\w)\]])[-\u2212]$")
AFTER: Final = re.compile(
    r"[eEdD][-+]?\d|[.:_'’\u00a0\u2009\u202f]?\d|[xX][\da-fA-F]|(?P<unit>\s?[%‰]|[kKMGT](?![A-Za-z]))"
)
"""Begins the text after a match that is the beginning of a number, or is in a unit that the pattern may name."""
ONE_NUMBER: Final = re.compile(r"\d+,\d+|[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|[1-9]\d{0,2}(?:\.\d{3})+,\d+")
"""Decimal comma, or thousands separators; other commas separate numbers."""
RANK: Final = re.compile(r"(?i)\b(?:default|rank|gpu|cuda|worker|process)[ :=_#]*(\d+)|\[\d+,(\d+)\]<std")
COUNTER: Final = re.compile(r"(?i)(?:epoch|step|iter\w*|update|round)\W{0,3}\d")
TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)")
INDENTED: Final = re.compile(r"(\[\w+\]: ?)?\s")
TWO_VALUES: Final = (
    "one evaluation has two values, {:g} and {:g}, as in the line {}: several ranks print; let one print, or match its"
    " lines, such as 'rank0.*val_loss:{{}}'"
)
TOGETHER: Final = 0.1  # lines from several ranks arrive within this share of the time since the evaluation before
FRACTIONS: Final = re.compile(r"(?i)(?<![a-z])(?:acc(?:uracy)?|top.?[15]|f1|m?iou|dice|precision|recall|auc)(?![a-z])")
"""Metrics that are at most 1, or 100 %."""


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """Settings of what is read of the output of a command."""

    quality: str
    """Evaluations: a regular expression with `{}` for the value and maybe `{step}`, or with groups `quality` and
    `step`, or one group; `json:KEY` for lines of JSON; `mllog` for MLPerf's events."""
    target: float
    lower: bool = False  # lower quality is better
    metric: str = "quality"
    start: str = ""  # pattern of the line at which the clock starts; empty: when the process is started
    stop: str = ""  # pattern of the line at which the clock stops; empty: the first evaluation that reaches the target
    reported: str = ""
    """Pattern of the time that the command reports itself, with `{seconds}`, `{ms}` or `{minutes}`, or such a group."""
    after: str = ""
    """Pattern of the lines after which the next evaluation counts, and no other: those of a validation's bar."""
    before: str = ""
    """Pattern of a line after that of `start` that shows it to be of before the training, unless a group `inside` of it
    shows the contrary, or an evaluation has counted: the next such line starts the clock."""
    unreadable: str = ""  # pattern of lines of output from which no evaluation can be read
    hint: str = ""  # what to do where an evaluation, or the start, cannot be read

    def reached(self, quality: float) -> bool:
        """Return True if `quality` is that of the target or better."""
        return quality <= self.target if self.lower else quality >= self.target


class Reading(NamedTuple):
    """Start, quality, stop or reported time in a line of output, or why one cannot be read."""

    kind: Literal["start held", "start", "quality", "text", "refused", "stop", "reported"]
    value: float = 0.0  # quality, or reported seconds
    step: int | None = None
    text: str = ""  # in place of a quality, what is no number; or why the run is refused
    at: float = 0.0  # when the line arrived


class Part(ValueError):
    """Error raised for a match that is a part of a number, or in a unit that the pattern does not name."""


class OutputReader:
    """Reader of the output of a run, line by line.

    Lines of several ranks that tell one evaluation are one reading, which is therefore given with the line after it, or
    by `flush`.

    Raises UsageError for a pattern that is no regular expression, or lacks the groups that are read.
    """

    def __init__(self, side: OutputSettings, began: float = 0.0) -> None:
        self.side = side
        self._start, self._stop = compiled("--start", side.start), compiled("--stop", side.stop)
        self._before_start = compiled("before", side.before)
        self._armed_by, self._unreadable = compiled("after", side.after), compiled("unreadable", side.unreadable)
        self._reported = compiled("--reported", side.reported, "seconds")
        if self._reported and not UNITS.keys() & self._reported.groupindex.keys():
            raise UsageError(
                f"--reported {side.reported!r} names no unit; write {{seconds}}, {{ms}} or {{minutes}} for the number"
            )
        self._quality = self._diverging = None
        if side.quality != MLLOG and not side.quality.startswith(JSON):
            pattern = self._quality = compiled("--quality", side.quality)
            if pattern is None or (pattern.groups != 1 and "quality" not in pattern.groupindex):
                raise UsageError(f"--quality {side.quality!r} has no place for the value; write 'val_loss:{{}}'")
            self._group = "quality" if "quality" in pattern.groupindex else 1
            self._diverging = compiled("--quality", _with_group(pattern, self._group, NOT_FINITE))
        self._start_held: Reading | None = None
        """Start that a line after it may show to be of before the training."""
        self._is_before = self._begun = False
        """Such a line came; and a start was given."""
        self._armed, self._in_traceback = not side.after, False
        self._last: Reading | None = None
        """The last evaluation, which other ranks may tell again."""
        self._held = False
        """It is not given yet."""
        self._key = ""
        """Its line without the value."""
        self._values: list[float] = []
        self._of_rank: dict[str, int] = {}
        """Evaluations told by each rank that its lines name."""
        self._before = began
        """When the line of the evaluation before arrived, or the run began."""

    def read(self, line: str, at: float = 0.0) -> Iterator[Reading]:
        """Yield what a line that arrived `at` says, in order, after the evaluation before."""
        raw, line = line, ESCAPES.sub("", line)
        self._in_traceback = bool(TRACEBACK.search(line)) or (self._in_traceback and bool(INDENTED.match(line)))
        if self._in_traceback:  # it shows lines of the source
            return
        if self._unreadable and self._unreadable.search(line):
            yield Reading("refused", text=self.side.hint, at=at)
        if self._before_start and (match := self._before_start.search(raw)):
            self._is_before = not match.groupdict().get("inside")
            if not self._is_before:
                yield from self.flush(ended=True)
        if self._armed_by and self._armed_by.search(line):
            self._armed = True
        reading = self._evaluation(line, at)
        told = self._told_again(reading, line) if reading and reading.kind == "quality" else None
        if told is None:
            yield from self.flush()
        if self._reported and (match := self._reported.search(line)):
            unit = next(name for name in UNITS if name in self._reported.groupindex)
            try:
                seconds = whole(match, unit)
            except Part as part:
                yield Reading("text", text=f"--reported {part}", at=at)
            else:
                if seconds is not None and math.isfinite(seconds):
                    yield Reading("reported", seconds * UNITS[unit], at=at)
        if reading and reading.kind != "quality":
            yield reading
        elif reading and told is None:
            self._last, self._held = reading, True
        elif reading and told is not None and str(told) != str(reading.value):  # as nan is nan
            yield Reading("refused", text=TWO_VALUES.format(told, reading.value, _shown(line)), at=at)
        if self._stop and self._stop.search(line):
            yield from self.flush(ended=True)
            yield Reading("stop", at=at)
        if self._start and self._start.search(raw if r"\x1b" in self.side.start else line):
            yield from self.flush()  # last: what the line says is of before
            if not self.side.before:
                yield Reading("start", at=at)
            elif not self._begun and (self._start_held is None or self._is_before):
                self._start_held, self._is_before = Reading("start", at=at), False
                yield Reading("start held", at=at)

    def flush(self, *, ended: bool = False) -> Iterator[Reading]:
        """Yield the evaluation that is held, and before it the start that is, unless a line has shown both to be of
        before the training; that start also without an evaluation if the output has `ended` or shows the training."""
        held, self._held = self._last if self._held else None, False
        if self._start_held and (held or ended):
            if not (held and self._is_before):
                self._begun = True
                yield self._start_held
            self._start_held = None
        if held:
            yield held

    def _evaluation(self, line: str, at: float) -> Reading | None:
        """Return what `--quality` reads of a line, None if it is nothing."""
        side = self.side
        if side.quality == MLLOG:
            _, mark, text = line.partition(MARK)
            values = _object(text) if mark else {}
            key = values.get("key")
            if key in (keys.RUN_START, keys.RUN_STOP):
                return Reading("start" if key == keys.RUN_START else "stop", at=at)
            return _json_number(values.get("value"), None, line, at) if key == keys.EVAL_ACCURACY else None
        if side.quality.startswith(JSON):
            values = _object(line)
            return _json_number(values.get(side.quality.removeprefix(JSON)), values.get("step"), line, at)
        if not self._armed or (match := self._match(line)) is None:
            return None
        groups = match.groupdict()
        try:
            value = whole(match, "quality" if match.re is self._diverging else self._group)
            step, of = (whole(match, name) if groups.get(name) else None for name in ("step", "of"))
        except Part as part:
            words = f"--quality {part} in the line {_shown(line)}; {self._better(part)}"
            return Reading("refused", text=words, at=at)
        if value is None:
            text = match[self._group]  # None in a line with the step alone
            return Reading("text", text=f"--quality reads {text!r}, which is no number", at=at) if text else None
        self._armed = not side.after
        if of is not None:  # a count of so many is exact in both units
            value = (1 if side.target <= 1 else 100) * value / of if of else math.nan
        return Reading("quality", value, _step(step), at=at)

    def _match(self, line: str) -> re.Match[str] | None:
        """Match a line with an evaluation, also one that is not finite where the group is for digits only."""
        assert self._quality and self._diverging
        if match := self._quality.search(line):
            return match
        match = self._diverging.search(line)
        for own in islice(re.finditer(NOT_FINITE, line), MOST_COLUMNS):
            # Other columns that are not finite stand for the digits that the pattern has for them.
            before, after = (re.sub(NOT_FINITE, "0.0", text) for text in (line[: own.start()], line[own.end() :]))
            match = match or self._diverging.search(before + own[0] + after)
        return match

    def _better(self, part: Part) -> str:
        """Return what to write in place of a pattern that reads a part of a number."""
        given = self.side.quality
        pattern = given if PLACE.search(given) or not self._quality else _with_group(self._quality, self._group, "{}")
        if "%" in str(part):
            return f"write --quality {f'{pattern}%'!r}, and --target in percent"
        if "," in str(part) or pattern == given:
            return "print a decimal point, no thousands separators, and a blank after a comma between numbers"
        return f"write --quality {pattern!r}"

    def _told_again(self, reading: Reading, line: str) -> float | None:
        """Return the value with which another rank told the evaluation of a line before, None if it is a new one."""
        named = RANK.search(line)
        rank = named and (named[1] or named[2])
        key = NUMBER.sub(lambda number: "" if float(number[0]) == reading.value else number[0], line)
        key = re.sub(r"^\s*\[?\d+\]?:", "", key)  # the rank, as srun --label prints it
        told: float | None = None
        if rank:
            number = self._of_rank[rank] = self._of_rank.get(rank, 0) + 1
            told = self._values[number - 1] if number <= len(self._values) else None
        elif (last := self._last) and (key, reading.step) == (self._key, last.step):
            together = reading.at - last.at <= TOGETHER * (last.at - self._before)
            # Without a counter, other values are of other evaluations, of a program that prints many at once.
            counted = reading.step is not None or last.value == reading.value or COUNTER.search(key)
            told = last.value if together and counted else None
        if told is None:
            self._before, self._key = self._last.at if self._last else self._before, key
            self._values.append(reading.value)
        return told

    def doubt(self, value: float) -> str:
        """Return why a quality cannot be in the unit of the target, "" if it can."""
        target, words = self.side.target, f"{self.side.metric} {value:g} for a target of {self.side.target:g}"
        if self.side.lower or not math.isfinite(value):
            return ""
        if 0 < target <= 1 < value:
            return f"{words}: a percentage? Give --target {100 * target:g}"
        if 1 < target <= 100 and 0 < value < 1 and self.is_fraction:
            return f"{words}: a fraction? Give --target {target / 100:g}"
        return ""

    @property
    def is_fraction(self) -> bool:
        """True if the metric cannot be above 1, or 100 %."""
        return bool(FRACTIONS.search(f"{self.side.metric} {self.side.quality}"))


def compiled(option: str, text: str, value: str = "quality") -> re.Pattern[str] | None:
    """Compile a regular expression in which `{}` stands for a number, that of the group `value`, and `{step}` and the
    like for that of their group; None if it is empty. Raises UsageError if it is no regular expression."""
    places = PLACE.search(text)
    number = f"{FINITE}|{NOT_FINITE}"
    try:
        pattern = re.compile(PLACE.sub(lambda place: f"(?P<{place[1] or value}>{number})", text)) if text else None
    except re.error as error:
        raise UsageError(f"{option} {text!r} is no regular expression: {error}.") from None
    if pattern and places and pattern.groups > len(pattern.groupindex):
        raise UsageError(
            f"{option} {text!r} has {{}} for the number and another group; write (?:...) for groups that are no number,"
            r" and \{\} for braces."
        )
    return pattern


def whole(match: re.Match[str], group: str | int) -> float | None:
    """Return the number that a group of a match is, None if it is none. Raises Part if the line goes on with the
    number, before the group or after it."""
    text = match[group]
    if text is None:
        return None
    text, line = text.rstrip(".,;:"), match.string
    begin = match.start(group)
    end = begin + len(text)
    if not NUMBER.fullmatch(text):
        if BEGINS.match(text):
            raise Part(f"reads {text!r}, which is no plain number,")
        return None
    if not re.fullmatch(FINITE, text):
        return float(text)
    before, after = line[:begin], AFTER.match(line, end)
    if after and after["unit"] and match.end() >= after.end():
        after = None  # the pattern names the unit
    commas = re.split(r"[^\d.,]", before)[-1] + text.lstrip("-+") + re.split(r"[^\d.,]", line[end:], maxsplit=1)[0]
    sign = text[0] not in "-+" and SIGN.search(before)
    if after or sign or BEFORE.search(before) or ONE_NUMBER.fullmatch(commas.strip(".,")):
        other = r"[^\w.,'’+\-\u2212\u00a0\u2009\u202f]"
        rest = re.split(other, line[end:], maxsplit=1)[0] or (after and after["unit"]) or ""
        raise Part(f"reads {text!r} of {re.split(other, before)[-1] + text + rest!r}")
    return float(text)


def _with_group(pattern: re.Pattern[str], group: str | int, new: str) -> str:
    """Return a pattern with `new` in place of a group, which is then named "quality" unless `new` is a place."""
    text, number = pattern.pattern, 0
    wanted = pattern.groupindex[group] if isinstance(group, str) else group
    opened: list[int] = []
    begin = end = len(text)
    # Escapes, sets of characters, and brackets that open a group or only look so.
    for token in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((\?(?!P<))?|\)", text, re.DOTALL):
        if token[0].startswith("("):
            number += not token[1]
            opened.append(number if not token[1] else 0)
            begin = token.start() if number == wanted and not token[1] else begin
        elif token[0] == ")" and opened and opened.pop() == wanted:
            end = token.end()
    return text[:begin] + (new if PLACE.search(new) else f"(?P<quality>{new})") + text[end:]


def _json_number(value: Any, step: Any, line: str, at: float) -> Reading | None:
    """Return the evaluation that a value of JSON is, also a number in quotes."""
    if isinstance(value, str) and not NUMBER.fullmatch(value):
        kind: Literal["refused", "text"] = "refused" if BEGINS.match(value) else "text"
        words = f"--quality reads {value!r}, which is no number of JSON, in the line {_shown(line)}; print one"
        return Reading(kind, text=words, at=at)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    return Reading("quality", float(value), _step(step if type(step) is int else None), at=at)


def _object(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`, empty if it is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _step(step: float | None) -> int | None:
    """Return a step that a log can hold, None for another number."""
    return int(step) if step is not None and 0 <= step < 10**MOST_DIGITS and step == int(step) else None


def _shown(line: str) -> str:
    """Return a line as a message shows it."""
    return repr(line.strip() if len(line) < 160 else f"{line[:160].strip()}...")
