"""Signals that ask a run to stop, and those that ask for its end at once."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from judging.ground.errors import ExitCode
from timedrun.distributed.stop_signals import ABORT, ABORTED, STOPPING, ShutdownRequest, asked_twice

Aborts = list[tuple[str, ExitCode]]


@pytest.mark.parametrize(("number", "ignored"), [*((number, False) for number in STOPPING), (signal.SIGHUP, True)])
def test_each_signal_asks_a_run_to_stop_but_sighup_if_nohup_ignores_it(number, ignored):
    before = signal.SIG_IGN if ignored else lambda number, frame: None
    original = signal.signal(number, before)
    stop = ShutdownRequest()
    try:
        stop.install(lambda reason, code: None, launched=False, speaks=False)
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
def test_a_closed_terminal_is_not_a_second_request(received, twice):
    assert asked_twice(received) is twice


@pytest.fixture
def stop() -> ShutdownRequest:
    return ShutdownRequest()


@pytest.fixture(params=[False])
def aborts(stop: ShutdownRequest, request: pytest.FixtureRequest) -> Iterator[Aborts]:
    received: Aborts = []
    stop.install(lambda *how: received.append(how), launched=request.param, speaks=True)
    yield received
    stop.uninstall()


@pytest.mark.parametrize(
    ("aborts", "numbers"),
    [(False, [signal.SIGINT, signal.SIGINT]), (True, [signal.SIGTERM, signal.SIGTERM, ABORT])],
    indirect=["aborts"],
    ids=["a second Ctrl-C", "a rank of the launcher on its word alone"],
)
def test_a_run_is_aborted_by(aborts, numbers):
    for number in numbers:
        assert not aborts
        signal.raise_signal(number)
    assert aborts == [(ABORTED, ExitCode.INTERRUPTED)]


@pytest.mark.parametrize(("seconds", "count"), [(0.01, 1), (0.2, 2)])
def test_a_signal_that_timeout_sends_to_the_process_and_its_group_is_one_request(seconds, count, aborts, monkeypatch):
    monkeypatch.setattr("timedrun.distributed.stop_signals.time.monotonic", iter([9.0, 9.0 + seconds]).__next__)
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    assert len(aborts) == count - 1


@pytest.mark.parametrize("when", ["after this evaluation", ""])
def test_the_first_signal_says_when_the_run_stops_unless_it_does_at_once(when, stop, aborts, capfd):
    stop.when = when
    signal.raise_signal(signal.SIGINT)
    said = "timedrun run: stops after this evaluation; press Ctrl-C again to abort now\n"
    assert capfd.readouterr().err == (said if when else "")
