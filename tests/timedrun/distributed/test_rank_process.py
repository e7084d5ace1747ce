"""The process of one rank of several: it ends at once, everything being told, whatever came of its run."""

import os
from pathlib import Path

import pytest

from timedrun.commands import run
from timedrun.distributed import status_files
from timedrun.distributed.launch_env import LAUNCHED, STATUS_FILES, LaunchEnv
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.run.worker import LaunchOptions
from timedrun.storage.result_files import ResultPaths


class Exit(BaseException):
    """In place of os._exit."""


def end_of_rank(
    monkeypatch: pytest.MonkeyPatch, folder: Path, came: BaseException | ExitCode, *, launched: bool = True
) -> tuple[int, status_files.StatusFiles]:
    """How rank 1 ends whose `execute` raises or returns `came`."""

    def execute(*_: object) -> ExitCode:
        if isinstance(came, BaseException):
            raise came
        return came

    def leave(code: int) -> None:
        raise Exit(code)

    monkeypatch.setattr(run, "execute", execute)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setenv("RANK", "1")
    if launched:
        monkeypatch.setenv(STATUS_FILES, str(folder))
        monkeypatch.setenv(LAUNCHED, "1")
    place = LaunchEnv("torchrun", 1, 2, 1, 2, 1, 0, "127.0.0.1", 29500)
    with pytest.raises(Exit) as left:
        run.be_rank(None, None, LaunchOptions(paths=ResultPaths(folder, 0)), place, False)  # type: ignore[arg-type]
    return left.value.args[0], status_files.StatusFiles(folder)


@pytest.mark.parametrize("error", [TimedrunError("it is over"), UsageError("no such rank")])
def test_an_error_in_words_is_told_to_who_started_the_rank_and_said_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: TimedrunError
) -> None:
    code, told = end_of_rank(monkeypatch, tmp_path, error)
    assert code == error.exit_code
    assert told.error(1) == (error.exit_code, str(error))
    assert not told.left(1)
    assert capsys.readouterr().err == ""


def test_an_error_in_words_is_said_where_nobody_is_there_to_say_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = end_of_rank(monkeypatch, tmp_path, UsageError("no such rank"), launched=False)
    assert (code, told.error(1)) == (2, None)
    assert capsys.readouterr().err == "timedrun run: no such rank\n"


def test_an_error_that_nobody_foresaw_has_its_traceback_and_is_not_told_as_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = end_of_rank(monkeypatch, tmp_path, RuntimeError("odd"))
    assert (code, told.error(1), told.left(1)) == (1, None, False)
    assert "Traceback" in (shown := capsys.readouterr().err) and "RuntimeError: odd" in shown


def test_an_orderly_end_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = end_of_rank(monkeypatch, tmp_path, ExitCode.TARGET_NOT_REACHED)
    assert (code, told.left(1)) == (3, True)
