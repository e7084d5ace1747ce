"""Ranks that neither end nor go on are ended, and who has work left has the time for it."""

from types import SimpleNamespace

import pytest

from tests.timedrun.distributed.launched_ranks import place, said, supervise
from timedrun.distributed import launcher
from timedrun.distributed.launcher import Supervisor
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_who_neither_ends_nor_hears_sigterm_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    end, seconds = supervise(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        all_started()
        if rank == 1: os.abort()
        time.sleep(60)
        """
    )
    assert end.codes == (-9, -6)
    assert end.lost.startswith("rank 1 was killed by SIGABRT")
    assert 2 < seconds < 12
    assert "rank 0 did not end and was killed" in said(capfd)


def test_a_suspended_rank_is_killed_as_soon_as_another_told_that_it_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    end, seconds = supervise(
        """
        all_started()
        if rank == 1:
            at(7)
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)
        os._exit(4)
        """,
        log_seconds=30.0,
    )
    assert end.codes == (4, -9)
    assert end.lost == "rank 1 was suspended (SIGSTOP, or a debugger) and was killed, last seen at step 7"
    assert seconds < 15


def test_ranks_that_are_all_suspended_are_lost() -> None:
    code = "begin()\nall_started()\nat(3)\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)"
    end, seconds = supervise(code, suspended_seconds=0.5)
    assert end.codes == (-9, -9)
    assert end.lost == "rank 0 was suspended (SIGSTOP, or a debugger) and was killed, last seen at step 3"
    assert end.exit_code == ExitCode.RANK_LOST
    assert seconds < 20


def test_a_rank_that_is_suspended_while_the_ranks_meet_is_lost_and_nobody_waits_for_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = "all_started()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(50)"
    end, seconds = supervise(code, suspended_seconds=1.0)
    assert end.codes == (-15, -9)
    assert end.lost == "rank 1 was suspended (SIGSTOP, or a debugger) and was killed, no step known"
    assert end.exit_code == ExitCode.RANK_LOST
    assert seconds < 30
    assert f"{end.lost}; the others have 2 s to end." in said(capfd)


def test_a_job_that_was_suspended_as_a_whole_and_goes_on_finds_no_rank_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    watched = Supervisor(["unused"], place(2), suspended_seconds=30.0)
    ranks = [SimpleNamespace(running=True, suspended=True) for _ in range(2)]
    watched._ranks = ranks  # type: ignore[assignment]

    def look(times: int, seconds: float) -> bool:
        for _ in range(times):
            clock[0] += seconds
            watched._look_for_suspended()
        return watched._deadline is not None

    assert not look(20, 3600.0)  # the supervisor had been stopped too
    assert not look(190, 0.1)
    ranks[1].suspended = False  # one that runs can tell of the other
    assert not look(400, 0.1)
    ranks[1].suspended = True
    assert not look(299, 0.1)
    assert look(5, 0.1)


CAUGHT = {
    "suspended": (
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "rank 1 was suspended (SIGSTOP, or a debugger) and was killed",
    ),
    "hangs": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)", "rank 1 did not end and was killed"),
    "hangs, but hears": ("time.sleep(60)", "rank 1 did not end and was killed"),
}


@pytest.mark.parametrize("how", CAUGHT)
def test_a_rank_that_is_caught_after_the_run_is_over_is_not_waited_for_and_the_result_stands(how: str) -> None:
    code, words = CAUGHT[how]
    lines = ["begin()", "all_started()", "if rank != 1: leave(3)", *code.splitlines(), "time.sleep(60)"]
    end, seconds = supervise("\n".join(lines), ranks=3, log_seconds=0.5)
    assert end.over and end.begun and end.lost == f"{words}, no step known"
    assert end.exit_code == ExitCode.TARGET_NOT_REACHED
    assert seconds < 20


def test_rank_0_has_time_to_digest_after_the_run_and_the_others_no_longer_than_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begin()
        all_started()
        if rank == 0: time.sleep(3)
        if rank == 2: time.sleep(60)
        leave(0)
        """
    end, seconds = supervise(code, ranks=3, log_seconds=0.5)
    assert (end.codes, end.lost) == ((0, 0, -9), "rank 2 did not end and was killed, no step known")
    assert seconds < 20
    monkeypatch.setattr(launcher, "TEARDOWN_SECONDS", 0.5)
    end, _ = supervise(code.replace("sleep(3)", "sleep(60)"), ranks=3, log_seconds=0.5)
    assert (end.codes, end.exit_code) == ((-9, 0, -9), ExitCode.OK)
