"""A complete, valid log as plain records, and the means to change it and write it down."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.mllog import mllog

Records = list[dict[str, Any]]
Change = Callable[[Records], object]
START_MS = 1_760_000_000_000  # after the last round of ResNet and BERT: the default rules are the reference round's


def event(time_ms: float, key: str, value: object = None, **metadata: object) -> dict[str, Any]:
    """Return the record of an event, of the type that the key's ending says."""
    types = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
    kind = types.get(key.rpartition("_")[2], "POINT_IN_TIME")
    record = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value}
    return record | {"metadata": {"file": "train.py", **metadata}}


def good_records(seed: int = 1, dataset: str | None = None, accuracies: tuple[float, ...] = (0.5, 0.76)) -> Records:
    """The records of a run of `len(accuracies)` epochs of one minute, evaluated after each."""
    records = []
    clock = START_MS + seed * 3_600_000

    def add(key: str, value: object = None, wait: int = 0, **metadata: object) -> None:
        nonlocal clock
        clock += wait
        records.append(event(clock, key, value, lineno=len(records) + 1, **metadata))

    add("cache_clear", True)
    add("init_start", wait=5)
    for key, value in (
        ("submission_benchmark", "resnet"),
        ("submission_division", "open"),
        ("submission_org", "Nobody"),
        ("submission_platform", "laptop"),
        ("submission_status", "onprem"),
        ("seed", seed),
        ("global_batch_size", 64),
        ("train_samples", 1_281_167 if dataset in (None, "imagenet") else 1437),
        ("eval_samples", 50_000 if dataset in (None, "imagenet") else 360),
    ):
        add(key, value)
    if dataset is not None:
        add("dataset", dataset)
        add("quality_target", 0.75)
    add("init_stop", wait=30_000)
    add("run_start", wait=10)
    for epoch, accuracy in enumerate(accuracies, start=1):
        add("block_start", first_epoch_num=epoch, epoch_count=1)
        add("epoch_start", epoch_num=epoch)
        add("epoch_stop", wait=57_000 + seed, epoch_num=epoch)
        add("eval_start", epoch_num=epoch)
        add("eval_accuracy", accuracy, wait=3_000, epoch_num=epoch)
        add("eval_stop", epoch_num=epoch)
        add("block_stop", first_epoch_num=epoch)
    elapsed = len(accuracies) * (60_000 + seed)
    add("run_stop", status="success", elapsed_ms=elapsed)
    return records


def named(records: Records, key: str, number: int = 0) -> dict[str, Any]:
    """Return a record of `key`, from the end where `number` is negative."""
    return [record for record in records if record["key"] == key][number]


def put(records: Records, key: str, value: object) -> None:
    """Change the value of the first record of `key`."""
    named(records, key)["value"] = value


def putting(key: str, value: object, number: int = 0) -> Change:
    """Change the value of a record of `key`."""
    return lambda records: named(records, key, number).update(value=value)


def noting(key: str, number: int = 0, **metadata: object) -> Change:
    """Change the metadata of a record of `key`."""
    return lambda records: named(records, key, number)["metadata"].update(metadata)


def shifting(shift_ms: int, *keys: str, number: int = 0) -> Change:
    """Move the time of a record of each of these keys."""
    return lambda records: [
        named(records, key, number).update(time_ms=named(records, key, number)["time_ms"] + shift_ms) for key in keys
    ]


def lines_of(records: Records) -> list[str]:
    """The records as mlperf_logging itself encodes them; fields a record lacks stay away."""
    return [mllog.LOG_TEMPLATE.format(log_json=mllog.json.dumps(record)) for record in records]


def write_log(path: Path, records: Records) -> Path:
    """Write `records` as a log at `path`."""
    path.write_text("".join(f"{line}\n" for line in lines_of(records)))
    return path


@pytest.fixture
def records() -> Records:
    """A valid resnet submission log of two epochs that reaches 0.76."""
    return good_records()


@pytest.fixture
def demonstration() -> Records:
    """The same run on the digits data with a logged target of 0.75."""
    return good_records(dataset="digits")


@pytest.fixture
def make_records() -> Callable[..., Records]:
    """`good_records`, for tests that need several."""
    return good_records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a log to be written."""
    return tmp_path / "result_0.txt"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(records, name): a log file of these records."""

    return lambda records, name="result_0.txt": write_log(tmp_path / name, records)
