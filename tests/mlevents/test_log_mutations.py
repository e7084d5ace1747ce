"""Mutations of a good log: each gets the right strict verdict at the right line, beside MLCommons' own verdict."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents import mlcommons
from mlevents.checks.log_check import check_record
from mlevents.record import read
from tests.mlevents.conftest import Records, good_records, lines_of, named

MARK: Final = ":::MLLOG "
BANNER: Final = ["starting", ""]
TRAINED: Final = ("block_start", "epoch_start", "block_stop", "epoch_stop")

Change = Callable[[Records], object]
Place = tuple[str, int]  # key, and which of its records


@dataclass(frozen=True)
class Mutation:
    """One change of a good log's records or, after it, of its `text`. `rule` is found at `level`, on the line of the
    record `at`; None: about no line.

    "breaks off": MLCommons' checker ends in a traceback.
    """

    name: str
    change: Change
    strict: Literal["pass", "fail"]
    official: Literal["pass", "fail", "breaks off"]
    rule: str | None = None
    at: Place | None = None
    level: Literal["error", "warning", "note"] = "error"
    text: Callable[[str], str] = str

    def applied(self) -> tuple[str, int | None]:
        """Return the text of the changed log, and the number of the line that a finding must name."""
        records = good_log()
        self.change(records)
        line = None if self.at is None else records.index(named(records, *self.at)) + len(BANNER) + 1
        return self.text(text_of(records)), line


def good_log() -> Records:
    """Return the log of an open resnet run of three epochs."""
    return good_records(seed=7, accuracies=(0.4, 0.71, 0.7612))


def text_of(records: Records) -> str:
    """Return `records` as a log, after what a framework prints before it."""
    return "\n".join([*BANNER, *lines_of(records)]) + "\n"


def unchanged(records: Records) -> None:
    """Leave the records for a change of the text."""


def drop(*keys: str) -> Change:
    """Leave out every record of these keys."""

    def change(records: Records) -> None:
        records[:] = [record for record in records if record["key"] not in keys]

    return change


def put(key: str, value: object, which: int = 0) -> Change:
    """Give a record of `key` another value."""
    return lambda records: named(records, key, which).update(value=value)


def shift(key: str, by_ms: int) -> Change:
    """Move the time of a record."""
    return lambda records: named(records, key).update(time_ms=named(records, key)["time_ms"] + by_ms)


def note(key: str, **metadata: object) -> Change:
    """Change the metadata of a record; None takes a field away."""

    def change(records: Records) -> None:
        kept: dict[str, Any] = named(records, key)["metadata"] | metadata
        named(records, key)["metadata"] = {name: value for name, value in kept.items() if value is not None}

    return change


def each(*changes: Change) -> Change:
    """One change after the other."""
    return lambda records: [change(records) for change in changes]


def move(key: str, behind: str) -> Change:
    """Move a record behind another."""

    def change(records: Records) -> None:
        moved = records.pop(records.index(named(records, key)))
        records.insert(records.index(named(records, behind)) + 1, moved)

    return change


def twice(key: str, **changes: object) -> Change:
    """Log the record of `key` twice, the second time with `changes`."""

    def change(records: Records) -> None:
        record = named(records, key)
        records.insert(records.index(record) + 1, {**record, "metadata": {**record["metadata"], "again": 1}, **changes})

    return change


def cut_off(records: Records) -> None:
    """Number the epochs as if the first two were missing."""
    for record in records:
        if record["key"] in ("epoch_start", "epoch_stop"):
            record["metadata"]["epoch_num"] += 2


ACCURACY: Final = "eval_accuracy"
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
    Mutation("aborted", note("run_stop", status="aborted"), "fail", "pass", "status-success", STOP),
    Mutation("no status", note("run_stop", status=None), "fail", "fail", "required-metadata", STOP),
    Mutation("target missed at last", put(ACCURACY, 0.7589, -1), "fail", "pass", "target-reached", LAST_ACCURACY),
    Mutation("null", put(ACCURACY, None), "fail", "breaks off", "quality-range", (ACCURACY, 0)),
    Mutation("not a number at last", put(ACCURACY, float("nan"), -1), "fail", "pass", "record-number", LAST_ACCURACY),
    Mutation(
        "no epoch of the accuracy",
        note(ACCURACY, epoch_num=None),
        *("fail", "fail", "required-metadata", (ACCURACY, 0)),
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
        move("submission_division", "init_stop"),
        *("fail", "fail", "submission-order", ("submission_division", 0)),
    ),
    Mutation(
        "init of 241 minutes",
        each(*(shift(key, -241 * 60_000) for key in ("init_start", "cache_clear"))),
        *("fail", "fail", "init-limit", ("init_stop", 0)),
    ),
    Mutation(
        "run_start after the first block",
        move("run_start", "block_start"),
        *("fail", "fail", "before-run-start", ("block_start", 0)),
    ),
    Mutation("run_stop before run_start in time", shift("run_stop", -(10**10)), "fail", "pass", "clock-order", STOP),
    Mutation(
        "cache cleared after run_stop",
        move("cache_clear", "run_stop"),
        *("fail", "pass", "cache-clear", ("cache_clear", 0)),
    ),
    Mutation(
        "organization twice, different",
        twice("submission_org", value="Somebody"),
        *("fail", "fail", "one-occurrence", ("submission_org", 1)),
    ),
    Mutation("run_start twice", twice("run_start"), "fail", "pass", "one-occurrence", ("run_start", 1)),
    Mutation(
        "prefix of a rank", unchanged, "pass", "pass", text=lambda text: text.replace(MARK, f"[rank0]: 0: {MARK}")
    ),
    Mutation(
        "no metadata",
        lambda records: named(records, "seed").pop("metadata"),
        *("fail", "breaks off", "record-metadata", ("seed", 0)),
    ),
    Mutation(
        "a value twice in a record",
        unchanged,
        *("fail", "pass", "record-repeats", LAST_ACCURACY),
        text=lambda text: text.replace('"value": 0.7612', '"value": 0.1, "value": 0.7612'),
    ),
    Mutation("first epochs cut off", cut_off, "fail", "pass", "epoch-numbering", ("epoch_start", 0)),
    Mutation(
        "epochs from 0",
        each(note("epoch_start", epoch_num=0), note("block_start", first_epoch_num=0)),
        *("pass", "pass", "epoch-numbering", ("epoch_start", 0), "warning"),
    ),
    Mutation(
        "evaluation never stops",
        lambda records: records.remove(named(records, "eval_stop", -1)),
        *("fail", "pass", "pairs", ("eval_start", -1)),
    ),
    Mutation("byte order mark", unchanged, "pass", "pass", text=lambda text: "\ufeff" + text),
    Mutation("empty", unchanged, "fail", "fail", "log-empty", text=lambda _: ""),
)


RULESET = "2.0.0"


@pytest.fixture(scope="module")
def mutated(tmp_path_factory):
    """Per mutation its path, the line to name and MLCommons' verdict, from one child process."""
    folder = tmp_path_factory.mktemp("mutated")
    changed = {mutation.name: mutation.applied() for mutation in MUTATIONS} | {"unchanged": (text_of(good_log()), None)}
    paths = [folder / f"result_{number}.txt" for number in range(len(changed))]
    for path, (text, _) in zip(paths, changed.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    verdicts = mlcommons.check_logs(paths, RULESET)
    lines = [line for _, line in changed.values()]
    return dict(zip(changed, zip(paths, lines, verdicts, strict=True), strict=True))


def said(verdict: mlcommons.OfficialVerdict) -> str:
    return "breaks off" if any("was aborted" in message for message in verdict.messages) else verdict.verdict


def test_the_base_passes_both(mutated):
    path, _, verdict = mutated["unchanged"]
    assert [str(finding) for finding in check_record(read(path), RULESET) if finding.level == "error"] == []
    assert said(verdict) == "pass"


def test_a_mutation_gets_both_verdicts_and_its_line(mutated):
    wrong = []
    for mutation in MUTATIONS:
        path, line, verdict = mutated[mutation.name]
        assert path.read_bytes() != mutated["unchanged"][0].read_bytes(), mutation.name
        findings = check_record(read(path), RULESET)
        errors = [str(finding) for finding in findings if finding.level == "error"]
        if ("fail" if errors else "pass") != mutation.strict:
            wrong.append((mutation.name, "strict", errors))
        if mutation.rule and (mutation.rule, mutation.level, line) not in [(f.rule, f.level, f.line) for f in findings]:
            wrong.append((mutation.name, "place", line, [str(finding) for finding in findings]))
        if said(verdict) != mutation.official:
            wrong.append((mutation.name, "official", verdict.messages))
    assert not wrong


FATAL = {
    "target missed": put(ACCURACY, 0.7, -1),
    "aborted": note("run_stop", status="aborted"),
    "run_stop in the past": shift("run_stop", -(10**10)),
}


def spoiled(records: Records, seed: int, edits: int) -> list[str]:
    """Random deletions, repetitions, swaps and other values on the lines of `records` that no fatal flaw is on."""
    chance, lines = random.Random(seed), lines_of(records)
    kept = ("run_stop", "run_start", ACCURACY, "submission_benchmark")
    free = [place for place, record in enumerate(records) if record["key"] not in kept]
    for _ in range(edits):
        place, other = chance.choice(free), chance.choice(free)
        choice = chance.randrange(4)
        if choice == 0:
            lines[place] = ""
        elif choice == 1:
            lines[place] = f"{lines[place]}\n{lines[place]}"
        elif choice == 2:
            lines[place], lines[other] = lines[other], lines[place]
        else:
            value = chance.choice(["null", "-1", "1e400", '"resnet"', "[]", "{}", "true", "0.99"])
            lines[place] = lines[place].replace('"value": null', f'"value": {value}')
    return lines


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(flaw=st.sampled_from(sorted(FATAL)), seed=st.integers(0, 2**32), edits=st.integers(0, 12))
def test_what_failed_never_passes_whatever_else_is_edited(tmp_path_factory, flaw, seed, edits):
    records = good_log()
    FATAL[flaw](records)
    path = tmp_path_factory.mktemp("spoiled") / "result_0.txt"
    path.write_text("\n".join(spoiled(records, seed, edits)))
    assert any(finding.level == "error" for finding in check_record(read(path), RULESET))
