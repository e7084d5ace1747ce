"""Deadlines of the launcher: ranks that hang or are suspended are ended, and a rank with work left has time for it."""

import pytest

from tests.timedrun.distributed.launched_ranks import launch_ranks
from timedrun.distributed import launcher
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
