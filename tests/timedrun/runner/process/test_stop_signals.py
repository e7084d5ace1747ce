"""Signals that ask a run to stop, and those that ask for its end at once."""

import signal

import pytest

from judging.ground.errors import ExitCode
from timedrun.runner.process.stop_signals import ABORT, ABORTED, STOPPING, ShutdownRequest


@pytest.mark.parametrize(("number", "ignored"), [*((number, False) for number in STOPPING), (signal.SIGHUP, True)])
def test_each_signal_asks_a_run_to_stop_but_sighup_if_nohup_ignores_it(number, ignored):
    before = signal.SIG_IGN if ignored else lambda number, frame: None
    original = signal.signal(number, before)
    stop = ShutdownRequest()
    stop.install(lambda reason, code: None, launched=False, speaks=False)
    assert stop.signal is None
    signal.raise_signal(number)
    stop.uninstall()
    assert signal.signal(number, original) is before
    assert stop.signal is (None if ignored else number)


@pytest.mark.parametrize(
    ("launched", "received", "codes"),
    [
        (False, [(signal.SIGINT, 0.0), (signal.SIGINT, 0.0)], [ExitCode.INTERRUPTED]),
        (False, [(signal.SIGINT, 0.0), (signal.SIGTERM, 0.0)], [ExitCode.TERMINATED]),
        (False, [(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.2)], [ExitCode.TERMINATED]),
        (False, [(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.01)], []),  # timeout(1) signals a process and its group
        (False, [(signal.SIGHUP, 0.0), (signal.SIGHUP, 1.0)], []),  # of a closed terminal
        (False, [(signal.SIGHUP, 0.0), (signal.SIGTERM, 1.0), (signal.SIGHUP, 2.0)], []),
        (True, [(signal.SIGTERM, 0.0), (signal.SIGTERM, 1.0)], []),  # a rank, on its wrapper's word alone
        (True, [(signal.SIGTERM, 0.0), (signal.SIGTERM, 1.0), (ABORT, 2.0)], [ExitCode.INTERRUPTED]),
    ],
)
def test_a_second_request_aborts_a_run(launched, received, codes, monkeypatch):
    aborts: list[tuple[str, ExitCode]] = []
    stop = ShutdownRequest()
    stop.install(lambda *how: aborts.append(how), launched=launched, speaks=True)
    seconds = iter([9.0 + at for _, at in received])
    monkeypatch.setattr("timedrun.runner.process.stop_signals.time.monotonic", seconds.__next__)
    for number, _ in received:
        assert not aborts
        signal.raise_signal(number)
    stop.uninstall()
    assert aborts == [(ABORTED, code) for code in codes]
