"""Mutations of a good log, each with the expected strict verdict and that of MLCommons' checker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

MARK: Final = ":::MLLOG "
START_MS: Final = 1_650_000_000_000
TRAINED: Final = ("block_start", "epoch_start", "block_stop", "epoch_stop")

Change = Callable[[str], str]
LaunchEnv = tuple[str | tuple[str, ...], int]  # key, or keys, and which of the events: the file's line of that record


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change of a good log. `rule` is found at `level`, on the line of the record `at`; None: about no line.

    "breaks off": MLCommons' checker ends in a traceback.
    """

    name: str
    change: Change
    strict: Literal["pass", "fail"]
    official: Literal["pass", "fail", "breaks off"]
    rule: str | None = None
    at: LaunchEnv | None = None
    level: Literal["error", "warning", "note"] = "error"


def good_log() -> str:
    """A complete log of an open resnet run of three epochs, with what a framework prints between the records."""
    lines, clock = ["starting", ""], START_MS

    def add(key: str, value: object = None, kind: str = "POINT_IN_TIME", wait: int = 0, **metadata: object) -> None:
        nonlocal clock
        clock += wait
        record = {"namespace": "", "time_ms": clock, "event_type": kind, "key": key, "value": value}
        record["metadata"] = {"file": "train.py", "lineno": len(lines), **metadata}
        lines.append(MARK + json.dumps(record))

    add("cache_clear", True)
    add("init_start", kind="INTERVAL_START", wait=5)
    for key, value in (
        ("submission_benchmark", "resnet"),
        ("submission_division", "open"),
        ("submission_org", "Nobody"),
        ("submission_platform", "laptop"),
        ("submission_status", "onprem"),
        ("submission_poc_name", "No One"),
        ("submission_poc_email", "no@one.example"),
        ("seed", 7),
        ("global_batch_size", 2048),
        ("gradient_accumulation_steps", 1),
        ("train_samples", 1281167),
        ("eval_samples", 50000),
    ):
        add(key, value)
    add("init_stop", kind="INTERVAL_END", wait=30_000)
    add("run_start", kind="INTERVAL_START", wait=10)
    for epoch, accuracy in enumerate((0.4, 0.71, 0.7612), start=1):
        add("block_start", kind="INTERVAL_START", wait=3, first_epoch_num=epoch, epoch_count=1)
        add("epoch_start", kind="INTERVAL_START", epoch_num=epoch)
        lines.append(f"epoch {epoch}: loss 2.{epoch}")
        add("epoch_stop", kind="INTERVAL_END", wait=57_011, epoch_num=epoch)
        add("eval_start", kind="INTERVAL_START", epoch_num=epoch)
        add("eval_accuracy", accuracy, wait=3_007, epoch_num=epoch)
        add("eval_stop", kind="INTERVAL_END", epoch_num=epoch)
        add("block_stop", kind="INTERVAL_END", first_epoch_num=epoch)
    add("run_stop", kind="INTERVAL_END", wait=2, status="success")
    return "\n".join(lines) + "\n"


def key_of(line: str) -> str | None:
    """The key of the last record on `line`, None where there is none or it cannot be read."""
    try:
        return str(json.loads(line.rpartition(MARK)[2])["key"]) if MARK in line else None
    except (ValueError, KeyError, TypeError):
        return None


def line_of(text: str, place: LaunchEnv) -> int:
    """The number, from 1, of the line that holds the record `place`."""
    wanted, which = place
    names = (wanted,) if isinstance(wanted, str) else wanted
    return [number for number, line in enumerate(text.split("\n"), start=1) if key_of(line) in names][which]


def drop(*names: str) -> Change:
    """Leave out every record of these keys."""
    return lambda text: "\n".join(line for line in text.split("\n") if key_of(line) not in names)


def edit(key: str, change: Callable[[dict[str, Any]], object], which: Iterable[int] | None = None) -> Change:
    """Change the records of `key`, all or those of `which` by number, negative ones from the end."""

    def mutate(text: str) -> str:
        lines = text.split("\n")
        places = [place for place, line in enumerate(lines) if key_of(line) == key]
        for place in places if which is None else [places[number] for number in which]:
            prefix, _, body = lines[place].rpartition(MARK)
            record = json.loads(body)
            change(record)
            lines[place] = prefix + MARK + json.dumps(record)
        return "\n".join(lines)

    return mutate


def put(key: str, value: object, which: Iterable[int] | None = None) -> Change:
    """Give the records of `key` another value."""
    return edit(key, lambda record: record.update(value=value), which)


def shift(key: str, by_ms: float, which: Iterable[int] | None = None) -> Change:
    """Move the time of the records of `key`."""
    return edit(key, lambda record: record.update(time_ms=record["time_ms"] + by_ms), which)


def each(*changes: Change) -> Change:
    """One change after the other."""

    def mutate(text: str) -> str:
        for change in changes:
            text = change(text)
        return text

    return mutate


def line_edit(place: LaunchEnv, change: Callable[[str], str]) -> Change:
    """Change the text of the line of a record."""

    def mutate(text: str) -> str:
        lines, number = text.split("\n"), line_of(text, place) - 1
        lines[number] = change(lines[number])
        return "\n".join(lines)

    return mutate


def move(place: LaunchEnv, behind: LaunchEnv) -> Change:
    """Move a record behind another."""

    def mutate(text: str) -> str:
        lines = text.split("\n")
        moved = lines.pop(line_of(text, place) - 1)
        lines.insert(line_of("\n".join(lines), behind), moved)
        return "\n".join(lines)

    return mutate


def join(first: LaunchEnv, second: LaunchEnv) -> Change:
    """Two records on one line, as two unsynchronised processes write them."""

    def mutate(text: str) -> str:
        lines, number = text.split("\n"), line_of(text, first) - 1
        record = lines.pop(number)
        target = line_of("\n".join(lines), second) - 1
        lines[target] = record + lines[target]
        return "\n".join(lines)

    return mutate


def copy_time(source: str, target: str) -> Change:
    """Give the record of `target` the time of `source`'s."""

    def mutate(text: str) -> str:
        record = json.loads(text.split("\n")[line_of(text, (source, 0)) - 1].rpartition(MARK)[2])
        return edit(target, lambda other: other.update(time_ms=record["time_ms"]))(text)

    return mutate


def twice(key: str, value: object = None) -> Change:
    """The record of `key` on a second line, with another value where one is given."""

    def again(line: str) -> str:
        second = line if value is None else put(key, value)(line)
        return f"{line}\n{second}"

    return line_edit((key, 0), again)


def renumbered(text: str) -> str:
    """Epochs counted from 0."""
    text = edit("epoch_start", lambda record: record["metadata"].update(epoch_num=0), [0])(text)
    return edit("block_start", lambda record: record["metadata"].update(first_epoch_num=0), [0])(text)


def _missing(key: str) -> Mutation:
    return Mutation(name=f"no {key}", change=drop(key), strict="fail", official="fail", rule="required-key")


def _spare(key: str) -> Mutation:
    return Mutation(name=f"no {key}", change=drop(key), strict="pass", official="pass")


def _named(
    name: str,
    change: Change,
    strict: Literal["pass", "fail"],
    official: Literal["pass", "fail", "breaks off"],
    rule: str | None = None,
    at: LaunchEnv | None = None,
    level: Literal["error", "warning", "note"] = "error",
) -> Mutation:
    return Mutation(name=name, change=change, strict=strict, official=official, rule=rule, at=at, level=level)


ACCURACY: Final = "eval_accuracy"
LAST: Final = (-1,)
FIRST_ACCURACY: Final = (ACCURACY, 0)
LAST_ACCURACY: Final = (ACCURACY, -1)
STOP: Final = ("run_stop", 0)

REQUIRED: Final = (
    *(f"submission_{name}" for name in ("benchmark", "division", "org", "platform", "status")),
    *("train_samples", "eval_samples", "cache_clear", "init_start", "init_stop", "run_start", "run_stop", ACCURACY),
)
MUTATIONS: Final[tuple[Mutation, ...]] = (
    *map(_missing, REQUIRED),
    *map(_spare, ("global_batch_size", "gradient_accumulation_steps", "submission_poc_name", "submission_poc_email")),
    _named("no seed", drop("seed"), "pass", "pass", "seed", level="warning"),
    _named("no epochs", drop("epoch_start", "epoch_stop"), "pass", "pass"),
    _named("no blocks", drop("block_start", "block_stop"), "pass", "pass"),
    _named("no marks of evaluations", drop("eval_start", "eval_stop"), "pass", "pass"),
    _named("no epochs, no blocks", drop(*TRAINED), "fail", "fail", "required-key"),
    _named(
        "no marks of evaluations, no blocks",
        drop("eval_start", "eval_stop", "block_start", "block_stop"),
        *("fail", "fail", "required-key"),
    ),
    _named(
        "aborted",
        edit("run_stop", lambda record: record["metadata"].update(status="aborted")),
        *("fail", "pass", "status-success", STOP),
    ),
    _named(
        "no status",
        edit("run_stop", lambda record: record["metadata"].pop("status")),
        *("fail", "fail", "required-metadata", STOP),
    ),
    _named("never near the target", put(ACCURACY, 0.01), "fail", "pass", "target-reached", LAST_ACCURACY),
    _named("target missed at last", put(ACCURACY, 0.7589, LAST), "fail", "pass", "target-reached", LAST_ACCURACY),
    _named("percent", put(ACCURACY, 75.9), "fail", "fail", "quality-range", FIRST_ACCURACY),
    _named("percent at last", put(ACCURACY, 76.1, LAST), "fail", "pass", "quality-range", LAST_ACCURACY),
    _named("null", put(ACCURACY, None), "fail", "breaks off", "quality-range", FIRST_ACCURACY),
    _named("null at last", put(ACCURACY, None, LAST), "fail", "breaks off", "quality-range", LAST_ACCURACY),
    _named("not a number at last", put(ACCURACY, float("nan"), LAST), "fail", "pass", "record-number", LAST_ACCURACY),
    _named("accuracy as text", put(ACCURACY, "0.77"), "fail", "breaks off", "quality-range", FIRST_ACCURACY),
    _named(
        "no epoch of the accuracy",
        edit(ACCURACY, lambda record: record["metadata"].pop("epoch_num")),
        *("fail", "fail", "required-metadata", FIRST_ACCURACY),
    ),
    *(
        _named(
            f"status {status}",
            put("submission_status", status),
            *("fail", "fail", "vocabulary", ("submission_status", 0)),
        )
        for status in ("Available on-premise", "rdi")
    ),
    _named(
        "benchmark resnet50",
        put("submission_benchmark", "resnet50"),
        *("fail", "breaks off", "vocabulary", ("submission_benchmark", 0)),
    ),
    # Right by itself; that it lies in a folder of resnet is for the check of a submission to find.
    _named("benchmark bert", put("submission_benchmark", "bert"), "pass", "pass"),
    _named(
        "division after init_stop",
        move(("submission_division", 0), ("init_stop", 0)),
        *("fail", "fail", "submission-order", ("submission_division", 0)),
    ),
    _named(
        "init of 241 minutes",
        each(*(shift(key, -241 * 60_000) for key in ("init_start", "cache_clear"))),
        *("fail", "fail", "init-limit", ("init_stop", 0)),
    ),
    _named(
        "init of 31 minutes, closed",
        each(
            put("submission_division", "closed"),
            *(shift(key, -31 * 60_000) for key in ("init_start", "cache_clear")),
        ),
        *("fail", "fail", "init-limit", ("init_stop", 0)),
    ),
    _named(
        "gap after init",
        each(*(shift(key, -20_000) for key in ("cache_clear", "init_start", "init_stop"))),
        *("pass", "pass", "init-gap", ("run_start", 0), "note"),
    ),
    _named(
        "run_start after the first block",
        move(("run_start", 0), ("block_start", 0)),
        *("fail", "fail", "before-run-start", (TRAINED, 0)),
    ),
    _named(
        "run_stop right after run_start",
        move(STOP, ("run_start", 0)),
        *("fail", "pass", "target-reached", STOP),
    ),
    _named("run_stop before run_start in time", shift("run_stop", -1e10), "fail", "pass", "clock-order", STOP),
    _named("run_stop before run_start in the file", move(STOP, ("init_start", 0)), "fail", "fail", "clock-order", STOP),
    _named("run_stop made earlier", shift("run_stop", -50_000), "fail", "pass", "clock-order", STOP),
    _named("run_start made later", shift("run_start", 100_000), "fail", "pass", "clock-order", ("run_start", 0)),
    _named("no time passes", copy_time("run_start", "run_stop"), "fail", "pass", "clock-order", STOP),
    _named(
        "cache cleared after run_stop",
        move(("cache_clear", 0), STOP),
        *("fail", "pass", "cache-clear", ("cache_clear", 0)),
    ),
    _named(
        "organization twice, alike",
        twice("submission_org"),
        *("pass", "pass", "one-occurrence", ("submission_org", 1), "warning"),
    ),
    _named(
        "organization twice, different",
        twice("submission_org", "Somebody"),
        *("fail", "fail", "one-occurrence", ("submission_org", 1)),
    ),
    _named("run_start twice", twice("run_start"), "fail", "pass", "one-occurrence", ("run_start", 1)),
    _named("run_stop twice", twice("run_stop"), "fail", "pass", "one-occurrence", ("run_stop", 1)),
    _named("init_stop twice", twice("init_stop"), "fail", "pass", "one-occurrence", ("init_stop", 1)),
    _named("prefix of a rank", lambda text: text.replace(MARK, f"[rank0]: 0: {MARK}"), "pass", "pass"),
    _named(
        "text after a record",
        line_edit(("seed", 0), lambda line: f"{line} done"),
        *("fail", "fail", "record-alone", ("train_samples", 0)),
    ),
    _named(
        "half a record",
        line_edit(("seed", 0), lambda line: line[:-9]),
        *("fail", "fail", "record-json", ("train_samples", 0)),
    ),
    _named(
        "two records on a line, one spare",
        join(("seed", 0), ("train_samples", 0)),
        *("fail", "pass", "one-record-a-line", ("train_samples", 0)),
    ),
    _named(
        "two records on a line, both needed",
        join(("train_samples", 0), ("eval_samples", 0)),
        *("fail", "fail", "one-record-a-line", ("eval_samples", 0)),
    ),
    _named(
        "no metadata",
        edit("seed", lambda record: record.pop("metadata")),
        *("fail", "breaks off", "record-metadata", ("seed", 0)),
    ),
    _named(
        "time as text",
        edit("seed", lambda record: record.update(time_ms=str(record["time_ms"]))),
        *("pass", "pass", "record-time", ("seed", 0), "warning"),
    ),
    _named("seed that is no number", put("seed", float("nan")), "fail", "pass", "record-number", ("seed", 0)),
    _named(
        "a value twice in a record",
        line_edit(LAST_ACCURACY, lambda line: line.replace('"value":', '"value": 0.1, "value":')),
        *("fail", "pass", "record-repeats", LAST_ACCURACY),
    ),
    _named("epochs from 0", renumbered, "pass", "pass", "epoch-numbering", ("epoch_start", 0), "warning"),
    _named(
        "epochs step back",
        edit("epoch_start", lambda record: record["metadata"].update(epoch_num=0), LAST),
        *("fail", "pass", "epoch-numbering", ("epoch_start", -1)),
    ),
    _named(
        "evaluation never stops",
        line_edit(("eval_stop", -1), lambda _: ""),
        *("fail", "pass", "pairs", ("eval_start", -1)),
    ),
    _named("byte order mark", lambda text: "\ufeff" + text, "pass", "pass"),
    _named("carriage returns and line feeds", lambda text: text.replace("\n", "\r\n"), "pass", "pass"),
    _named("empty", lambda _: "", "fail", "fail", "log-empty"),
)
