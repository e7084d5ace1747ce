"""Ends of the ranks of a node: which one the launcher calls lost, how it ends the others, and what signals do."""

import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from judging.ground.errors import ExitCode
from tests.timedrun.distributed.launched_ranks import launch_env, launch_ranks
from timedrun.distributed import launcher
from timedrun.distributed.launcher import End, Launcher

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SUSPENDED = "was suspended (SIGSTOP or a debugger) and was killed"
TERMINATED = "rank 2 was killed by SIGTERM (no step reported)"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """After each test: the status folder is removed, and the signal handlers are those from before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert list(tmp_path.iterdir()) == []


DIGEST = """
on_sigterm(signal.SIG_IGN)
begin()
all_started()
if rank != 1: time.sleep(3 if rank == 0 else 60)
leave(0)
"""
ENDS: dict[str, tuple[str, End, dict[str, Any]]] = {
    "a rank exits with 0 before the run ended": (
        "all_started(); os._exit(0) if rank == 1 else wait()",
        End((-15, 0), lost="rank 1 exited with code 0 before the run ended (no step reported)"),
        {},
    ),
    "a rank ignores SIGTERM after another crashed": (
        "on_sigterm(signal.SIG_IGN); all_started(); os.abort() if rank == 1 else time.sleep(60)",
        End((-9, -6), lost="rank 1 was killed by SIGABRT (no step reported)"),
        {"printed": "rank 0 did not exit and was killed (no step reported)"},
    ),
    "a rank crashes after its work was complete": (
        "begin(); report_left(); all_started(); os.abort() if rank == 1 else time.sleep(0.5); os._exit(0)",
        End((0, -6), begun=True, over=True),
        {
            "finished": lambda: True,
            "printed": "warning: rank 1 was killed by SIGABRT after its work was complete; the result is valid",
        },
    ),
    "a rank is suspended and another exits because of it": (
        "all_started(); at(7); suspend() if rank == 1 else time.sleep(0.5); os._exit(4)",
        End((4, -9), lost=f"rank 1 {SUSPENDED} (last step 7)"),
        {"log_seconds": 30.0},
    ),
    "a rank is suspended before the log is open": (
        "all_started(); suspend() if rank == 1 else wait()",
        End((-15, -9), lost=f"rank 1 {SUSPENDED} (no step reported)"),
        {"suspended_seconds": 1.0},
    ),
    "all ranks are suspended": (
        "begin(); at(3); all_started(); suspend()",
        End((-9, -9), lost=f"rank 0 {SUSPENDED} (last step 3)", begun=True),
        {"suspended_seconds": 0.5, "printed": f"rank 1 {SUSPENDED} (last step 3)"},
    ),
    "a rank is suspended after the run": (
        "begin(); all_started(); suspend() if rank == 1 else leave(3)",
        End((3, -9, 3), lost=f"rank 1 {SUSPENDED} (no step reported)", begun=True, over=True),
        {"ranks": 3, "log_seconds": 0.5},
    ),
    "a rank hangs after the run, while rank 0 digests the data": (
        DIGEST,
        End((0, 0, -9), lost="rank 2 did not exit and was killed (no step reported)", begun=True, over=True),
        {"ranks": 3, "log_seconds": 0.5},
    ),
    "rank 0 hangs in the digest of the data": (
        DIGEST,
        End((-9, 0, -9), lost="rank 0 did not exit and was killed (no step reported)", begun=True, over=True),
        {"ranks": 3, "log_seconds": 0.5, "teardown_seconds": 0.5},
    ),
    "all ranks fail, and the log has the reason": ("all_started(); sys.exit(1)", End((1, 1)), {}),
    "all ranks refuse the run alike": (
        "all_started(); refuse('it reached its target')",
        End((1, 1), errors=((ExitCode.ERROR, "it reached its target"),)),
        {},
    ),
    "a rank refuses the run": (
        "on_sigterm(signal.SIG_IGN); all_started(); refuse('no GPU', 2) if rank == 1 else time.sleep(60)",
        End((-9, 2), errors=((ExitCode.USAGE, "no GPU"),)),
        {"log_seconds": 30.0, "refused_seconds": 0.5, "finished": lambda: True},  # the log is another launch's
    ),
    **{
        f"{number.name} reaches all ranks, which save": (
            f"on_sigterm(stop); all_started(); rank or interrupt({int(number)}); wait(); leave(75)",
            End((75, 75), signal=number, over=True),
            {},
        )
        for number in SIGNALS[:2]  # SIGHUP: below
    },
    "a signal comes before a rank can save": (
        "on_sigterm(signal.SIG_DFL if rank else stop); all_started(); rank or interrupt(); time.sleep(60)",
        End((-9, -15), signal=signal.SIGTERM, at_once=True),
        {"log_seconds": 30.0},
    ),
    "a second signal comes, and the ranks close the log": (
        """
        signal.signal(signal.SIGQUIT, lambda *_: os._exit(130))
        on_sigterm(stop)
        begin()
        all_started()
        rank or interrupt()
        wait()
        rank or interrupt()
        time.sleep(60)
        """,
        End((130, 130), signal=signal.SIGTERM, at_once=True, begun=True),
        {"log_seconds": 30.0},
    ),
    "a closed terminal sends SIGHUP twice": (
        """
        on_sigterm(stop)
        all_started()
        rank or interrupt(signal.SIGHUP)
        wait()
        rank or interrupt(signal.SIGHUP)
        time.sleep(0.3)
        leave(75)
        """,
        End((75, 75), signal=signal.SIGHUP, over=True),
        {},
    ),
    "a signal comes after the run, and rank 0 has work left": (
        """
        on_sigterm(signal.SIG_DFL if rank else stop)
        if rank == 1: (status / "pid").write_text(str(os.getpid()))
        begin()
        all_started()
        if rank == 0:
            while Path("/proc", (status / "pid").read_text()).exists(): time.sleep(0.02)
            interrupt()
            wait()
            time.sleep(2)
        if rank == 2: time.sleep(60)
        leave(0)
        """,
        End((0, 0, -15), lost=TERMINATED, signal=signal.SIGTERM, at_once=True, begun=True, over=True),
        {"ranks": 3, "log_seconds": 0.5},
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_ended_the_ranks_is_told_and_none_goes_on(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, expected, options = ENDS[case]
    told = [f"timedrun run: {line}.\n" for line in (expected.lost, options.get("printed")) if line]
    end, seconds = launch_ranks(code, **{name: value for name, value in options.items() if name != "printed"})
    assert end == expected
    printed = capfd.readouterr().err
    assert bool(printed) == bool(told) and all(line in printed for line in told)
    assert seconds < 15


def test_sighup_that_nohup_ignores_stops_no_rank() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        end, _ = launch_ranks("interrupt(signal.SIGHUP); time.sleep(0.5); leave(0)")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert end == End((0, 0), over=True)


def test_ranks_are_lost_after_the_time_in_which_all_were_seen_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    launched = Launcher(["unused"], launch_env(2))
    ranks = [SimpleNamespace(running=True, suspended=True) for _ in range(2)]
    launched._ranks = ranks  # type: ignore[assignment]
    launched._status = SimpleNamespace(begun=lambda ranks: True)  # type: ignore[assignment]

    def lost(polls: int, seconds: float) -> bool:
        for _ in range(polls):
            clock[0] += seconds
            launched._check_suspended()
        return launched._deadline is not None

    assert not lost(20, 3600.0)  # the launcher was suspended too: a job that continues as a whole
    assert not lost(90, 0.1)
    ranks[1].suspended = False  # one that runs can report the other
    assert not lost(400, 0.1)
    ranks[1].suspended = True
    assert not lost(199, 0.1)
    assert lost(5, 0.1)
