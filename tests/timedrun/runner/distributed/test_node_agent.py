"""Ranks under the agent of a node: environment, output, signals, restarts, and no process or file left behind."""

import os
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from judging.ground.errors import ExitCode, TimedrunError
from tests import forked_python
from tests.timedrun.runner.distributed.launched_ranks import PRELUDE, alive, free_port, launch_ranks, until
from timedrun.runner.distributed import node_agent
from timedrun.runner.distributed.node_agent import NodeAgent
from timedrun.runner.process.launch_env import LaunchEnv
from timedrun.runner.process.status_files import End

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """After each test: no temporary file is left, and signal handlers and environment are those from before."""
    forked_python.import_modules()  # makes a temporary folder, the first time
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def state() -> object:
        environment = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return environment, [signal.getsignal(number) for number in SIGNALS]

    before = state()
    yield
    assert state() == before
    assert list((tmp_path / "temporary").iterdir()) == []


def test_ranks_have_their_environment_and_job_and_lines_with_their_rank(capfd):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OWN")
    code = f"""
        port, job = int(os.environ["MASTER_PORT"]) > 0, (status / "job.json").read_text()
        print([os.environ[name] for name in {names}], port, job, file=sys.stderr)
        leave(3)
        """
    end, _ = launch_ranks(code, variables={"OWN": "x"})
    assert end == End((3, 3))
    assert sorted(capfd.readouterr().err.splitlines()) == [
        "['0', '2', '0', '2', '127.0.0.1', 'x'] True the job",
        "rank 1: ['1', '2', '1', '2', '127.0.0.1', 'x'] True the job",
    ]


def test_a_killed_ranks_output_is_whole(capfd):
    launch_ranks("if rank: sys.stderr.write('a line\\n' * 9000 + 'the end'); sys.stderr.flush()\nall_started(); die()")
    assert capfd.readouterr().err.splitlines() == ["rank 1: a line"] * 9000 + ["rank 1: the end"]


def test_ranks_their_workers_and_the_status_folder_end_with_a_killed_wrapper(tmp_path):
    code = f"""{PRELUDE}
from timedrun.runner.process import parent_death_signal
parent_death_signal.end_with(int(os.environ["TIMEDRUN_LAUNCHED"]))
worker = subprocess.Popen({SLEEPER}, start_new_session=True)  # as forkserver's, which no signal of the rank's reaches
time.sleep(60)
"""
    script = (
        "import sys\nfrom tests.timedrun.runner.distributed.launched_ranks import TWO\n"
        "from timedrun.runner.distributed.node_agent import NodeAgent\n"
        f"NodeAgent([sys.executable, '-c', {code!r}], TWO, job='').run()"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    process = psutil.Popen([sys.executable, "-P", "-c", script], start_new_session=True, env=environment)
    try:
        until(lambda: len(process.children(recursive=True)) == 5, 40)  # two ranks with a worker each, and the guard
        processes = process.children(recursive=True)
    finally:
        process.kill()
        process.wait()
    assert until(lambda: not any(map(alive, processes)))
    until(lambda: not list((tmp_path / "temporary").iterdir()))


DIED = (ExitCode.RANK_LOST, "rank 1 died (last step 12)")
DIE = "refuse('rank 1 died (last step 12)', 4)"
BEGUN = "on_sigterm(stop); begin(); all_started(); "
TWICE = f"{BEGUN}rank or interrupt(); wait(); time.sleep(0.2); rank or interrupt(); time.sleep(60)"
ENDS: dict[str, tuple[str, End]] = {
    "a rank of another node is lost": (f"begin(); {DIE}", End(lost=DIED[1], begun=True, errors=(DIED,))),
    "a rank crashes after its work was complete": (
        f"{BEGUN}rank or leave(3); report('left', code=3); time.sleep(0.5); os.abort()",
        End((3, 3), lost="rank 1 was killed by SIGABRT", begun=True),
    ),
    "rank 0 digests the data after the others have left": (
        f"{BEGUN}rank or time.sleep(0.5); leave(3)",
        End((3, 3), begun=True),
    ),
    "all ranks fail, and the log has the reason": (f"{BEGUN}sys.exit(1)", End(begun=True)),
    "a rank refuses the run": (
        "all_started(); refuse('no GPU', 2) if rank == 1 else wait()",
        End(errors=((ExitCode.USAGE, "no GPU"),)),
    ),
    "a scheduler signals every process of the job": (
        f"{BEGUN}rank or (interrupt(), os.killpg(0, 15)); wait(); time.sleep(0.3); leave(75)",
        End((75, 75), signal=signal.SIGTERM, begun=True),
    ),
    "a signal comes before a rank can save": (
        f"on_sigterm(signal.SIG_DFL if rank else stop); all_started(); rank or interrupt(); wait(); {DIE}",
        End(lost=DIED[1], signal=signal.SIGTERM, errors=(DIED,)),
    ),
    "a second signal comes, one rank closes the log and the other hangs": (
        f"signal.signal(3, signal.SIG_IGN if rank else lambda *_: refuse('a second signal', 130)); {TWICE}",
        End((), "", signal.SIGTERM, True, True, ((ExitCode.INTERRUPTED, "a second signal"),)),
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_ended_the_ranks_is_told_and_none_goes_on(case, capfd, monkeypatch):
    monkeypatch.setattr(node_agent, "ABORT_SECONDS", 0.5)
    code, expected = ENDS[case]
    end, seconds = launch_ranks(code, restarts=1)  # which nothing asks for
    assert end == expected and capfd.readouterr().err == ""
    assert seconds < 15


def test_the_ports_of_one_node_are_out_of_reach_of_other_machines():
    seen = list[str]()

    def look(*_: object) -> None:
        sockets = psutil.Process().net_connections("tcp")
        seen.extend(opened.laddr.ip for opened in sockets if opened.status == psutil.CONN_LISTEN)

    before = signal.signal(signal.SIGUSR1, look)
    try:
        end, _ = launch_ranks("all_started(); rank or interrupt(signal.SIGUSR1); leave(0)")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (end, set(seen)) == (End((0, 0)), {"127.0.0.1"})


def test_a_node_that_waits_for_others_names_them_and_ends_with_a_signal(monkeypatch):
    monkeypatch.setattr(node_agent, "MEET_SECONDS", 0.3)
    env = LaunchEnv("node", 0, 4, 0, 2, "127.0.0.1", free_port())
    with pytest.raises(TimedrunError, match="node 0 waited 0 s for 1 of 2: node 1; check the output there"):
        NodeAgent(SLEEPER, env, job="").run()
    monkeypatch.setattr(node_agent, "MEET_SECONDS", 60.0)
    meet = node_agent.meet
    monkeypatch.setattr(node_agent, "meet", lambda *given: (os.kill(os.getpid(), signal.SIGTERM), meet(*given)))
    assert NodeAgent(SLEEPER, replace(env, port=free_port()), job="").run() == End(signal=signal.SIGTERM)


CHILD = """
import os, signal, sys, time
from pathlib import Path
from timedrun.runner.process import parent_death_signal
def stop(*_):
    Path("stopped").write_text(os.environ.get(parent_death_signal.VARIABLE, "not inherited"))
    os._exit(75)
signal.signal(signal.SIGTERM, stop)
parent_death_signal.obey_environment()
Path("runs").touch()
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
from timedrun.runner.process import parent_death_signal
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=parent_death_signal.environment())
time.sleep(60)
"""


@pytest.mark.parametrize("by_torchrun", [False, True])
def test_a_run_stops_as_by_sigterm_with_a_killed_race_and_no_rank_outlives_a_killed_torchrun(by_torchrun, tmp_path):
    script, environment = PARENT, dict(os.environ)
    if by_torchrun:
        script = PARENT.replace(", env=parent_death_signal.environment()", "")
        environment["TORCHELASTIC_RUN_ID"] = "a"
    parent = psutil.Popen([sys.executable, "-c", script, CHILD], cwd=tmp_path, env=environment)
    try:
        until((tmp_path / "runs").exists)
        (child,) = parent.children()
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not alive(child))
    stopped = [path.read_text() for path in tmp_path.glob("stopped")]
    assert stopped == ([] if by_torchrun else ["not inherited"])
