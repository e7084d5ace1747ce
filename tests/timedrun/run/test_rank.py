"""Process of one rank: its job as JSON, and its exit, which reports what happened to the wrapper."""

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

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
