"""Deadlines of the launcher: ranks that hang or are suspended are ended, and a rank with work left has time for it."""

from types import SimpleNamespace

import pytest

from tests.timedrun.distributed.launched_ranks import launch_env, launch_ranks
from timedrun.distributed import launcher
from timedrun.distributed.launcher import Launcher
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_a_rank_that_ignores_sigterm_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    end, seconds = launch_ranks(
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
    assert "rank 0 did not exit and was killed" in capfd.readouterr().err


def test_a_suspended_rank_is_killed_as_soon_as_another_exits_because_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    end, seconds = launch_ranks(
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
    assert end.lost == "rank 1 was suspended (SIGSTOP or a debugger) and was killed (last step 7)"
    assert seconds < 15


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", "was suspended (SIGSTOP or a debugger)"),
        ("time.sleep(60)", "did not exit"),
    ],
)
def test_a_rank_that_hangs_after_the_run_is_not_waited_for_and_the_result_is_valid(code: str, how: str) -> None:
    lines = ["begin()", "all_started()", "if rank != 1: leave(3)", code, "time.sleep(60)"]
    end, seconds = launch_ranks("\n".join(lines), ranks=3, log_seconds=0.5)
    assert end.over and end.begun and end.lost == f"rank 1 {how} and was killed (no step reported)"
    assert end.exit_code == ExitCode.TARGET_NOT_REACHED
    assert seconds < 20


def test_after_the_run_rank_0_has_time_for_the_data_digest_and_the_others_as_long_as_it(
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
    end, seconds = launch_ranks(code, ranks=3, log_seconds=0.5)
    assert (end.codes, end.lost) == ((0, 0, -9), "rank 2 did not exit and was killed (no step reported)")
    assert seconds < 20
    monkeypatch.setattr(launcher, "TEARDOWN_SECONDS", 0.5)
    end, _ = launch_ranks(code.replace("sleep(3)", "sleep(60)"), ranks=3, log_seconds=0.5)
    assert (end.codes, end.exit_code) == ((-9, 0, -9), ExitCode.OK)


def test_ranks_that_are_all_suspended_are_lost() -> None:
    code = "begin()\nall_started()\nat(3)\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)"
    end, seconds = launch_ranks(code, suspended_seconds=0.5)
    assert end.codes == (-9, -9)
    assert end.lost == "rank 0 was suspended (SIGSTOP or a debugger) and was killed (last step 3)"
    assert end.exit_code == ExitCode.RANK_LOST
    assert seconds < 20


def test_a_rank_that_is_suspended_before_the_log_is_open_is_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = "all_started()\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(50)"
    end, seconds = launch_ranks(code, suspended_seconds=1.0)
    assert end.codes == (-15, -9)
    assert end.lost == "rank 1 was suspended (SIGSTOP or a debugger) and was killed (no step reported)"
    assert end.exit_code == ExitCode.RANK_LOST
    assert seconds < 30
    assert f"{end.lost}." in capfd.readouterr().err


def test_a_job_that_was_suspended_as_a_whole_loses_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    launched = Launcher(["unused"], launch_env(2))
    ranks = [SimpleNamespace(running=True, suspended=True) for _ in range(2)]
    launched._ranks = ranks  # type: ignore[assignment]
    launched._status = SimpleNamespace(begun=lambda ranks: True)  # type: ignore[assignment]

    def poll(times: int, seconds: float) -> bool:
        for _ in range(times):
            clock[0] += seconds
            launched._check_suspended()
        return launched._deadline is not None

    assert not poll(20, 3600.0)  # the launcher was suspended too
    assert not poll(90, 0.1)
    ranks[1].suspended = False  # one that runs can report the other
    assert not poll(400, 0.1)
    ranks[1].suspended = True
    assert not poll(199, 0.1)
    assert poll(5, 0.1)
