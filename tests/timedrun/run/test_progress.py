"""What a person sees of a run never decides what becomes of it."""

import io
import os

import pytest

from timedrun.run.progress import Progress


def test_a_closed_pipe_does_not_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        progress = Progress("toy", shown=True, stream=stream, every_seconds=0)
        progress.say("begins")
        assert os.read(reading, 100).endswith(b"begins\n")
        os.close(reading)
        progress.say("nobody reads this")
        progress.step("step 1", 4, 0.5)
        assert not progress.due
        with pytest.raises(BrokenPipeError):  # as it would without
            stream.flush()
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), writing)


def test_a_closed_stream_does_not_end_the_run() -> None:
    stream = io.StringIO()
    progress = Progress("toy", shown=True, stream=stream)
    stream.close()
    progress.say("nobody reads this")
    assert not progress.shown


def test_a_resumed_run_shows_its_whole_time_and_the_current_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("timedrun.run.progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress("toy", shown=True, stream=stream, every_seconds=0)
    progress.start(seconds_before=600.0, samples_before=5000)
    now[0] += 10
    progress.step("step 60", 6000, 0.5)
    progress.say("saved")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("  610.0 s  step 60  100 samples/s  loss 0.5000")
    assert second.endswith("  610.0 s  saved")
