"""Launcher: the environment and output of ranks, lost ranks, refusals, and no process or file left behind."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.timedrun.distributed.launched_ranks import PRELUDE, alive, launch_env, launch_ranks, until
from timedrun.distributed import launcher
from timedrun.distributed.launcher import End, Launcher
from timedrun.errors import ExitCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_ranks_get_their_launch_environment_and_an_orderly_end_loses_none(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    end, _ = launch_ranks(
        f"""
        port, elastic = int(os.environ['MASTER_PORT']) > 0, 'TORCHELASTIC_USE_AGENT_STORE' in os.environ
        print('environment', [os.environ[name] for name in {names}], port, elastic)
        leave(3)
        """,
        env=launch_env(2, first=4, world_size=6),
        environment=os.environ,
    )
    assert end == End((3, 3), over=True)
    assert end.exit_code == ExitCode.TARGET_NOT_REACHED
    printed = capfd.readouterr().err
    assert "rank 4: environment ['4', '6', '0', '2', '127.0.0.1'] True False" in printed
    assert "rank 5: environment ['5', '6', '1', '2', '127.0.0.1'] True False" in printed
    assert "timedrun run:" not in printed


def test_no_output_is_lost_in_a_crash_and_lines_stay_whole(capfd: pytest.CaptureFixture[str]) -> None:
    launch_ranks(
        """
        for number in range(2000):
            print("line", number, "x" * 100)
        sys.stdout.write("the end")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        env=launch_env(1, first=1, world_size=2),
    )
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "line" in line] == [f"rank 1: line {n} {'x' * 100}" for n in range(2000)]
    assert "rank 1: the end" in lines


def test_output_is_complete_where_a_process_outside_the_ranks_group_holds_the_pipe_open(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    end, seconds = launch_ranks(
        f"""
        sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
        worker = subprocess.Popen(sleeper, start_new_session=True)
        Path({str(tmp_path / "worker")!r}).write_text(str(worker.pid))
        sys.stdout.write("the end")
        leave(0)
        """,
        env=launch_env(1, first=1, world_size=2),
    )
    psutil.Process(int((tmp_path / "worker").read_text())).kill()
    assert end.codes == (0,)
    assert "rank 1: the end" in capfd.readouterr().err
    assert seconds < 30


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
    assert end.codes == (4, -9)
    assert end.lost.startswith("rank 1 was killed by SIGKILL") and end.lost.endswith(" (last step 120)")
    assert end.exit_code == ExitCode.RANK_LOST
    assert log.read_text() == "run_stop"
    assert seconds < 9
    assert f"timedrun run: {end.lost}." in capfd.readouterr().err


def test_a_rank_that_exits_with_0_before_the_end_of_the_run_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    end, _ = launch_ranks("all_started()\nif rank == 1: os._exit(0)\nwait()")
    assert end.lost == "rank 1 exited with code 0 before the run ended (no step reported)"
    assert end.exit_code == ExitCode.RANK_LOST
    assert end.lost in capfd.readouterr().err


def test_ranks_that_all_exit_with_an_error_are_not_named_since_the_log_has_the_reason(
    capfd: pytest.CaptureFixture[str],
) -> None:
    end, _ = launch_ranks("all_started()\nsys.exit(1)")
    assert (end.lost, end.exit_code) == ("", ExitCode.ERROR)
    assert "timedrun run:" not in capfd.readouterr().err


def test_ranks_that_end_because_a_rank_of_another_node_is_lost_name_it() -> None:
    message = "no heartbeat from rank 0 for 15 s"
    code = f"at(8, words={message!r})\nos._exit(4)"
    end, _ = launch_ranks(code, env=launch_env(2, first=2, world_size=4))
    assert (end.lost, end.exit_code) == (message, ExitCode.RANK_LOST)
    end, _ = launch_ranks(code)  # rank 0 is on this node: its log has the reason
    assert end.lost == "a rank was lost"


def test_a_crash_after_a_rank_completed_its_work_is_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    code = """
    begin()
    (status / f"rank_{rank}.left").write_text("")
    all_started()
    if rank == 1: os.abort()
    time.sleep(0.5)
    os._exit(0)
    """
    end, _ = launch_ranks(code, finished=lambda: True)
    assert (end.lost, end.codes) == ("", (0, -6))
    assert "rank 1 was killed by SIGABRT after its work was complete; the result is valid" in capfd.readouterr().err


def test_equal_refusals_are_collected_once_and_no_rank_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    end, _ = launch_ranks("all_started()\nrefuse('it reached its target')")
    assert end == End((1, 1), errors=((ExitCode.ERROR, "it reached its target"),))
    assert capfd.readouterr().err == ""


def test_the_refusal_of_one_rank_ends_the_others_and_no_rank_is_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "REFUSED_SECONDS", 0.5)
    end, seconds = launch_ranks(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nall_started()\n"
        "if rank == 1: refuse('no such device', 2)\ntime.sleep(60)",
        log_seconds=30.0,
        finished=lambda: True,  # the log of another launch
    )
    assert end == End((-9, 2), errors=((ExitCode.USAGE, "no such device"),))
    assert seconds < 15
    assert capfd.readouterr().err == ""


def test_ranks_have_begun_also_if_their_status_folder_was_removed() -> None:
    assert launch_ranks("begin()\nleave(0)")[0] == End((0, 0), begun=True, over=True)
    assert launch_ranks("import shutil; shutil.rmtree(status, ignore_errors=True); os._exit(3)")[0].begun


def test_ranks_their_workers_and_the_status_folder_end_with_a_killed_launcher(tmp_path: Path) -> None:
    code = PRELUDE + textwrap.dedent(
        f"""
        from timedrun.distributed import parent_death_signal
        parent_death_signal.end_with(int(os.environ["TIMEDRUN_LAUNCHED"]))
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        part = Path({str(tmp_path)!r}, f"rank_{{rank}}.part")
        part.write_text(f"{{os.getpid()}} {{worker.pid}}")
        part.rename(part.with_suffix(""))
        time.sleep(60)
        """
    )
    script = (
        "import sys\nfrom tests.timedrun.distributed.launched_ranks import launch_env\n"
        "from timedrun.distributed.launcher import Launcher\n"
        f"Launcher([sys.executable, '-c', {code!r}], launch_env(2)).run()"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, env=environment)
    try:
        until(lambda: all((tmp_path / f"rank_{rank}").exists() for rank in (0, 1)))
        numbers = " ".join((tmp_path / f"rank_{rank}").read_text() for rank in (0, 1)).split()
        processes = [psutil.Process(int(number)) for number in numbers]
        assert len(processes) == 4
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(map(alive, processes)))
    until(lambda: not list(tmp_path.glob("timedrun-*")))


def test_worker_processes_end_with_their_rank(tmp_path: Path) -> None:
    launch_ranks(
        f"""
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path({str(tmp_path / "worker")!r}).write_text(str(worker.pid))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        ranks=1,
    )
    worker = int((tmp_path / "worker").read_text())
    until(lambda: not psutil.pid_exists(worker) or not alive(psutil.Process(worker)))


def test_a_command_that_cannot_be_started_is_an_error_and_leaves_no_rank() -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        Launcher(["/nowhere/python"], launch_env(2)).run()
