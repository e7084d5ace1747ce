"""Processes tied to their parent: its end reaches them through the kernel, also if it came before they asked."""

import subprocess
import sys

import pytest

from tests.timedrun.distributed.launched_ranks import until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]
CHILD = """
import os, signal, sys, time
from pathlib import Path
from timedrun.distributed import parent_death_signal
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
from timedrun.distributed import parent_death_signal
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=parent_death_signal.environment())
time.sleep(60)
"""


def test_a_run_stops_as_by_sigterm_when_the_race_that_started_it_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], cwd=tmp_path)
    try:
        until((tmp_path / "runs").exists)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: (tmp_path / "stopped").exists() and (tmp_path / "stopped").read_text() == "not inherited")


def test_a_process_whose_parent_has_already_ended_ends_at_once():
    end_with = "import os; from timedrun.distributed.parent_death_signal import end_with; end_with(os.getppid() + 1)"
    done = subprocess.run([sys.executable, "-c", f"{end_with}; print('went on')"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (137, "")
    assert "has ended or did not start this process, so it ends too" in done.stderr
    assert "unset TIMEDRUN_LAUNCHED" in done.stderr
