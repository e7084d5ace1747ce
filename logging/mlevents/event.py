"""One event of an MLPerf log, and the reader that finds events in a line of any bytes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any, Final, NamedTuple, TypeGuard

from mlevents import keys
from mlevents.checks.finding import Finding, Level

MARK: Final = ":::MLLOG"
MARK_BYTES: Final = MARK.encode()
EVENT_TYPES: Final = (keys.INTERVAL_START, keys.INTERVAL_END, keys.POINT_IN_TIME)
DEEPEST: Final = 32  # levels of nested lists and dicts in a record
MOST_LOST: Final = 100  # unreadable records of one line; each costs the time of all that stands before it
LATEST_MS: Final = 1e15  # the year 33658; anything later is no time, and would lose its milliseconds in a float


class Event(NamedTuple):
    """One record of a log. `line` is the file's own line number from 1, `time_ms` milliseconds since 1970."""

    line: int
    time_ms: float
    event_type: str
    key: str
    value: Any
    metadata: dict[str, Any]
    namespace: str


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a finite integer or float that a float can hold; True and False are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def short(value: object, longest: int = 60) -> str:
    """`value` as text for a message, in ASCII and cut at `longest` characters."""
    text = ascii(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def depth(value: object) -> int:
    """How deep lists and dicts are nested in `value`, 0 for a plain one; found without recursion."""
    level, found = [value], -1
    while level:
        found += 1
        containers = [
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)
        ]
        level = [inner for container in containers for inner in container]
    return found


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


_PLAIN: Final = JSONDecoder(parse_constant=_refused)
_USUAL: Final = f"{MARK} {{".encode()
# Lists, which may be nested deeply, and names that a count of '":' misses: looked for once in a file, not in each line.
_ODD: Final = (b"[", b"\r", b" :", b"\t:")
_FOLLOWED: Final = ("record-alone", "text follows the record on its line; MLCommons' checker refuses it")


class LogReader:
    """Turns the lines of one log into events, and collects what is wrong with them in `problems`."""

    def __init__(self, path: str, data: bytes) -> None:
        """A reader of the log at `path`, whose bytes are `data`."""
        self._path, self._line = path, 0
        self._odd = any(sign in data for sign in _ODD)
        self.problems: list[Finding] = []
        self._constants: list[str] = []
        self._repeated: list[str] = []
        self._decoder = JSONDecoder(parse_constant=self._constant, object_pairs_hook=self._object)

    def _constant(self, name: str) -> float:
        self._constants.append(name)
        return float(name)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            self._repeated += [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        return found

    def _problem(self, rule: str, message: str, level: Level = "error") -> None:
        self.problems.append(Finding(level=level, rule=rule, message=message, line=self._line, path=self._path))

    def usual(self, number: int, raw: bytes) -> Event | None:
        """The only record of a line that holds nothing else and nothing odd; None: `events` says what the line holds.

        Nearly every line is such a one, and this reads it several times faster.
        """
        if not raw.startswith(_USUAL) or raw.find(MARK_BYTES, 1) > 0:
            return None
        if self._odd and (raw.count(b"[") > DEEPEST or any(sign in raw for sign in _ODD[1:])):
            return None
        try:
            text = raw.decode("utf-8")
            fields, end = _PLAIN.raw_decode(text, len(_USUAL) - 1)
            key, time_ms, metadata = fields["key"], fields["time_ms"], fields["metadata"]
            event_type, namespace, value = fields["event_type"], fields["namespace"], fields["value"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        names = text.count('":')  # more than there are fields: one stands twice, or a value is a dict or holds a colon
        if (
            end == len(text)
            and type(time_ms) is int
            and -LATEST_MS <= time_ms <= LATEST_MS
            and type(key) is str
            and type(metadata) is dict
            and event_type in EVENT_TYPES
            and type(namespace) is str
            and names == len(fields) + len(metadata)
        ):
            return Event(number, float(time_ms), event_type, key, value, metadata, namespace)
        return None

    def events(self, number: int, raw: bytes) -> Iterator[Event]:
        """The records of the line `raw`, the file's line `number`; normally one, none without a mark."""
        self._line = number
        text = _decoded(raw)
        # A carriage return ends a line for MLCommons' parser (progress bars write them), but not for an editor.
        for part in re.split(r"[\r\n]", text):
            yield from self._part(part)

    def _part(self, part: str) -> Iterator[Event]:
        if part.count(MARK) > 1:
            self._problem(
                "one-record-a-line",
                f"{part.count(MARK)} records stand on one line; MLCommons' tools read only the last of them. "
                "Log from one process, one write a line",
            )
        position, lost = part.find(MARK), 0
        while position >= 0:
            event, end = self._record(part, position + len(MARK))
            if event is not None:
                yield event
            elif (lost := lost + 1) == MOST_LOST:
                self._problem("record-json", f"{lost} records of this line are lost, and what follows was not read")
                return
            position = part.find(MARK, end)
            if event is not None and position < 0 and part[end:].strip():
                self._problem(*_FOLLOWED)

    def _record(self, text: str, start: int) -> tuple[Event | None, int]:
        """The record whose JSON begins at `start`, and where it ends."""
        if text[start : start + 1] != " ":
            self._problem("record-mark", f"{MARK} is not followed by a space; MLCommons' tools skip this record")
            position = start
        else:
            position = start + 1
        while text[position : position + 1].isspace():
            position += 1
        self._constants.clear()
        self._repeated.clear()
        try:
            fields, end = self._decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            cause = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            self._problem("record-json", f"the record is not readable JSON ({cause}) and is lost")
            return None, position
        if self._constants:
            names = ", ".join(sorted(set(self._constants)))
            self._problem("record-number", f"{names} is no number that JSON or a checker can work with")
        if self._repeated:
            names = ", ".join(short(name) for name in dict.fromkeys(self._repeated))
            self._problem("record-repeats", f"the record names {names} more than once; readers take the last of them")
        # A record of no more brackets than the limit is not deeper, and needs no look.
        deep = text.count("{", position, end) + text.count("[", position, end) > DEEPEST and depth(fields) > DEEPEST
        return self._event(fields, deep), end

    def _event(self, fields: Any, deep: bool) -> Event | None:
        if deep:  # comparing or printing such a value could exhaust the stack later
            self._problem("record-json", f"the record is nested more than {DEEPEST} deep and is lost")
            return None
        if not isinstance(fields, dict):
            self._problem("record-form", f"the record is a JSON {type(fields).__name__}, not an object; it is lost")
            return None
        key, time_ms = fields.get("key"), fields.get("time_ms")
        if not isinstance(key, str):
            self._problem("record-key", f"the record's key is {short(key)}, not a text; the record is lost")
            return None
        if isinstance(time_ms, str):
            time_ms = self._time_from_text(key, time_ms)
        if not is_number(time_ms) or abs(time_ms) > LATEST_MS:
            self._problem("record-time", f"time_ms of {key} is {short(time_ms)}, no time; the record is lost")
            return None
        event_type, namespace = fields.get("event_type"), fields.get("namespace", "")
        if event_type not in EVENT_TYPES:
            self._problem("record-type", f"event_type of {key} is {short(event_type)}, not one of MLPerf's", "warning")
        if "value" not in fields:
            self._problem("record-value", f"{key} has no value field; MLCommons' checker stops at such a record")
        metadata = fields.get("metadata")
        if not isinstance(metadata, dict):
            self._problem(
                "record-metadata", f"metadata of {key} is {short(metadata)}, not an object; checkers stop at it"
            )
            metadata = {}
        return Event(
            line=self._line,
            time_ms=float(time_ms),
            event_type=event_type if isinstance(event_type, str) else "",
            key=key,
            value=fields.get("value"),
            metadata=metadata,
            namespace=namespace if isinstance(namespace, str) else "",
        )

    def _time_from_text(self, key: str, text: str) -> float | None:
        try:
            time_ms = float(text)
        except ValueError:
            return None
        self._problem("record-time", f"time_ms of {key} is the text {short(text)}, not a number", "warning")
        return time_ms


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")  # MLCommons' parser reads everything so; no byte fails
