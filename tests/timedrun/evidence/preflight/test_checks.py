"""Checks before a run: disk, rights, ranks, settings, clocks; all faults at once and nothing written; hints."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from image_classification.configs import synthetic_smoke
from judging.ground.errors import PreflightError
from judging.ground.result_files import ResultPaths, next_number
from timedrun.evidence.preflight import checks, machine_checks
from timedrun.methods import EMA, CutMix, LabelSmoothing, MixUp
from timedrun.methods.training import number_formats
from timedrun.runner.benchmark import find
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process.launch_env import LaunchEnv
from timedrun.runner.process.process_times import CpuReading
from timedrun.runner.run.worker import LaunchOptions

NO_TEMPORARY = "No usable temporary directory found in ['/tmp']"


def failures(config: RunConfig, folder: Path, ranks: int = 1, **options: Any) -> list[str]:
    place = options.pop("place", None) or LaunchEnv("none", 0, ranks, 0, ranks)
    options = {"paths": ResultPaths(folder, 0), **options}
    try:
        checks.check(find("image_classification"), config, LaunchOptions(**options), place)
    except PreflightError as error:
        return error.failures
    return []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CXX", "no-such-compiler", "no-such-compiler is not found: install it, name one in CXX"),
        ("TORCHINDUCTOR_CACHE_DIR", "{}/new", "{} is noexec (with docker, use"),
        ("TORCHINDUCTOR_CACHE_DIR", "", "set TORCHINDUCTOR_CACHE_DIR or TMPDIR to another folder"),
        ("CXX", "sh", ""),  # any program
    ],
)
def test_a_compiled_run_needs_a_compiler_and_a_folder_to_load_from(name, value, words, tmp_path, monkeypatch):
    def mapped(*_: object) -> None:
        raise PermissionError(1, "noexec")

    monkeypatch.setenv("CXX", "sh")
    monkeypatch.setenv(name, value.format(tmp_path))
    monkeypatch.setattr(checks.mmap, "mmap", mapped if name != "CXX" else MagicMock())
    config = replace(synthetic_smoke(), compile=True, device="cpu")
    assert [words.format(tmp_path) in one for one in failures(config, tmp_path)] == [True] * bool(words)
    assert failures(replace(config, compile=False), tmp_path) == []


@pytest.mark.parametrize("words", [["run", "smoke", "--results", "new"], ["profile", "smoke", "--synthetic"]])
def test_without_a_folder_for_temporary_files_a_line_names_tmpdir(words, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile._get_default_tempdir", MagicMock(side_effect=FileNotFoundError(2, NO_TEMPORARY)))
    monkeypatch.setattr("tempfile.tempdir", None)
    said = refused(words[0], "image_classification", words[1], "--data", "synthetic", *words[2:], code=1)
    assert "no temporary folder is usable: set TMPDIR" in said.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_results_folder_that_is_a_file_or_another_users_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (failure,) = failures(synthetic_smoke(), tmp_path / "file" / "results")
    assert "file is a file" in failure
    monkeypatch.setattr(machine_checks.tempfile, "TemporaryFile", MagicMock(side_effect=OSError(30, "Read-only")))
    (failure,) = failures(synthetic_smoke(), tmp_path / "results")
    assert f"{tmp_path} is not writable (Read-only)" in failure
    monkeypatch.setattr(machine_checks.tempfile, "TemporaryFile", MagicMock(side_effect=PermissionError(13, "denied")))
    monkeypatch.setattr(machine_checks.os, "geteuid", lambda: 12345)
    (failure,) = failures(synthetic_smoke(), tmp_path / "results")
    uid = tmp_path.stat().st_uid
    assert f"(denied): it belongs to uid {uid}, this process to 12345; choose another --results folder" in failure
    assert f"docker's --user {uid}." in failure


def test_checkpoints_of_a_node_need_room_once(tmp_path, monkeypatch):
    """ResNet-50 with SGD's momentum: 25,557,032 parameters, two numbers each, in fp32."""
    benchmark = find("image_classification")
    config = benchmark.config("imagenet_baseline")
    one = 25_557_032 * 4 * 2

    def asked(config: RunConfig, minutes: float, ranks: int) -> int:
        options = LaunchOptions(paths=ResultPaths(tmp_path, 0), checkpoint_minutes=minutes)
        plan = benchmark.plan(config, ProcessGroup(0, ranks, 0, torch.device("cpu")), None)
        return checks.checkpoint_bytes(plan, config, options)

    assert asked(config, 0, 1) == one
    assert asked(config, 10, 1) == asked(config, 10, 8) == one * 3  # the newest two and the one being written
    with_average = replace(config, methods=(*config.methods, EMA()))
    assert asked(with_average, 0, 1) == one * 3 // 2
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda path: MagicMock(free=200 * 2**20))
    (failure,) = machine_checks.result_problems(ResultPaths(tmp_path, 0), False, checkpoints=one)
    assert "200 MiB free, but a run needs 259 MiB, 195 MiB of them for checkpoints" in failure


def test_resuming_in_a_folder_without_a_run_names_it_but_a_node_without_rank_0_needs_no_log(tmp_path):
    second = LaunchEnv("node", 2, 4, 0, 2, "127.0.0.1", 1)
    assert failures(synthetic_smoke(), tmp_path, resume=True, place=second) == []
    absent = tmp_path / "absent"
    for number, words in ((0, f"{absent / 'result_0.txt'} does not exist"), (-1, f"{absent} holds no run")):
        (failure,) = failures(synthetic_smoke(), absent, 2, resume=True, paths=ResultPaths(absent, number))
        assert failure.startswith(f"{words}: there is nothing to resume; set --results")


def test_result_numbers_go_on_above_everything_that_is_there(tmp_path):
    assert next_number(tmp_path / "missing") == 0
    for name in ("result_2.txt", "run_5", "result_x.txt", "notes"):
        (tmp_path / name).touch()
    assert next_number(tmp_path) == 6


RESTARTS = {"restarts": 2, "checkpoint_minutes": 1.0}
FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"seed": -1}, {}, "--seed"),
    ({"micro_batch": -1}, {}, "--micro-batch"),
    ({"warm_up_steps": -5}, {}, "--warm-up-steps"),
    ({"budget_minutes": math.nan}, {}, "--budget-minutes"),
    ({"optimizer": {"peak_lr": math.inf}}, {}, "--optimizer.peak-lr"),
    ({"optimizer": {"kind": "muon"}}, {}, "--optimizer.other-lr"),
    ({"optimizer": {"kind": "sgd", "momentum": 0.0, "nesterov": True}}, {}, "cannot build this config: Nesterov"),
    ({"data": {"eval_batch": 0}}, {}, "--data.eval-batch"),
    ({"evaluation": {"target": 75.9}}, {}, "not a percentage"),
    ({"methods": (MixUp(), CutMix())}, {}, "both mix each image with another one of its batch; remove one of them"),
    ({"device": "cuda"}, {}, "no CUDA device"),
    ({"device": "mps"}, {}, "no MPS device for local rank 0: torch sees none here; use --device cpu"),
    ({"precision": "fp16"}, {}, "fp16 needs a CUDA device"),
    ({"precision": "bf16"}, {}, "41 times as long as one in fp32; set --precision fp32, --device cuda"),
    ({"warm_up_steps": 0, "global_batch": 12}, {"place": LaunchEnv("none", 0, 3, 0, 3)}, "--warm-up-steps 1"),
    (
        {"methods": (EMA(half_life=4000, update_interval=17), LabelSmoothing())},
        {},
        "ema has its first effect after 17 optimizer steps, but the run has 16",
    ),
    ({}, {"restarts": 2}, "PET_MAX_RESTARTS=2"),
    ({}, {"restarts": 2}, "--checkpoint-minutes"),
    ({"submission": {"division": "closed"}}, RESTARTS, "closed division may not be resumed"),
    ({}, {"data_folder": Path("none")}, "--data-folder none does not exist; "),
    ({}, {"threads": 100_000}, "--threads"),
]


@pytest.mark.parametrize(("settings", "launch", "option"), FAULTS)
def test_a_bad_setting_or_option_is_refused_with_its_name_and_nothing_is_written(
    settings, launch, option, tmp_path, monkeypatch
):
    monkeypatch.setattr(number_formats, "slowdown", lambda precision: 41.3)
    config = synthetic_smoke()
    for name, value in settings.items():
        changed = replace(getattr(config, name), **value) if isinstance(value, dict) else value
        config = replace(config, **{name: changed})
    paths = ResultPaths(tmp_path / "results", launch.get("number", 0))
    launch = {name: value for name, value in launch.items() if name != "number"}
    said = failures(config, tmp_path, paths=paths, **launch)
    assert len([failure for failure in said if option in failure]) == 1, said
    assert list(tmp_path.iterdir()) == []


def test_what_is_like_these_faults_but_none_is_accepted(tmp_path, monkeypatch):
    config = synthetic_smoke()
    closed = replace(config, submission=replace(config.submission, division="closed"))
    assert failures(config, tmp_path, 2, **RESTARTS) == failures(closed, tmp_path, 2, checkpoint_minutes=1.0) == []
    assert failures(replace(config, warm_up_steps=0), tmp_path, 2) == []
    emulated = replace(config, precision="bf16")
    for slowdown, emulation in ((41.3, "allow"), (0.6, "refuse")):
        monkeypatch.setattr(number_formats, "slowdown", lambda precision, times=slowdown: times)
        assert failures(replace(emulated, emulation=emulation), tmp_path) == []


def test_settings_that_fail_every_log_are_refused_on_the_benchmarks_own_data(tmp_path):
    benchmark = find("image_classification")
    config = benchmark.config("imagenet_methods")
    low = replace(config, evaluation=replace(config.evaluation, target=0.7))
    assert checks.log_problems(benchmark, config) == []
    (problem,) = checks.log_problems(benchmark, low)
    assert "no log of this run could pass" in problem and "--evaluation.target 0.759" in problem
    assert problem in failures(low, tmp_path)
    late = replace(low, evaluation=replace(low.evaluation, first=10**9))  # longer than any dry run
    assert any("--evaluation.target 0.759" in failure for failure in failures(late, tmp_path))
    assert checks.log_problems(benchmark, replace(low, dataset="a_trial")) == []


def test_a_set_needs_room_for_its_runs(tmp_path, monkeypatch):
    room = 3 * machine_checks.LEAST_FREE_BYTES
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda path: MagicMock(free=room))
    assert machine_checks.result_problems(ResultPaths(tmp_path, 4), False, 3) == []
    (problem,) = machine_checks.result_problems(ResultPaths(tmp_path, 4), False, 5)
    assert "5 runs need 320 MiB" in problem


def test_doubtful_clocks_are_named(tmp_path, monkeypatch):
    source = tmp_path / "current_clocksource"
    assert machine_checks.clock_problems(source) == []
    source.write_text("tsc\n")
    assert machine_checks.clock_problems(source) == []
    source.write_text("hpet\n")
    monkeypatch.setattr(machine_checks.time, "time", lambda: 0.0)
    wall, kernel = machine_checks.clock_problems(source)
    assert "never set" in wall and "hpet" in kernel


@pytest.mark.parametrize(
    ("busy", "own", "threads", "ranks", "told"),
    [
        (8.0, 8.0, 0, 1, ""),  # all of it its own
        (4.0, 0.0, 3, 2, "use 4.0 of 8 cores, too many for 6 threads of a run: use --threads 2."),
        (16.0, 0.0, 0, 1, "use 8.0 of 8 cores, too many for 8 threads of a run: use --threads 1."),
        (8.0, 0.0, 1, 1, "too many for 1 thread of a run: expect longer times."),
    ],
)
def test_threads_that_would_share_cores_with_other_processes_are_told(busy, own, threads, ranks, told, monkeypatch):
    monkeypatch.setattr(machine_checks.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine_checks, "usable_cores", lambda: 8)
    monkeypatch.setattr(machine_checks, "default_threads", lambda: 8)
    before, now = CpuReading(0.0, 0.0, 0.0), CpuReading(1.0, busy, own)
    assert not machine_checks.load_problems(before, threads, ranks, CpuReading(0.1, busy, own))  # too short to tell
    (found,) = machine_checks.load_problems(before, threads, ranks, now) or [""]
    assert found.endswith(told) and bool(found) == bool(told)
