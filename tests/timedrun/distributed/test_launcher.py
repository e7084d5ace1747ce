"""Launcher: environment, output and ends of ranks, which of them is lost, and no process or file left behind."""

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from judging.ground.errors import ExitCode
from tests.timedrun.distributed.launched_ranks import PRELUDE, alive, launch_env, launch_ranks, until
from timedrun.distributed import launcher
from timedrun.distributed.launcher import End, Launcher

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_ranks_get_their_launch_environment(monkeypatch, capfd):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    code = f"""
        port, elastic = int(os.environ['MASTER_PORT']) > 0, 'TORCHELASTIC_USE_AGENT_STORE' in os.environ
        print('environment', [os.environ[name] for name in {names}], port, elastic)
        leave(3)
        """
    end, _ = launch_ranks(code, env=launch_env(2, first=4, world_size=6), environment=os.environ)
    assert end == End((3, 3), over=True)
    assert sorted(capfd.readouterr().err.splitlines()) == [
        "rank 4: environment ['4', '6', '0', '2', '127.0.0.1'] True False",
        "rank 5: environment ['5', '6', '1', '2', '127.0.0.1'] True False",
    ]


def test_a_killed_ranks_output_is_whole_and_its_workers_end(tmp_path, capfd):
    _, seconds = launch_ranks(
        f"""
        workers = [subprocess.Popen({SLEEPER}, start_new_session=outside) for outside in (False, True)]
        Path({str(tmp_path / "workers")!r}).write_text(" ".join(str(worker.pid) for worker in workers))
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # all is in the pipe when the rank ends
        sys.stdout.write("".join(f"line {{n}} {{'x' * 100}}\\n" for n in range(9000)) + "the end")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        env=launch_env(1, first=1, world_size=2),
    )
    inside, outside = (int(number) for number in (tmp_path / "workers").read_text().split())
    psutil.Process(outside).kill()
    assert seconds < 30
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "line" in line] == [f"rank 1: line {n} {'x' * 100}" for n in range(9000)]
    assert "rank 1: the end" in lines
    until(lambda: not psutil.pid_exists(inside) or not alive(psutil.Process(inside)))


def test_a_killed_rank_is_named_with_its_last_step_and_the_others_can_write_their_log(tmp_path, capfd):
    log = tmp_path / "log"
    end, seconds = launch_ranks(
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
    assert end == End((4, -9), lost="rank 1 was killed by SIGKILL (last step 120)", begun=True)
    assert end.exit_code == ExitCode.RANK_LOST
    assert log.read_text() == "run_stop"
    assert seconds < 9
    assert f"timedrun run: {end.lost}." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("code", "first", "lost"),
    [
        ("at(8, words='rank 0 is gone')\nos._exit(4)", 2, "rank 0 is gone"),
        ("at(8, words='rank 0 is gone')\nos._exit(4)", 0, "a rank was lost"),  # rank 0 is here: its log has the reason
        ("refuse('rank 0 did not join', 4)", 2, "rank 0 did not join"),
    ],
)
def test_ranks_that_end_because_another_is_lost_give_the_reason(code, first, lost):
    end, _ = launch_ranks(code, env=launch_env(2, first=first, world_size=4))
    assert (end.lost, end.exit_code) == (lost, ExitCode.RANK_LOST)


def test_ranks_have_begun_also_if_their_status_folder_was_removed():
    assert launch_ranks("begin()\nleave(0)")[0] == End((0, 0), begun=True, over=True)
    assert launch_ranks("import shutil; shutil.rmtree(status, ignore_errors=True); os._exit(3)")[0].begun


def test_ranks_their_workers_and_the_status_folder_end_with_a_killed_launcher(tmp_path):
    code = f"""{PRELUDE}
from timedrun.distributed import parent_death_signal
parent_death_signal.end_with(int(os.environ["TIMEDRUN_LAUNCHED"]))
worker = subprocess.Popen({SLEEPER})
time.sleep(60)
"""
    script = (
        "import sys\nfrom tests.timedrun.distributed.launched_ranks import launch_env\n"
        "from timedrun.distributed.launcher import Launcher\n"
        f"Launcher([sys.executable, '-c', {code!r}], launch_env(2)).run()"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = psutil.Popen([sys.executable, "-c", script], start_new_session=True, env=environment)
    try:
        until(lambda: len(process.children(recursive=True)) == 5)  # two ranks with a worker each, and the guard
        processes = process.children(recursive=True)
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(map(alive, processes)))
    until(lambda: not list(tmp_path.iterdir()))


def test_a_command_that_cannot_be_started_is_an_error_and_leaves_no_rank():
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        Launcher(["/nowhere/python"], launch_env(2)).run()


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SUSPENDED = "was suspended (SIGSTOP or a debugger) and was killed"
TERMINATED = "rank 2 was killed by SIGTERM (no step reported)"


@pytest.fixture
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
        "all_started(); at(9 - 2 * rank); suspend() if rank == 1 else time.sleep(0.5); os._exit(4)",
        End((4, -9), lost=f"rank 1 {SUSPENDED} (last step 9)"),  # as the log's reason has it
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
        for number in SIGNALS
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


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("case", ENDS)
def test_what_ended_the_ranks_is_told_and_none_goes_on(case, capfd):
    code, expected, options = ENDS[case]
    told = [f"timedrun run: {line}.\n" for line in (expected.lost, options.get("printed")) if line]
    end, seconds = launch_ranks(code, **{name: value for name, value in options.items() if name != "printed"})
    assert end == expected
    printed = capfd.readouterr().err
    assert bool(printed) == bool(told) and all(line in printed for line in told)
    assert seconds < 15


def test_sighup_that_nohup_ignores_stops_no_rank():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        end, _ = launch_ranks("interrupt(signal.SIGHUP); time.sleep(0.5); leave(0)")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert end == End((0, 0), over=True)


def test_ranks_are_lost_after_the_time_in_which_all_were_seen_suspended(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    launched = Launcher(["unused"], launch_env(2))
    ranks = [SimpleNamespace(running=True, suspended=True) for _ in range(2)]
    launched._ranks = ranks
    launched._status = SimpleNamespace(begun=lambda ranks: True)

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
