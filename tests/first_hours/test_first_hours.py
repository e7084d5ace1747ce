"""The first hour of each kind of user, as a script that only uses what the README names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked_python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SCRIPTS = sorted(Path(__file__).parent.glob("*.sh"))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.results] if "digits_demo" in path.read_text() else [])
        for path in SCRIPTS
    ],
)
def test_the_first_hour_has_no_stumble(script, tmp_path):
    (commands := tmp_path / "commands").mkdir()
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    left_out = ("TIMEDRUN_", "RANK", "WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    (folder := tmp_path / "hour").mkdir()
    with forked_python.forking_command(commands):
        done = subprocess.run(
            ["bash", script, folder],
            env=environment | {"PATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
    assert done.returncode == 0, done.stdout[-6000:]
