"""What is found before a run: room, rights, ranks, precision; everything at once and nothing written."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from image_classification.configs import synthetic_smoke
from timedrun import preflight
from timedrun.card import find
from timedrun.errors import PreflightError, UsageError
from timedrun.ranks import local_batch
from timedrun.results import ResultPaths, next_number

Usage = namedtuple("Usage", "total used free")


def failures(config: object, folder: Path, ranks: int = 1) -> list[str]:
    paths = ResultPaths(folder, 0)
    try:
        preflight.check(
            find("image_classification"),
            config,
            ranks=ranks,
            data_folder=None,
            paths=paths,
            resume=False,  # type: ignore[arg-type]
        )
    except PreflightError as error:
        return error.failures
    return []


def test_a_good_config_passes_and_writes_nothing(tmp_path: Path) -> None:
    assert failures(synthetic_smoke(), tmp_path / "new" / "folder") == []
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_found_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
    (failure,) = failures(synthetic_smoke(), tmp_path)
    assert "0 MiB free" in failure


def test_a_results_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (failure,) = failures(synthetic_smoke(), tmp_path / "file" / "results")
    assert "file is a file" in failure


def test_all_failures_come_at_once(tmp_path: Path) -> None:
    config = replace(synthetic_smoke(), global_batch=63, model=replace(synthetic_smoke().model, classes=4))
    assert len(failures(config, tmp_path, ranks=2)) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_and_fp16_without_a_device_are_refused(tmp_path: Path) -> None:
    assert any("no CUDA device" in f for f in failures(replace(synthetic_smoke(), device="cuda"), tmp_path))
    assert any(
        "fp16 needs a CUDA device" in f for f in failures(replace(synthetic_smoke(), precision="fp16"), tmp_path)
    )


@pytest.mark.parametrize(
    ("batch", "ranks", "words"), [(2048, 3, "--global-batch 2049"), (7, 8, "--ranks 7"), (0, 1, "0")]
)
def test_a_batch_that_ranks_do_not_divide_names_valid_choices(batch: int, ranks: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        local_batch(batch, ranks)


def test_result_numbers_go_on_above_everything_that_is_there(tmp_path: Path) -> None:
    assert next_number(tmp_path / "missing") == 0
    for name in ("result_2.txt", "run_5", "result_x.txt", "notes"):
        (tmp_path / name).touch()
    assert next_number(tmp_path) == 6


def test_a_benchmark_without_a_card_is_refused(make_package: Callable[[str, str], str]) -> None:
    with pytest.raises(UsageError, match="defines no CARD"):
        find(make_package("cardless", ""))
