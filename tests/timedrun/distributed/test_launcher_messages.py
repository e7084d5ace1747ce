"""What ranks say, refuse and tell by signs is heard whole and once."""

import pytest

from tests.timedrun.distributed.launched_ranks import place, said, supervise
from timedrun.distributed import launcher
from timedrun.distributed.launcher import End
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_nothing_that_a_rank_says_is_lost_in_a_crash_and_lines_stay_whole(capfd: pytest.CaptureFixture[str]) -> None:
    supervise(
        """
        for number in range(2000):
            print("line", number, "x" * 100)
        sys.stdout.write("the end")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        place=place(1, first=1, world_size=2),
    )
    lines = said(capfd).splitlines()
    assert [line for line in lines if "line" in line] == [f"rank 1: line {n} {'x' * 100}" for n in range(2000)]
    assert "rank 1: the end" in lines


def test_ranks_that_refuse_are_heard_once_and_none_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    end, _ = supervise("all_started()\nrefuse('it reached its target')")
    assert end == End((1, 1), errors=((ExitCode.ERROR, "it reached its target"),))
    assert said(capfd) == ""


def test_a_refusal_of_one_rank_ends_the_others_that_wait_for_it_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "REFUSED_SECONDS", 0.5)
    end, seconds = supervise(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nall_started()\n"
        "if rank == 1: refuse('no such device', 2)\ntime.sleep(60)",
        log_seconds=30.0,
        finished=lambda: True,  # the log of another launch
    )
    assert end == End((-9, 2), errors=((ExitCode.USAGE, "no such device"),))
    assert seconds < 15
    assert said(capfd) == ""


def test_ranks_tell_that_they_have_begun_even_on_a_full_disk_or_in_a_folder_that_was_cleared() -> None:
    assert supervise("begin()\nleave(0)")[0] == End((0, 0), begun=True, over=True)
    assert supervise("import shutil; shutil.rmtree(signs, ignore_errors=True); os._exit(3)")[0].begun
