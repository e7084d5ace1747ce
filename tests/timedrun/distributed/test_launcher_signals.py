"""A signal to the supervisor reaches all ranks; a second one, or one before they can save, ends them."""

import signal
import tempfile
from pathlib import Path

import pytest

from tests.timedrun.distributed.launched_ranks import HANDLES, said, supervise
from timedrun.distributed.launcher import End
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_all_ranks_and_they_say_what_came_of_it(number: signal.Signals) -> None:
    end, _ = supervise(f"{HANDLES}\nif rank == 0: os.kill(os.getppid(), {int(number)})\nwait()\nleave(75)")
    assert end == End((75, 75), signal=number, over=True)
    assert end.exit_code == ExitCode.STOPPED_RESUMABLE


def test_a_signal_before_ranks_can_save_ends_all_of_them_and_none_counts_as_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    end, seconds = supervise(
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
    assert "timedrun run:" not in said(capfd)


def test_a_second_signal_ends_all_ranks_at_once() -> None:
    end, seconds = supervise(
        f"""
        {HANDLES}
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


def test_a_hangup_is_no_second_signal_and_none_where_it_was_ignored_from_the_start() -> None:
    twice = f"""
        {HANDLES}
        for _ in "ab" if rank == 0 else "":
            os.kill(os.getppid(), signal.SIGHUP)
            time.sleep(0.3)
        wait()
        leave(75)
        """
    assert supervise(twice)[0] == End((75, 75), signal=signal.SIGHUP, over=True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert supervise("os.kill(os.getppid(), signal.SIGHUP)\ntime.sleep(0.5)\nleave(0)")[0] == End((0, 0), over=True)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_after_the_run_is_over_takes_nothing_from_who_has_work_left() -> None:
    code = """
        if rank == 0: signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        if rank == 1: (signs / "pid").write_text(str(os.getpid()))
        begin()
        all_started()
        if rank == 0:
            while Path("/proc", (signs / "pid").read_text()).exists(): time.sleep(0.02)
            os.kill(os.getppid(), signal.SIGTERM)
            wait()
            time.sleep(2)
        if rank == 2: time.sleep(60)
        leave(0)
        """
    end, _ = supervise(code, ranks=3, log_seconds=0.5)
    assert end.codes == (0, 0, -15) and end.over


def test_handlers_and_the_folder_of_signs_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    supervise("leave(0)", ranks=1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
    assert list(tmp_path.iterdir()) == []
