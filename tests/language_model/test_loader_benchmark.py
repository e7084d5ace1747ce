"""The benchmark of the text loader loads whole batches in every process and ends with an error instead of a hang."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from language_model import loader_benchmark
from language_model.configs import ALL_SPEED_UPS, BertRunConfig, wikipedia_methods
from language_model.loader_benchmark import measure
from language_model.text.synthetic_store import write_synthetic_store
from timedrun.errors import DataError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_synthetic_store(tmp_path / "store", 40)
    return tmp_path / "store"


@pytest.fixture
def config() -> BertRunConfig:
    """End to end batches with a filler, which is no sequence."""
    assert ALL_SPEED_UPS.row_multiple > 1
    return replace(wikipedia_methods(), speed=ALL_SPEED_UPS)


@pytest.mark.processes
def test_every_process_loads_its_share_of_every_batch_in_both_layouts(store: Path, config: BertRunConfig) -> None:
    rows = measure(config, store, count=25, batch=10, repeats=2, workers=2)
    assert [row.loader for row in rows] == ["unpadded", "padded"]
    for row in rows:
        assert (row.store, row.size, row.unit, row.workers) == ("text_store", 512, "sequences", 2)
        assert [one.samples for one in (row.first, *row.passes)] == [30, 30, 30]  # whole batches
        assert all(one.seconds > 0 for one in row.passes)
    assert not multiprocessing.active_children()


@pytest.mark.processes
def test_without_a_store_a_synthetic_one_is_measured(config: BertRunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_benchmark, "SYNTHETIC_SEQUENCES", 30)
    (row,) = measure(config, None, count=10, batch=10, repeats=1, workers=1, loaders=("padded",))
    assert (row.store, row.loader, row.passes[0].samples) == ("synthetic", "padded", 10)


@pytest.mark.processes
def test_a_process_that_fails_ends_the_measurement_with_its_reason(store: Path, config: BertRunConfig) -> None:
    (store / "train" / "tokens.bin").unlink()
    with pytest.raises(DataError, match=r"a loading process failed .*tokens\.bin is missing"):
        measure(config, store, count=10, batch=10, repeats=1, workers=1, loaders=("padded",))
    assert not multiprocessing.active_children()


def test_what_cannot_be_measured_is_said_before_any_process_starts(store: Path, config: BertRunConfig) -> None:
    numbers = {"count": 10, "batch": 10, "repeats": 1}
    with pytest.raises(DataError, match="no text loader dali"):
        measure(config, store, workers=1, loaders=("dali",), **numbers)
    with pytest.raises(DataError, match="cannot be shared by 3"):
        measure(config, store, workers=3, **numbers)
    with pytest.raises(DataError, match="has 40 training sequences, fewer than a batch of 41"):
        measure(config, store, workers=1, **(numbers | {"batch": 41}))
    short = replace(config, data=replace(config.data, longest=128))
    with pytest.raises(DataError, match=r"sequences of 512 tokens, data\.longest is 128"):
        measure(short, store, workers=1, **numbers)
