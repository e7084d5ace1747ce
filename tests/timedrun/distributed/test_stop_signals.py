"""Signals that ask a run to stop, and those that ask for its end at once."""

import os
import signal
import subprocess
import sys
import time

import pytest

from timedrun.distributed.stop_signals import STOPPING, ShutdownRequest, asked_twice


@pytest.mark.parametrize(("number", "ignored"), [*((number, False) for number in STOPPING), (signal.SIGHUP, True)])
def test_each_signal_asks_a_run_to_stop_but_sighup_if_nohup_ignores_it(number: signal.Signals, ignored: bool) -> None:
    before = signal.SIG_IGN if ignored else lambda number, frame: None
    original = signal.signal(number, before)
    stop = ShutdownRequest()
    try:
        stop.install()
        assert stop.signal is None
        os.kill(os.getpid(), number)
        time.sleep(0)  # Python runs the handler between two instructions
        stop.uninstall()
        assert signal.getsignal(number) is before
        assert stop.signal is (None if ignored else number)
    finally:
        signal.signal(number, original)


@pytest.mark.parametrize(
    ("received", "twice"),
    [
        ([signal.SIGTERM], False),
        ([signal.SIGTERM, signal.SIGTERM], True),
        ([signal.SIGINT, signal.SIGTERM], True),
        ([signal.SIGHUP, signal.SIGHUP], False),
        ([signal.SIGHUP, signal.SIGTERM, signal.SIGHUP], False),
    ],
)
def test_a_closed_terminal_is_not_a_second_request(received: list[signal.Signals], twice: bool) -> None:
    assert asked_twice(received) is twice


def test_a_second_ctrl_c_ends_the_process_at_once_with_a_message() -> None:
    code = (
        "import os, signal\nfrom timedrun.distributed.stop_signals import ShutdownRequest\n"
        "ShutdownRequest().install()\n"
        "for _ in 'ab': os.kill(os.getpid(), signal.SIGINT)\nprint('went on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert "ended at once by a second signal (SIGINT)" in done.stderr
