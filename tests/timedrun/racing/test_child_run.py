"""Runs in child processes: exit code, output and signals."""

import os
import signal

import pytest

from timedrun.racing.child_run import run_child

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_a_signal_ends_the_run_and_is_reported(name):
    # The child signals its parent, as Ctrl-C does, and ends only when it gets the signal itself.
    number = signal.Signals[f"SIG{name}"]
    handler = signal.getsignal(number)
    script = f"trap 'echo stopped >&2; exit 75' {name}; kill -{name} $PPID; while :; do sleep 0.05; done"
    assert run_child(["sh", "-c", script], keep_output=True) == (75, "stopped", number)
    assert signal.getsignal(number) is handler


def test_the_last_lines_are_returned_and_the_process_group_is_its_own(capsys):
    script = "cut -d' ' -f5 /proc/self/stat >&2; for n in $(seq 20); do echo line $n >&2; done; exit 3"
    code, output, interrupted = run_child(["sh", "-c", script], keep_output=True)
    assert (code, interrupted) == (3, 0)
    assert output.startswith("line 9 line 10") and output.endswith("line 20")
    shown = capsys.readouterr().err.splitlines()
    assert int(shown[0]) != os.getpgid(0) and len(shown) == 21
