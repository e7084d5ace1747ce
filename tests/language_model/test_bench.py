"""`timedrun bench loader language_model`: usage errors, and loading processes that cannot hang."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from judging.ground.errors import DataError, ExitCode
from language_model import bench
from language_model.bench import measure
from language_model.configs import ALL_SPEED_UPS, BertRunConfig, wikipedia_methods
from language_model.text.synthetic_store import write_synthetic_store
from timedrun.analysis.loader_benchmark import BenchOptions
from timedrun.cli import main

ONE_PASS = BenchOptions(count=10, batch=10, repeats=1, loaders=("padded",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--loaders", "quick"], "unknown loader quick; choose from unpadded, padded"),
        (["--images", "photos"], "--images and --stores are for image loaders"),
    ],
)
def test_unknown_options_are_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "loader", "language_model", *options]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_synthetic_store(tmp_path / "store", 40)
    return tmp_path / "store"


@pytest.fixture
def config() -> BertRunConfig:
    """Unpadded batches with a filler, which does not count as a sequence."""
    assert ALL_SPEED_UPS.row_multiple > 1
    return replace(wikipedia_methods(), speed=ALL_SPEED_UPS)


@pytest.mark.processes
def test_every_process_loads_its_part_of_every_batch_in_both_layouts(store: Path, config: BertRunConfig) -> None:
    rows = measure(config, BenchOptions(data_folder=store, count=25, batch=10, repeats=2, workers=2))
    assert [row.loader for row in rows] == ["unpadded", "padded"]
    for row in rows:
        assert (row.store, row.size, row.unit, row.workers) == ("text_store", 512, "sequences", 2)
        assert [one.samples for one in (row.first, *row.passes)] == [30, 30, 30]  # whole batches
        assert all(one.seconds > 0 for one in row.passes)
    assert not multiprocessing.active_children()


def test_without_a_store_a_synthetic_one_is_measured_and_a_failed_process_ends_it_with_its_error(
    store: Path, config: BertRunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ProcessPoolExecutor", lambda count, context: ThreadPoolExecutor(count))
    monkeypatch.setattr(bench, "SYNTHETIC_SEQUENCES", 30)
    (row,) = measure(config, ONE_PASS)
    assert (row.store, row.loader, row.passes[0].samples) == ("synthetic", "padded", 10)
    (store / "train" / "tokens.bin").unlink()
    with pytest.raises(DataError, match=r"a loading process failed .*tokens\.bin: missing"):
        measure(config, replace(ONE_PASS, data_folder=store))


def test_unusable_settings_are_errors_before_any_process_starts(store: Path, config: BertRunConfig) -> None:
    options = replace(ONE_PASS, data_folder=store)
    with pytest.raises(DataError, match="cannot be divided over 3"):
        measure(config, replace(options, workers=3))
    with pytest.raises(DataError, match="has 40 training sequences, fewer than a batch of 41"):
        measure(config, replace(options, batch=41))
    short = replace(config, data=replace(config.data, longest=128))
    with pytest.raises(DataError, match=r"sequences of 512 tokens, but data\.longest is 128"):
        measure(short, options)
