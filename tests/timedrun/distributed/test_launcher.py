"""Ranks as processes, played by small programs: each has its place, who died and how is told."""

from pathlib import Path

import pytest

from tests.timedrun.distributed.launched_ranks import place, said, supervise
from timedrun.distributed import oom_kills
from timedrun.distributed.launcher import End
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_ranks_learn_their_place_and_an_orderly_end_loses_none(capfd: pytest.CaptureFixture[str]) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    end, _ = supervise(
        f"print('place', [os.environ[name] for name in {names}], int(os.environ['MASTER_PORT']) > 0)\nleave(3)",
        place=place(2, first=4, world_size=6),
    )
    assert end == End((3, 3), over=True)
    assert end.exit_code == ExitCode.TARGET_NOT_REACHED
    shown = said(capfd)
    assert "rank 4: place ['4', '6', '0', '2', '127.0.0.1'] True" in shown
    assert "rank 5: place ['5', '6', '1', '2', '127.0.0.1'] True" in shown
    assert "timedrun run:" not in shown


def test_a_killed_rank_is_named_with_its_last_step_and_the_others_can_write_their_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    end, seconds = supervise(
        f"""
        begin()
        all_started()
        if rank == 1:
            at(120)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        Path({str(log)!r}).write_text("run_stop")
        os._exit(4)
        """,
        log_seconds=10.0,
    )
    assert end.codes == (4, -9)
    assert end.lost.startswith("rank 1 was killed by SIGKILL, last seen at step 120")
    assert end.exit_code == ExitCode.RANK_LOST
    assert log.read_text() == "run_stop"
    assert seconds < 9
    (line,) = [line for line in said(capfd).splitlines() if line.startswith("timedrun run:")]
    assert end.lost in line and "the others have 10 s to write the log" in line


def test_a_rank_that_exits_0_before_its_work_is_over_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    end, seconds = supervise("all_started()\nif rank == 1: os._exit(0)\nwait()")
    assert end.lost == "rank 1 ended (exit code 0) before the run did, no step known"
    assert end.exit_code == ExitCode.RANK_LOST
    assert seconds < 10
    assert end.lost in said(capfd)


def test_a_rank_killed_for_memory_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([5, 6])
    monkeypatch.setattr(oom_kills, "count", lambda: next(counts))
    end, _ = supervise("os.kill(os.getpid(), signal.SIGKILL)", ranks=1)
    assert "out of memory (the kernel's OOM killer struck" in end.lost


def test_ranks_that_end_alike_with_an_error_are_not_named_since_the_log_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    end, _ = supervise("all_started()\nsys.exit(1)")
    assert (end.lost, end.exit_code) == ("", ExitCode.ERROR)
    assert "timedrun run:" not in said(capfd)


def test_a_node_whose_ranks_end_because_another_nodes_is_lost_says_which(capfd: pytest.CaptureFixture[str]) -> None:
    words = "rank 0 gave no sign of life for 15 s"
    code = f"""
        (signs / f"rank_{{rank}}.json").write_text(json.dumps({{"step": 8, "seconds": 0.0, "words": {words!r}}}))
        os._exit(4)
        """
    end, _ = supervise(code, place=place(2, first=2, world_size=4))
    assert (end.lost, end.exit_code) == (words, ExitCode.RANK_LOST)
    end, _ = supervise(code)  # rank 0 is here, and its log says it
    assert end.lost == "a rank was lost"


def test_a_rank_that_crashes_after_its_work_is_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    code = """
    begin()
    (signs / f"rank_{rank}.left").write_text("")
    all_started()
    if rank == 1: os.abort()
    time.sleep(0.5)
    os._exit(0)
    """
    end, _ = supervise(code, finished=lambda: True)
    assert (end.lost, end.codes) == ("", (0, -6))
    assert "rank 1 was killed by SIGABRT after its work was over; the result stands" in said(capfd)
