"""A rank's process: several runs leave it as it was, one that fails ends without delay; its job and its reports."""

import errno
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import torch

from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths
from mlevents import keys, record
from timedrun.runner.benchmark import find
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process import parent_death_signal, status_files
from timedrun.runner.process.launch_env import LAUNCHED, STATUS_FILES
from timedrun.runner.run import rank, worker
from timedrun.runner.run.worker import Ending, LaunchOptions, execute

BENCHMARK = find("image_classification")
SMOKE = BENCHMARK.config("smoke", "synthetic")


def test_runs_in_one_process_leave_no_handler_and_no_open_file(tmp_path):
    short = replace(SMOKE, evaluation=replace(SMOKE.evaluation, target=0.01, first=1))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    execute(BENCHMARK, short, LaunchOptions(paths=ResultPaths(tmp_path, 0)))
    before = psutil.Process().num_fds()
    assert execute(BENCHMARK, short, LaunchOptions(paths=ResultPaths(tmp_path, 1))) == ExitCode.OK
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert psutil.Process().num_fds() <= before + 1  # the run's lock, which is kept as long as the process lives


class Alike(ProcessGroup):
    """A rank whose others say what it says."""

    def all_gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size


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
    config = replace(SMOKE, submission=replace(SMOKE.submission, organization=organization))
    paths = ResultPaths(tmp_path, 0)
    with pytest.raises((ValueError, RuntimeError), match=reason):
        execute(BENCHMARK, config, LaunchOptions(paths=paths))
    log = record.read(paths.log)
    assert log.status == keys.ABORTED and reason in str(log.stopped.metadata["reason"])
    assert json.loads(paths.provenance.read_text())["data"] is None


def test_a_rank_exits_although_standard_error_has_no_reader(monkeypatch):
    monkeypatch.setattr(os, "_exit", MagicMock(side_effect=SystemExit))
    monkeypatch.setattr(sys, "stderr", MagicMock(**{"write.side_effect": BrokenPipeError(errno.EPIPE, "Broken pipe")}))
    with pytest.raises(SystemExit):
        Ending(ProcessGroup(0, 1, 0, torch.device("cpu")))("rank 1 died", ExitCode.RANK_LOST)
    assert os._exit.call_args.args == (ExitCode.RANK_LOST,)


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> status_files.StatusFiles:
    monkeypatch.setattr(os, "_exit", MagicMock(side_effect=SystemExit))
    monkeypatch.setattr(os, "dup2", MagicMock())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(STATUS_FILES, str(tmp_path))
    monkeypatch.setenv(LAUNCHED, "1")
    return status_files.StatusFiles(tmp_path)


@pytest.mark.parametrize(
    ("result", "code", "reported", "printed"),
    [
        (TimedrunError("it is over"), ExitCode.ERROR, (ExitCode.ERROR, "it is over"), []),
        (UsageError("no such rank"), ExitCode.USAGE, (ExitCode.USAGE, "no such rank"), []),
        (UsageError("of another launcher"), ExitCode.USAGE, None, ["timedrun run: of another launcher\n"]),
        (RuntimeError("odd"), ExitCode.ERROR, None, ["Traceback", "RuntimeError: odd"]),  # which is no refusal
        (ExitCode.TARGET_NOT_REACHED, 0, None, []),  # torchrun's agent would end the other ranks
        (ExitCode.RANK_LOST, 4, None, []),
    ],
)
def test_errors_are_reported_to_the_wrapper_or_printed(monkeypatch, capsys, status, result, code, reported, printed):
    if str(result) == "of another launcher":
        monkeypatch.delenv(STATUS_FILES)
    monkeypatch.setattr(rank, "execute", MagicMock(side_effect=[result]))
    with pytest.raises(SystemExit):
        rank.run_rank(None, None, None)
    assert os._exit.call_args.args == (code,)
    assert status.error(1) == reported
    assert status.read(1, "left") == ({"code": int(result)} if isinstance(result, ExitCode) else {})
    said = capsys.readouterr().err
    assert bool(said) == bool(printed) and all(words in said for words in printed)


def test_a_rank_runs_the_config_and_options_of_its_wrapper(monkeypatch, tmp_path, status):
    for name in ("image_classification", "language_model"):
        benchmark = find(name)
        for config_name in benchmark.config_names:
            config = replace(benchmark.config(config_name), seed=7)
            monkeypatch.setattr(rank.method_sources, "_named", {"own:Method": None})
            options = LaunchOptions(paths=ResultPaths(tmp_path, 3), resume=True, data_folder=tmp_path, command="x")
            (tmp_path / "job.json").write_text(rank.dump_job(benchmark, config, options))
            ran: list[object] = []
            monkeypatch.setattr(rank, "run_rank", lambda *given, ran=ran: ran.extend(given))
            monkeypatch.setattr(parent_death_signal, "obey_environment", lambda: None)
            monkeypatch.setattr(rank.method_sources, "name_by_user", ran.append)
            rank.main()
            assert ran == ["own:Method", benchmark, config, options]


def test_reports_are_read_and_an_incomplete_one_is_ignored(tmp_path, monkeypatch, status):
    status.expect(range(2, 4))
    monkeypatch.setenv("RANK", "3")
    status_files.report_begun(12)
    assert status.begun(range(2, 4)) and not status.begun(range(2, 3))
    assert status.read(3, "number") == {"number": 12}
    status.path(3, "number").write_text('{"number": 1')  # the disk was full
    assert status.read(3, "number") == status.read(2, "number") == {}
    monkeypatch.setenv(STATUS_FILES, str(tmp_path / "removed"))
    assert not status_files.report_error(ExitCode.ERROR, "gone")
