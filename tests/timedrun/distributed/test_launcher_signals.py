"""Signals to the launcher: the first reaches all ranks; a second one, or one before they can save, ends them."""

import signal
import tempfile
from pathlib import Path

import pytest

from tests.timedrun.distributed.launched_ranks import HANDLE_SIGTERM, launch_ranks
from timedrun.distributed.launcher import End
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_all_ranks_and_their_exit_code_counts(number: signal.Signals) -> None:
    end, _ = launch_ranks(f"{HANDLE_SIGTERM}\nif rank == 0: os.kill(os.getppid(), {int(number)})\nwait()\nleave(75)")
    assert end == End((75, 75), signal=number, over=True)
    assert end.exit_code == ExitCode.STOPPED_RESUMABLE


def test_a_signal_before_ranks_can_save_ends_all_of_them_and_none_is_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    end, seconds = launch_ranks(
        """
        if rank == 0: signal.signal(signal.SIGTERM, lambda *_: None)
        all_started()
        if rank == 0: os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
        """,
        log_seconds=30.0,
    )
    assert (end.lost, end.at_once, end.codes) == ("", True, (-9, -15))
    assert seconds < 15
    assert "timedrun run:" not in capfd.readouterr().err


def test_a_second_signal_ends_all_ranks_at_once() -> None:
    end, seconds = launch_ranks(
        f"""
        {HANDLE_SIGTERM}
        if rank == 0:
            os.kill(os.getppid(), signal.SIGTERM)
            wait()
            os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
        """,
        log_seconds=30.0,
    )
    assert end == End((-9, -9), signal=signal.SIGTERM, at_once=True)
    assert seconds < 15


def test_sighup_is_not_a_second_signal_and_is_ignored_under_nohup() -> None:
    twice = f"""
        {HANDLE_SIGTERM}
        for _ in "ab" if rank == 0 else "":
            os.kill(os.getppid(), signal.SIGHUP)
            time.sleep(0.3)
        wait()
        leave(75)
        """
    assert launch_ranks(twice)[0] == End((75, 75), signal=signal.SIGHUP, over=True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launch_ranks("os.kill(os.getppid(), signal.SIGHUP)\ntime.sleep(0.5)\nleave(0)")[0] == End(
            (0, 0), over=True
        )
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_after_the_end_of_the_run_leaves_rank_0_its_time() -> None:
    code = """
        if rank == 0: signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        if rank == 1: (status / "pid").write_text(str(os.getpid()))
        begin()
        all_started()
        if rank == 0:
            while Path("/proc", (status / "pid").read_text()).exists(): time.sleep(0.02)
            os.kill(os.getppid(), signal.SIGTERM)
            wait()
            time.sleep(2)
        if rank == 2: time.sleep(60)
        leave(0)
        """
    end, _ = launch_ranks(code, ranks=3, log_seconds=0.5)
    assert end.codes == (0, 0, -15) and end.over


def test_signal_handlers_are_restored_and_the_status_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    launch_ranks("leave(0)", ranks=1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
    assert list(tmp_path.iterdir()) == []
