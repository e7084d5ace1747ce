"""Signals that ask a run to stop, and those that ask for its end at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from timedrun.distributed.stop_signals import STOPPING, ShutdownRequest, asked_twice


@contextmanager
def installed() -> Iterator[ShutdownRequest]:
    stop = ShutdownRequest()
    stop.install()
    try:
        yield stop
    finally:
        stop.uninstall()


def arrive(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0)  # Python runs the handler between two instructions


@pytest.mark.parametrize("number", STOPPING)
def test_each_of_sigterm_sigint_and_sighup_asks_a_run_to_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with installed() as stop:
        assert stop.signal is None
        arrive(number)
        assert stop.signal is number
    assert signal.getsignal(number) is before


def test_sighup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with installed() as stop:
            arrive(signal.SIGHUP)
            assert stop.signal is None
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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
