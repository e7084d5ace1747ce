"""Events of an MLPerf log, parsed from lines of arbitrary bytes, and findings about them."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from json import JSONDecoder
from sys import intern
from typing import Any, Final, Literal, NamedTuple, TypeGuard

from mlevents import keys

MARK: Final = ":::MLLOG"
MARK_BYTES: Final = MARK.encode()
EVENT_TYPES: Final = (keys.INTERVAL_START, keys.INTERVAL_END, keys.POINT_IN_TIME)
STARTS: Final = frozenset({keys.INIT_START, keys.RUN_START, keys.EPOCH_START, keys.BLOCK_START, keys.EVAL_START})
ENDS: Final = frozenset({keys.INIT_STOP, keys.RUN_STOP, keys.EPOCH_STOP, keys.BLOCK_STOP, keys.EVAL_STOP})
DEEPEST: Final = 32  # levels of nested lists and dicts in a record
MOST_LOST: Final = 100  # unreadable records of one line; each costs time proportional to the text before it
MOST_ALIKE: Final = 5  # problems of one rule in a log that are said one by one
# By the first characters of a record, what wrote it.
WRITTEN_AS: Final = {
    "{'": "the record is a Python dict, not JSON: write json.dumps(record), or log with mlperf_logging",
    "{\\": (
        "the record is within a JSON string, as in Docker's json-file logs, which MLCommons' tools cannot read: take "
        "the log from `docker logs CONTAINER`, or unwrap it with `jq -rj .log FILE`"
    ),
}
LATEST_MS: Final = 1e15  # the year 33658; a later time would lose its milliseconds in a float


Level = Literal["error", "warning", "note"]


class Event(NamedTuple):
    """One record of a log: `line` is its line number in the file, from 1; `time_ms` is in milliseconds since 1970."""

    line: int
    time_ms: float
    event_type: str
    key: str
    value: Any
    metadata: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of a check: an `error` breaks a rule, a `warning` is doubtful but allowed, a `note` only informs.

    `rule` is a fixed short id such as "target-reached"; `line` is the line number in the file, from 1; `path` names the
    file, or is None if the finding concerns no single file."""

    level: Level
    rule: str
    message: str
    line: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line) if part is not None)
        return f"{place + ': ' if place else ''}{self.level} [{self.rule}] {self.message}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True if `value` is a finite int or float that fits a float; bools are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def short(value: object, longest: int = 60) -> str:
    """Return `value` as ASCII text for a message, truncated to `longest` characters."""
    text = ascii(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def listed(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join the first `most` of `names`, and count the others."""
    return between.join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def json_fault(error: Exception) -> str:
    """Return why text could not be read as JSON, without the interpreter's names of its limits."""
    match error:
        case RecursionError():
            return "nested too deeply"
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8"
        case OSError():
            return error.strerror or str(error)
    return "a number has too many digits" if "int_max_str_digits" in str(error) else str(error)


def depth(value: object) -> int:
    """Return the nesting depth of lists and dicts in `value` without recursion; 0 for a scalar."""
    level, levels = [value], -1
    while level:
        levels += 1
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    return levels


def _of_rules(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return `metadata` without the place of the logging call, which no rule reads and which takes much memory."""
    metadata.pop("file", None)
    metadata.pop("lineno", None)
    return metadata or {}


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


_PLAIN: Final = JSONDecoder(parse_constant=_refused)
_USUAL: Final = f"{MARK} {{".encode()


class LogReader:
    """Parser of the lines of one log; defects of form are collected in `problems`."""

    def __init__(self, path: str) -> None:
        self._path, self._line = path, 0
        self.problems: list[Finding] = []
        self._constants: list[str] = []
        self._repeated: list[str] = []
        self._decoder = JSONDecoder(parse_constant=self._constant, object_pairs_hook=self._object)

    def _constant(self, name: str) -> float:
        self._constants.append(name)
        return float(name)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            self._repeated += [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        return values

    def _problem(self, rule: str, message: str, level: Level = "error") -> None:
        self.problems.append(Finding(level=level, rule=rule, message=message, line=self._line, path=self._path))

    @property
    def problems_once(self) -> list[Finding]:
        """The problems, those of a rule with more than `MOST_ALIKE` as the first of them and their number."""
        count = Counter(problem.rule for problem in self.problems)
        said: list[Finding] = []
        for problem in self.problems:
            alike = count[problem.rule]
            if alike <= MOST_ALIKE:
                said.append(problem)
            elif all(problem.rule != other.rule for other in said):
                message = f"{problem.message}; so or similarly {alike:,} records of this log, this is the first"
                said.append(replace(problem, message=message))
        return said

    def usual(self, number: int, raw: bytes) -> Event | None:
        """Return the event of a line in the usual form; None if `events` has to parse the line.

        This fast path reads nearly every line of a log, several times faster than `events`."""
        start = raw.find(_USUAL)
        if start < 0 or not raw[:start].isascii() or MARK_BYTES in raw[:start]:
            return None
        try:
            text = raw[start:].decode("utf-8")
            # Lists may nest deeply; a count of '":' misses the other names.
            if text.count("[") > DEEPEST or " :" in text or "\t" in text or "\r" in text or text.find(MARK, 1) > 0:
                return None
            fields, end = _PLAIN.raw_decode(text, len(_USUAL) - 1)
            key, time_ms, metadata = fields["key"], fields["time_ms"], fields["metadata"]
            event_type, value = fields["event_type"], fields["value"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        # More names than there are fields: a duplicate, a deeper dict, or a string with '":'.
        names = text.count('":') - (len(value) if type(value) is dict else 0)
        if (
            end == len(text)
            and type(time_ms) is int
            and -LATEST_MS <= time_ms <= LATEST_MS
            and type(key) is str
            and type(metadata) is dict
            and event_type in EVENT_TYPES
            and names == len(fields) + len(metadata)
        ):
            return Event(number, float(time_ms), intern(event_type), intern(key), value, _of_rules(metadata))
        return None

    def events(self, number: int, raw: bytes) -> Iterator[Event]:
        """Yield the events of the line `raw`, line `number` of the file: normally one, none without a mark."""
        self._line = number
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")  # as MLCommons' parser does; it accepts any bytes
        # A carriage return ends a line for MLCommons' parser (progress bars write them), but not for an editor.
        for part in re.split(r"[\r\n]", text):
            yield from self._part(part)

    def _part(self, part: str) -> Iterator[Event]:
        if (count := part.count(MARK)) > 1:
            message = f"{count} records on one line, of which MLCommons' tools read only the last; log from one process"
            self._problem("one-record-a-line", f"{message}, with one write per line")
        position, lost = part.find(MARK), 0
        while position >= 0:
            event, end = self._record(part, position + len(MARK))
            if event is not None:
                yield event
            elif (lost := lost + 1) == MOST_LOST:
                self._problem("record-json", f"{lost} unreadable records on this line; rest of the line skipped")
                return
            position = part.find(MARK, end)
            if event is not None and position < 0 and part[end:].strip():
                self._problem("record-alone", "text follows the record on its line, which MLCommons' checker rejects")

    def _record(self, text: str, start: int) -> tuple[Event | None, int]:
        """Return the event of the record whose JSON begins at `start`, and the position after it."""
        if text[start : start + 1] != " ":
            self._problem("record-mark", f"{MARK} is not followed by a space, so MLCommons' tools skip this record")
        position = start
        while text[position : position + 1].isspace():
            position += 1
        self._constants.clear()
        self._repeated.clear()
        try:
            fields, end = self._decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            why = WRITTEN_AS.get(text[position : position + 2]) or f"invalid JSON ({json_fault(error)})"
            self._problem("record-json", f"{why}; record skipped")
            return None, position
        if self._constants:
            names = ", ".join(sorted(set(self._constants)))
            self._problem("record-number", f"{names} is not a JSON number; checkers cannot use it")
        if self._repeated:
            names = ", ".join(short(name) for name in dict.fromkeys(self._repeated))
            self._problem("record-repeats", f"duplicate name {names} in the record; readers use the last value")
        # A record with no more brackets than the limit cannot be deeper.
        deep = text.count("{", position, end) + text.count("[", position, end) > DEEPEST and depth(fields) > DEEPEST
        return self._event(fields, deep), end

    def _event(self, fields: Any, deep: bool) -> Event | None:
        if deep:  # comparing or printing such a value could overflow the stack
            self._problem("record-json", f"nested more than {DEEPEST} levels deep; record skipped")
            return None
        if not isinstance(fields, dict):
            self._problem("record-form", f"the record is a JSON {type(fields).__name__}, not an object; skipped")
            return None
        key, time_ms = fields.get("key"), fields.get("time_ms")
        if not isinstance(key, str):
            self._problem("record-key", f"the record's key is {short(key)}, not a string; record skipped")
            return None
        if isinstance(said := time_ms, str):
            time_ms = None
            with suppress(ValueError):
                time_ms = float(said)
                self._problem("record-time", f"time_ms of {key} is the string {short(said)}, not a number", "warning")
        if not is_number(time_ms) or abs(time_ms) > LATEST_MS:
            hint = ""
            if is_number(time_ms):
                unit, by = ("microseconds", "1,000") if time_ms < 1e17 else ("nanoseconds", "1,000,000")
                hint = f", as if the log's times were in {unit}: divide them by {by}"
            message = f"time_ms of {key} is {short(time_ms)}, not a valid time{hint}; record skipped"
            self._problem("record-time", message)
            return None
        event_type = fields.get("event_type")
        if event_type not in EVENT_TYPES:
            message = f"event_type of {key} is {short(event_type)}, which MLPerf does not define"
            self._problem("record-type", message, "warning")
        if "value" not in fields:
            self._problem("record-value", f"{key} has no value field; MLCommons' checker aborts at such a record")
        metadata = fields.get("metadata")
        if not isinstance(metadata, dict):
            message = f"metadata of {key} is {short(metadata)}, not an object; checkers abort at such a record"
            self._problem("record-metadata", message)
            metadata = {}
        kind = event_type if isinstance(event_type, str) else ""
        return Event(self._line, float(time_ms), kind, key, fields.get("value"), _of_rules(metadata))
