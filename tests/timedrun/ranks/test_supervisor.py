"""Ranks as processes, played by small programs: who died and how is told, signals arrive, nothing is left behind."""

import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from timedrun.errors import ExitCode, TimedrunError
from timedrun.ranks import oom_kills, supervisor
from timedrun.ranks.place import Place
from timedrun.ranks.supervisor import End, Supervisor

START = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
signs = Path(os.environ["TIMEDRUN_SIGNS"])
def wait(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped:
        time.sleep(0.02)
def leave(code):
    (signs / f"rank_{rank}.left").write_text("")
    os._exit(code)
def begin():
    (signs / f"rank_{rank}.waiting").unlink()
def refuse(words, code=1):
    (signs / f"rank_{rank}.error").write_text(json.dumps({"code": code, "words": words}))
    os._exit(code)
def at(step):
    (signs / f"rank_{rank}.json").write_text(json.dumps({"step": step, "seconds": 0.0}))
def all_started():
    (signs / f"started_{rank}").touch()
    while len(list(signs.glob("started_*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
stopped = []
"""
HANDLES = "signal.signal(signal.SIGTERM, lambda *_: stopped.append(1)); all_started()\n"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def place(ranks: int, first: int = 0, world: int | None = None) -> Place:
    return Place("none", first, world or ranks, 0, ranks, 1, 0, "127.0.0.1", 0)


def supervise(code: str, ranks: int = 2, **options: object) -> tuple[End, float]:
    """How ranks that run `code` ended, and how many seconds it took."""
    began = time.monotonic()
    command = [sys.executable, "-c", START + textwrap.dedent(code)]
    times = {"log_seconds": 2.0, "term_seconds": 0.5} | options
    end = Supervisor(command, times.pop("place", place(ranks)), **times).run()  # type: ignore[arg-type]
    return end, time.monotonic() - began


def said(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().err


def test_ranks_learn_their_place_and_an_orderly_end_loses_none(capfd: pytest.CaptureFixture[str]) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    end, _ = supervise(
        f"print('place', [os.environ[name] for name in {names}], int(os.environ['MASTER_PORT']) > 0)\nleave(3)",
        place=place(2, first=4, world=6),
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


def test_ranks_that_end_alike_with_an_error_are_not_named_since_the_log_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    end, _ = supervise("all_started()\nsys.exit(1)")
    assert (end.lost, end.exit_code) == ("", ExitCode.ERROR)
    assert "timedrun run:" not in said(capfd)


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
    monkeypatch.setattr(supervisor, "TEARDOWN_SECONDS", 0.5)
    end, _ = supervise(code.replace("sleep(3)", "sleep(60)"), ranks=3, log_seconds=0.5)
    assert (end.codes, end.exit_code) == ((-9, 0, -9), ExitCode.OK)


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


def test_ranks_that_are_all_suspended_are_lost() -> None:
    code = "all_started()\nat(3)\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)"
    end, seconds = supervise(code, suspended_seconds=0.5)
    assert end.codes == (-9, -9)
    assert end.lost == "rank 0 was suspended (SIGSTOP, or a debugger) and was killed, last seen at step 3"
    assert end.exit_code == ExitCode.RANK_LOST
    assert seconds < 20


def test_a_job_that_was_suspended_as_a_whole_and_goes_on_finds_no_rank_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock[0])
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


def test_nothing_that_a_rank_says_is_lost_in_a_crash_and_lines_stay_whole(capfd: pytest.CaptureFixture[str]) -> None:
    supervise(
        """
        for number in range(2000):
            print("line", number, "x" * 100)
        sys.stdout.write("the end")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        place=place(1, first=1, world=2),
    )
    lines = said(capfd).splitlines()
    assert [line for line in lines if "line" in line] == [f"rank 1: line {n} {'x' * 100}" for n in range(2000)]
    assert "rank 1: the end" in lines


def test_ranks_their_workers_and_the_folder_of_signs_go_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = START + textwrap.dedent(
        f"""
        from timedrun.ranks import parent_process
        parent_process.end_with(int(os.environ["TIMEDRUN_LAUNCHED"]))
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (Path({str(tmp_path)!r}) / f"rank_{{rank}}.part").write_text(f"{{os.getpid()}} {{worker.pid}}")
        (Path({str(tmp_path)!r}) / f"rank_{{rank}}.part").rename(Path({str(tmp_path)!r}) / f"rank_{{rank}}")
        time.sleep(60)
        """
    )
    script = (
        "import sys\nfrom timedrun.ranks.place import Place\nfrom timedrun.ranks.supervisor import Supervisor\n"
        f"import tempfile\ntempfile.tempdir = {str(tmp_path / 'signs')!r}\n"
        f"Supervisor([sys.executable, '-c', {code!r}], Place('none', 0, 2, 0, 2, 1, 0, '127.0.0.1', 0)).run()"
    )
    (tmp_path / "signs").mkdir()
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        until(lambda: all((tmp_path / f"rank_{rank}").exists() for rank in (0, 1)))
        told = " ".join((tmp_path / f"rank_{rank}").read_text() for rank in (0, 1))
        ranks = [psutil.Process(int(word)) for word in told.split()]
        assert len(ranks) == 4
        process.kill()
        process.wait()
        until(lambda: not any(alive(rank) for rank in ranks))
        until(lambda: not list((tmp_path / "signs").iterdir()))
    finally:
        process.kill()


def test_a_workers_process_ends_with_its_rank(tmp_path: Path) -> None:
    supervise(
        f"""
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (Path({str(tmp_path)!r}) / "worker").write_text(str(worker.pid))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        place=place(1),
    )
    worker = int((tmp_path / "worker").read_text())
    until(lambda: not psutil.pid_exists(worker) or not alive(psutil.Process(worker)))


def test_a_program_that_cannot_be_started_is_an_error_in_words_and_leaves_no_rank() -> None:
    with pytest.raises(TimedrunError, match="rank 0 could not be started"):
        Supervisor(["/nowhere/python"], place(2)).run()


def test_handlers_and_the_folder_of_signs_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    supervise("leave(0)", ranks=1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/job\n", {"job/memory.events": "low 0\noom 4\noom_kill 3\n"}, 3),
        ("0::/elsewhere\n", {"memory.events": "oom_kill 2\n"}, 2),
        ("9:name=systemd:/\n4:memory:/job\n", {"memory/job/memory.oom_control": "under_oom 0\noom_kill 1\n"}, 1),
        ("4:memory:/job\n", {"memory/job/memory.oom_control": "under_oom 0\n"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_oom_kills_are_read_from_either_version_of_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills.count(tmp_path / "cgroup", tmp_path) == expected


def test_a_rank_killed_for_memory_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([5, 6])
    monkeypatch.setattr(oom_kills, "count", lambda: next(counts))
    end, _ = supervise("os.kill(os.getpid(), signal.SIGKILL)", ranks=1)
    assert "out of memory (the kernel's OOM killer struck" in end.lost


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: object, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_node_whose_ranks_end_because_another_nodes_is_lost_says_which(capfd: pytest.CaptureFixture[str]) -> None:
    words = "rank 0 gave no sign of life for 15 s"
    code = f"""
        (signs / f"rank_{{rank}}.json").write_text(json.dumps({{"step": 8, "seconds": 0.0, "words": {words!r}}}))
        os._exit(4)
        """
    end, _ = supervise(code, place=place(2, first=2, world=4))
    assert (end.lost, end.exit_code) == (words, ExitCode.RANK_LOST)
    end, _ = supervise(code)  # rank 0 is here, and its log says it
    assert end.lost == "a rank was lost"


def test_ranks_that_refuse_are_heard_once_and_none_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    end, _ = supervise("all_started()\nrefuse('it reached its target')")
    assert end == End((1, 1), errors=((ExitCode.ERROR, "it reached its target"),))
    assert said(capfd) == ""


def test_a_refusal_of_one_rank_ends_the_others_that_wait_for_it_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "REFUSED_SECONDS", 0.5)
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
