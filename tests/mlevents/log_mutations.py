"""Mutations of a good log, each with the expected strict verdict and that of MLCommons' checker."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.mlevents.conftest import good_records, lines_of

MARK: Final = ":::MLLOG "
TRAINED: Final = ("block_start", "epoch_start", "block_stop", "epoch_stop")

Change = Callable[[str], str]
Place = tuple[str | tuple[str, ...], int]  # key, or keys, and which of the events: the file's line of that record


@dataclass(frozen=True)
class Mutation:
    """One change of a good log. `rule` is found at `level`, on the line of the record `at`; None: about no line.

    "breaks off": MLCommons' checker ends in a traceback.
    """

    name: str
    change: Change
    strict: Literal["pass", "fail"]
    official: Literal["pass", "fail", "breaks off"]
    rule: str | None = None
    at: Place | None = None
    level: Literal["error", "warning", "note"] = "error"


def good_log() -> str:
    """Return the log of an open resnet run of three epochs, with what a framework prints before it."""
    return "\n".join(["starting", "", *lines_of(good_records(seed=7, accuracies=(0.4, 0.71, 0.7612)))]) + "\n"


def key_of(line: str) -> str | None:
    """The key of the last record on `line`, None where there is none or it cannot be read."""
    try:
        return str(json.loads(line.rpartition(MARK)[2])["key"]) if MARK in line else None
    except (ValueError, KeyError, TypeError):
        return None


def line_of(text: str, place: Place) -> int:
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


def line_edit(place: Place, change: Callable[[str], str]) -> Change:
    """Change the text of the line of a record."""

    def mutate(text: str) -> str:
        lines, number = text.split("\n"), line_of(text, place) - 1
        lines[number] = change(lines[number])
        return "\n".join(lines)

    return mutate


def move(place: Place, behind: Place) -> Change:
    """Move a record behind another."""

    def mutate(text: str) -> str:
        lines = text.split("\n")
        moved = lines.pop(line_of(text, place) - 1)
        lines.insert(line_of("\n".join(lines), behind), moved)
        return "\n".join(lines)

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
    *(Mutation(f"no {key}", drop(key), "fail", "fail", "required-key") for key in REQUIRED),
    Mutation("no seed", drop("seed"), "pass", "pass", "seed", level="warning"),
    Mutation("no epochs", drop("epoch_start", "epoch_stop"), "pass", "pass"),
    Mutation("no epochs, no blocks", drop(*TRAINED), "fail", "fail", "required-key"),
    Mutation(
        "aborted",
        edit("run_stop", lambda record: record["metadata"].update(status="aborted")),
        *("fail", "pass", "status-success", STOP),
    ),
    Mutation(
        "no status",
        edit("run_stop", lambda record: record["metadata"].pop("status")),
        *("fail", "fail", "required-metadata", STOP),
    ),
    Mutation("target missed at last", put(ACCURACY, 0.7589, LAST), "fail", "pass", "target-reached", LAST_ACCURACY),
    Mutation("null", put(ACCURACY, None), "fail", "breaks off", "quality-range", FIRST_ACCURACY),
    Mutation("not a number at last", put(ACCURACY, float("nan"), LAST), "fail", "pass", "record-number", LAST_ACCURACY),
    Mutation(
        "no epoch of the accuracy",
        edit(ACCURACY, lambda record: record["metadata"].pop("epoch_num")),
        *("fail", "fail", "required-metadata", FIRST_ACCURACY),
    ),
    *(
        Mutation(
            f"status {status}",
            put("submission_status", status),
            *("fail", "fail", "vocabulary", ("submission_status", 0)),
        )
        for status in ("Available on-premise", "rdi")
    ),
    Mutation(
        "benchmark resnet50",
        put("submission_benchmark", "resnet50"),
        *("fail", "breaks off", "vocabulary", ("submission_benchmark", 0)),
    ),
    Mutation(
        "digits as ImageNet",
        each(put("train_samples", 1437), put("eval_samples", 360)),
        *("fail", "pass", "dataset-size", ("train_samples", 0)),
    ),
    Mutation(
        "division after init_stop",
        move(("submission_division", 0), ("init_stop", 0)),
        *("fail", "fail", "submission-order", ("submission_division", 0)),
    ),
    Mutation(
        "init of 241 minutes",
        each(*(shift(key, -241 * 60_000) for key in ("init_start", "cache_clear"))),
        *("fail", "fail", "init-limit", ("init_stop", 0)),
    ),
    Mutation(
        "run_start after the first block",
        move(("run_start", 0), ("block_start", 0)),
        *("fail", "fail", "before-run-start", (TRAINED, 0)),
    ),
    Mutation("run_stop before run_start in time", shift("run_stop", -1e10), "fail", "pass", "clock-order", STOP),
    Mutation(
        "cache cleared after run_stop",
        move(("cache_clear", 0), STOP),
        *("fail", "pass", "cache-clear", ("cache_clear", 0)),
    ),
    Mutation(
        "organization twice, different",
        twice("submission_org", "Somebody"),
        *("fail", "fail", "one-occurrence", ("submission_org", 1)),
    ),
    Mutation("run_start twice", twice("run_start"), "fail", "pass", "one-occurrence", ("run_start", 1)),
    Mutation("prefix of a rank", lambda text: text.replace(MARK, f"[rank0]: 0: {MARK}"), "pass", "pass"),
    Mutation(
        "no metadata",
        edit("seed", lambda record: record.pop("metadata")),
        *("fail", "breaks off", "record-metadata", ("seed", 0)),
    ),
    Mutation(
        "a value twice in a record",
        line_edit(LAST_ACCURACY, lambda line: line.replace('"value":', '"value": 0.1, "value":')),
        *("fail", "pass", "record-repeats", LAST_ACCURACY),
    ),
    Mutation(
        "first epochs cut off",
        each(
            edit(
                "epoch_start", lambda record: record["metadata"].update(epoch_num=record["metadata"]["epoch_num"] + 2)
            ),
            edit("epoch_stop", lambda record: record["metadata"].update(epoch_num=record["metadata"]["epoch_num"] + 2)),
        ),
        *("fail", "pass", "epoch-numbering", ("epoch_start", 0)),
    ),
    Mutation("epochs from 0", renumbered, "pass", "pass", "epoch-numbering", ("epoch_start", 0), "warning"),
    Mutation(
        "evaluation never stops",
        line_edit(("eval_stop", -1), lambda _: ""),
        *("fail", "pass", "pairs", ("eval_start", -1)),
    ),
    Mutation("byte order mark", lambda text: "\ufeff" + text, "pass", "pass"),
    Mutation("empty", lambda _: "", "fail", "fail", "log-empty"),
)
