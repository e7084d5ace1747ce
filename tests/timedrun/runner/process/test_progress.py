"""What a person sees of a run never decides what becomes of it."""

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from timedrun.evidence.preflight.dry_run import SimulatedClock
from timedrun.runner.process.progress import Progress


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch, clock: SimulatedClock) -> SimulatedClock:
    monkeypatch.setattr("timedrun.runner.process.progress.time.monotonic", clock)
    return clock


def test_a_closed_pipe_and_a_closed_stream_do_not_end_the_run():
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        progress = Progress("toy", shown=True, stream=stream)
        progress.say("begins")
        assert os.read(reading, 100).endswith(b"begins\n")
        os.close(reading)
        progress.say("nobody reads this")
        progress.step("step 1", 4, 0.5)
        stream.flush()  # the stream leads to the null device
    progress.say("nor this")
    assert stream.closed


def test_a_resumed_run_shows_its_whole_time_and_the_current_rate(now):
    stream = io.StringIO()
    progress = Progress("toy", shown=True, stream=stream)
    progress.start(seconds_before=600.0, samples_before=5000)
    now.advance(10)
    progress.step("step 60", 6000, 0.5)
    progress.say("saved")
    first, second = stream.getvalue().splitlines()
    assert first == "toy  loss 0.5000  100 samples/s  610.0 s  step 60"
    assert second.endswith("  610.0 s  saved")


@pytest.mark.parametrize(("columns", "last"), [(80, "samples/s"), (120, "epoch 12, step 345"), (40, "at most")])
def test_a_line_fits_into_one_row_and_the_next_takes_its_place(columns, last, now):
    screen, terminal = pty.openpty()
    with open(terminal, "w") as stream:
        progress = Progress("run 3 of 15 digits_baseline_2022", shown=True, stream=stream)
        progress.total_samples = 1000
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))  # resized after the start
        progress.start()
        now.advance(100)
        progress.step("epoch 12, step 345", 250, 0.5)
        progress.step("epoch 12, step 346", 500, 0.5)
        print("#", end="", file=stream, flush=True)
        written = b""
        while not written.endswith(b"#"):
            written += os.read(screen, 1000)
    os.close(screen)
    start, first, second = written.decode().split("\r\x1b[K")
    assert not start and "\n" not in first + second
    assert "run 3 of 15 digits_baseline_2022" in first or columns < 120
    assert len(first) <= columns - 1 and last in first
    assert first.startswith("run 3") and " 25%  at most" in first and " 50%  at most" in second


@pytest.mark.parametrize(
    ("seconds", "budget", "left"), [(100, 0, "5 min"), (10, 0, "30 s"), (100, 160, "60 s"), (7200, 0, "6.0 h")]
)
def test_the_time_left_is_that_of_the_schedule_at_the_pace_so_far_or_of_the_budget(seconds, budget, left, now):
    stream = io.StringIO()
    progress = Progress("toy", shown=True, stream=stream, budget_seconds=budget)
    progress.total_samples = 400
    now.advance(seconds)
    progress.step("step 1", 100, 0.5)
    assert f"toy   25%  at most {left} left  loss 0.5000  " in stream.getvalue()
