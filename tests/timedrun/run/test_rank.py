"""Process of one rank: its job as JSON, and its reports to the wrapper or to torchrun."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from torch.distributed import TCPStore

from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths
from timedrun.benchmark import find
from timedrun.distributed import parent_death_signal, status_files
from timedrun.distributed.launch_env import LAUNCHED, STATUS_FILES
from timedrun.run import rank
from timedrun.run.worker import LaunchOptions


class Exit(BaseException):
    """In place of os._exit."""


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> status_files.StatusFiles:
    monkeypatch.setattr(os, "_exit", MagicMock(side_effect=Exit))
    monkeypatch.setattr(os, "dup2", MagicMock())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(STATUS_FILES, str(tmp_path))
    monkeypatch.setenv(LAUNCHED, "1")
    return status_files.StatusFiles(tmp_path)


def exit_code(monkeypatch: pytest.MonkeyPatch, result: BaseException | ExitCode) -> int:
    """Exit code of a rank whose `execute` raises or returns `result`."""

    monkeypatch.setattr(rank, "execute", MagicMock(side_effect=[result]))
    with pytest.raises(Exit):
        rank.run_rank(None, None, None)
    return int(os._exit.call_args.args[0])


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
    assert exit_code(monkeypatch, result) == code
    assert status.error(1) == reported
    assert status.read(1, "left") == ({"code": int(result)} if isinstance(result, ExitCode) else {})
    said = capsys.readouterr().err
    assert bool(said) == bool(printed) and all(words in said for words in printed)


def test_a_rank_runs_the_config_and_options_of_its_wrapper(monkeypatch, tmp_path, status):
    for name in ("image_classification", "language_model"):
        benchmark = find(name)
        for config_name in benchmark.config_names:
            config = replace(benchmark.config(config_name), seed=7)
            options = LaunchOptions(paths=ResultPaths(tmp_path, 3), resume=True, data_folder=tmp_path, command="x")
            (tmp_path / "job.json").write_text(rank.dump_job(benchmark, config, options))
            ran: list[object] = []
            monkeypatch.setattr(rank, "run_rank", lambda *given, ran=ran: ran.extend(given))
            monkeypatch.setattr(parent_death_signal, "obey_environment", lambda: None)
            rank.main()
            assert ran == [benchmark, config, options]


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


def test_torchruns_store_keeps_the_result_number_for_the_next_attempt(monkeypatch):
    monkeypatch.delenv(STATUS_FILES, raising=False)
    assert status_files.agent_number() is None
    agent = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False)
    variables = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port)}
    for name, text in (variables | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, text)
    assert status_files.agent_number() is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(TimedrunError, match="restarted by torchrun.*nothing was written"):
        status_files.agent_number()
    status_files.report_begun(3)
    assert status_files.agent_number() == 3
