"""Runs whose checkpoints are evaluated after the clock, as the references of some benchmarks do."""

from collections.abc import Iterable

import pytest

from mlevents.checks.log_check import check_record
from mlevents.event import Event
from mlevents.record import RunRecord, read
from mlevents.run_status import failure
from mlevents.summary import summarize
from tests.mlevents.conftest import START_MS, event, write_log

BLOCK = 512_000  # samples
MINUTE = 60_000
FID = {1: 140.0, 1.5: 89.0, 2: 89.0, 3: 70.0}


def log(tmp_path, *, stopped_minute=2.0, stops_log="end", evaluated=(1, 2, 3)):
    """A Stable Diffusion run of three blocks of one minute, of which the second reaches the target.

    stops_log: progress that block_stop logs, that of its "start" or its "end"."""
    records = []

    def add(key: str, minute: float, value: object = None, **metadata: object) -> None:
        records.append(event(START_MS + round(minute * MINUTE), key, value, lineno=len(records) + 1, **metadata))

    add("submission_benchmark", -1, "stable_diffusion")
    add("submission_division", -1, "closed")
    add("run_start", 0)
    for block in range(3):
        add("block_start", block, samples_count=block * BLOCK)
        add("block_stop", block + 1, samples_count=(block + (stops_log == "end")) * BLOCK)
    for number, checkpoint in enumerate(evaluated):
        add("eval_start", 4 + number, samples_count=checkpoint * BLOCK)
        add("eval_accuracy", 4.5 + number, FID[checkpoint], samples_count=checkpoint * BLOCK, metric="FID")
        add("eval_accuracy", 4.6 + number, 0.16, samples_count=checkpoint * BLOCK, metric="CLIP")
        add("eval_stop", 4.7 + number, samples_count=checkpoint * BLOCK)
    add("run_stop", stopped_minute, status="success")
    return read(write_log(tmp_path / "result_0.txt", records))


def errors(record: RunRecord, events: Iterable[Event] = ()) -> list[str]:
    """Messages of the errors about the clock, also with other `events`."""
    known = ("clock-order", "target-reached", "epoch-numbering")
    if events:
        record = RunRecord(record.path, tuple(events), (), "")
    return [f.message for f in check_record(record, "4.1.0") if f.level == "error" and f.rule in known]


@pytest.mark.parametrize("stops_log", ["start", "end"])
@pytest.mark.parametrize("evaluated", [(1, 2, 3), (3, 1, 2), (2,)])
def test_the_clock_stops_at_the_first_checkpoint_that_reaches_the_target(tmp_path, stops_log, evaluated):
    record = log(tmp_path, stops_log=stops_log, evaluated=evaluated)
    assert errors(record) == []
    assert (record.final_quality, record.final_parts) == (89.0, {"FID": 89.0, "CLIP": 0.16})
    assert record.evaluation_share is None
    assert failure(summarize(record), "4.1.0") is None


@pytest.mark.parametrize("stops_log", ["start", "end"])
@pytest.mark.parametrize("minute", [1.0, 1.9])
def test_a_clock_stopped_before_that_checkpoint_was_trained_is_an_error(tmp_path, stops_log, minute):
    (message,) = errors(log(tmp_path, stopped_minute=minute, stops_log=stops_log))
    late = (2.0 - minute) * 60
    assert message == (
        f"run_stop is {late:.3f} s earlier than the end of training of the first checkpoint that reaches the target, at"
        " 1.024e+06 samples"
    )


def test_a_checkpoint_within_a_block_is_trained_in_proportion(tmp_path):
    assert errors(log(tmp_path, stopped_minute=1.5, evaluated=(1.5,))) == []
    (message,) = errors(log(tmp_path, stopped_minute=1.4, evaluated=(1.5,)))
    assert message.startswith("run_stop is 6.000 s earlier")


def test_no_checkpoint_at_the_target_is_an_error(tmp_path):
    record = log(tmp_path, evaluated=(1,))
    assert errors(record) == ["the last FID before run_stop is 140.0, which is not <= the target 90.0"]
    assert "ended at 140" in str(failure(summarize(record), "4.1.0"))


def test_other_benchmarks_evaluate_on_the_clock_and_training_within_an_evaluation_is_none(tmp_path):
    record = log(tmp_path)
    first, *events = record.events
    another = [first._replace(value="llama2_70b_lora"), *events]
    assert any("earlier than events before it" in error for error in errors(record, another))
    begin = [logged.key for logged in events].index("block_start")
    start = next(logged for logged in events if logged.key == "eval_start")
    hidden = [first, *events[:begin], start._replace(time_ms=START_MS), *events[begin:]]
    assert any("outside of an evaluation" in error for error in errors(record, hidden))
    bare = [logged for logged in record.events if not logged.key.startswith("block_")]
    assert any("no block or epoch was trained" in error for error in errors(record, bare))
