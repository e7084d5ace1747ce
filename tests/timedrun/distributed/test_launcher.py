"""Launcher: the environment and output of ranks, the message about a lost one, no process or file left behind."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from judging.ground.errors import ExitCode
from tests.timedrun.distributed.launched_ranks import PRELUDE, alive, launch_env, launch_ranks, until
from timedrun.distributed.launcher import End, Launcher

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_ranks_get_their_launch_environment(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
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


def test_a_killed_ranks_output_is_whole_and_its_workers_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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


def test_a_killed_rank_is_named_with_its_last_step_and_the_others_can_write_their_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
def test_ranks_that_end_because_another_is_lost_give_the_reason(code: str, first: int, lost: str) -> None:
    end, _ = launch_ranks(code, env=launch_env(2, first=first, world_size=4))
    assert (end.lost, end.exit_code) == (lost, ExitCode.RANK_LOST)


def test_ranks_have_begun_also_if_their_status_folder_was_removed() -> None:
    assert launch_ranks("begin()\nleave(0)")[0] == End((0, 0), begun=True, over=True)
    assert launch_ranks("import shutil; shutil.rmtree(status, ignore_errors=True); os._exit(3)")[0].begun


def test_ranks_their_workers_and_the_status_folder_end_with_a_killed_launcher(tmp_path: Path) -> None:
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


def test_a_command_that_cannot_be_started_is_an_error_and_leaves_no_rank() -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        Launcher(["/nowhere/python"], launch_env(2)).run()
