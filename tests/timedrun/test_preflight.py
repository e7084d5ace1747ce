"""What is found before a run: room, rights, ranks, precision; everything at once and nothing written."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from image_classification.configs import synthetic_smoke
from timedrun import page_cache, preflight
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


def test_a_log_that_could_never_pass_is_refused_on_the_benchmarks_own_data(tmp_path: Path) -> None:
    benchmark = find("image_classification")
    config = benchmark.config("imagenet_methods")
    low = replace(config, evaluation=replace(config.evaluation, target=0.7))
    assert preflight.log_problems(benchmark, config) == []
    (problem,) = preflight.log_problems(benchmark, low)
    assert "no log of this run could pass" in problem and "--evaluation.target 0.759" in problem
    assert problem in failures(low, tmp_path)
    assert preflight.log_problems(benchmark, replace(low, dataset="a_trial")) == []
    unruled = replace(benchmark, card=replace(benchmark.card, mlperf_benchmark="mine"))
    assert preflight.log_problems(unruled, low) == []


def test_a_set_needs_a_folder_without_other_results_and_room_for_all_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preflight.set_problems(tmp_path / "new", 5) == []
    (tmp_path / "result_3.txt").write_text(':::MLLOG {"key": "seed", "value": 1}\n')
    (problem,) = preflight.set_problems(tmp_path, 5)
    assert "holds 1 results already (result_3.txt), and a set has exactly 5" in problem
    room = 3 * preflight.LEAST_FREE_BYTES
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Usage(room, 0, room))
    assert preflight.result_problems(ResultPaths(tmp_path, 4), False, 3) == []
    (problem,) = preflight.result_problems(ResultPaths(tmp_path, 4), False, 5)
    assert "5 runs need 320 MiB" in problem


def test_doubtful_clocks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "current_clocksource"
    assert preflight.clock_problems(source) == []
    source.write_text("tsc\n")
    assert preflight.clock_problems(source) == []
    source.write_text("hpet\n")
    monkeypatch.setattr(preflight.time, "time", lambda: 0.0)
    wall, kernel = preflight.clock_problems(source)
    assert "never set" in wall and "hpet" in kernel


def test_a_page_cache_that_cannot_be_dropped_is_told_without_dropping_it(tmp_path: Path) -> None:
    command, file = tmp_path / "sysctl", tmp_path / "drop_caches"
    assert "is not there" in page_cache.obstacle(command, file)
    command.touch(mode=0o755)
    assert "is not writable" in page_cache.obstacle(command, file)
    file.touch()
    assert page_cache.obstacle(command, file) == ""
