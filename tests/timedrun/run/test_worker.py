"""A rank's process: several runs one after the other leave it as it was, and one that fails ends without delay."""

import errno
import json
import os
import signal
import sys
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths
from mlevents import keys, record
from mlevents.runlog.protocol import Protocol
from timedrun.benchmark import find
from timedrun.distributed.process_group import ProcessGroup
from timedrun.provenance import source
from timedrun.run import origin, worker
from timedrun.run.run_info import RunInfo, settings_of, submission_of
from timedrun.run.worker import Ending, LaunchOptions, claim, execute, load_checkpoint

pytestmark = pytest.mark.timeout(120)


def open_files() -> list[str]:
    """What this process has open, without a run's lock, which is kept as long as the process lives."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists the folder
            targets.append(os.readlink(f"/proc/self/fd/{name}").split(":")[0])
    return [target for target in targets if not target.endswith("environment.txt")]


BENCHMARK = find("image_classification")
SMOKE = BENCHMARK.config("smoke", "synthetic")


def test_runs_in_one_process_leave_no_handler_and_no_open_file(tmp_path):
    short = replace(SMOKE, evaluation=replace(SMOKE.evaluation, target=0.01, first=1))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    execute(BENCHMARK, short, LaunchOptions(paths=ResultPaths(tmp_path, 0)))
    before = open_files()
    assert execute(BENCHMARK, short, LaunchOptions(paths=ResultPaths(tmp_path, 1))) == ExitCode.OK
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert not Counter(open_files()) - Counter(before)  # garbage of other tests may have been closed


class Alike(ProcessGroup):
    """A rank whose others say what it says."""

    def all_gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size

    def broadcast(self, value: object) -> object:
        return value

    def all_reduce_max(self, values: list[float]) -> list[float]:
        return values


def test_3_ranks_of_any_launcher_refuse_a_run_without_warm_up(tmp_path, monkeypatch):
    monkeypatch.setattr(ProcessGroup, "join", lambda device: Alike(0, 3, 0, torch.device("cpu")))
    watch = MagicMock(failure=None, **{"failed.side_effect": str})
    monkeypatch.setattr(worker, "Watchdog", MagicMock(**{"return_value.start.return_value": watch}))
    with pytest.raises(UsageError, match="3 ranks without a warm-up step"):
        execute(BENCHMARK, replace(SMOKE, warm_up_steps=0), LaunchOptions(paths=ResultPaths(tmp_path, 0)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "fails", "organization", "reason"),
    [
        ("__enter__", None, ":::MLLOG x", "at which readers split"),
        ("__init__", MagicMock(side_effect=RuntimeError("on purpose")), "x", "on purpose"),
        ("step_done", MagicMock(side_effect=RuntimeError("on purpose")), "x", "on purpose"),
    ],
)
def test_a_failure_with_an_open_log_ends_it_and_reads_no_data(
    tmp_path, monkeypatch, place, fails, organization, reason
):
    if fails:
        monkeypatch.setattr(worker.TimedRun, place, fails)
    config, paths = (
        replace(SMOKE, submission=replace(SMOKE.submission, organization=organization)),
        ResultPaths(tmp_path, 0),
    )
    with pytest.raises((ValueError, RuntimeError), match=reason):
        execute(BENCHMARK, config, LaunchOptions(paths=paths))
    log = record.read(paths.log)
    assert log.status == keys.ABORTED and log.stopped is not None
    assert reason in str(log.stopped.metadata["reason"])
    assert json.loads(paths.provenance.read_text())["data"] is None


def test_threads_must_be_equal_on_all_ranks_of_a_cpu_run(monkeypatch):
    options = LaunchOptions(paths=ResultPaths(Path("none"), 0))

    def threads(device: str) -> object:
        ranks = ProcessGroup(0, 2, 0, torch.device(device))
        return worker.options_of_all(options, ranks)["--threads or OMP_NUM_THREADS"]

    before = threads("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert before != threads("cpu") == 99
    assert threads("cuda") is None


def test_a_run_is_resumed_only_as_what_it_recorded_itself(tmp_path, toy_config, monkeypatch):
    state = {"commit": "abc", "dirty": True, "difference": "d1"}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv(origin.IMAGE_DIGEST, raising=False)
    monkeypatch.setattr(source, "provenance", lambda root: dict(state))
    settings, ranks = toy_config(), Alike(0, 2, 0, torch.device("cpu"))
    options = LaunchOptions(paths=ResultPaths(tmp_path, 0))
    with closing(claim(settings, options, ranks, "2xCPU")) as log:
        info: RunInfo = {"train_samples": 1, "eval_samples": 1, "hyperparameters": {}}
        submission = submission_of(BENCHMARK.spec, settings, "2xCPU")
        Protocol(log).describe(submission | settings_of(settings, info))
        log.start(keys.RUN_START)
    with pytest.raises(TimedrunError, match="not every rank has a valid checkpoint"):  # nothing else
        load_checkpoint(settings, options, ranks, "2xCPU")
    state["difference"] = "d2"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv(origin.IMAGE_DIGEST, f"sha256:{64 * 'b'}")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    with pytest.raises(TimedrunError) as raised:
        load_checkpoint(settings, options, ranks, "2xCPU")
    for words in ("threads of a rank", "nodes was 1 and is now 2", "None and is now sha256:b", "was d1 and is now d2"):
        assert words in str(raised.value)


def test_a_rank_exits_although_standard_error_has_no_reader(monkeypatch):
    monkeypatch.setattr(os, "_exit", MagicMock(side_effect=SystemExit))
    monkeypatch.setattr(sys, "stderr", MagicMock(**{"write.side_effect": BrokenPipeError(errno.EPIPE, "Broken pipe")}))
    with pytest.raises(SystemExit):
        Ending(ProcessGroup(0, 1, 0, torch.device("cpu")))("rank 1 died", ExitCode.RANK_LOST)
    assert os._exit.call_args.args == (ExitCode.RANK_LOST,)
