"""Median window of more runs than a submission has."""

from pathlib import Path

import pytest

from judging.pages.score_table import table
from judging.scoring.score import score
from tests.judging.conftest import WriteRun

MINUTES = [3.0, 30.0, 31.0, 32.0, 33.0, 34.0, 90.0]  # in the order of their starts


def written(folder: Path, write_run: WriteRun, **change: object) -> Path:
    """Runs whose files' numbers go against the order of their starts."""
    for order, minutes in enumerate(MINUTES):
        number = len(MINUTES) - 1 - order
        write_run(folder, number, minutes=minutes, start=1.8e9 + order * 1e5, **change)
    return folder


def test_the_median_window_is_scored_and_named(tmp_path: Path, write_run: WriteRun) -> None:
    (times,) = score([written(tmp_path, write_run)])
    # Windows by start: (3 30 31 32 33), (30 .. 34), (31 .. 90): 31, 32 and 33 minutes.
    assert times.score_minutes == pytest.approx(32.0) and times.windows == 3
    assert times.window == [f"result_{number}.txt" for number in (5, 4, 3, 2, 1)]
    assert len(times.runs) == 7 and times.mean == pytest.approx(32.0), "what stands behind a score is of its runs"
    assert (times.fastest, times.slowest) == (["result_5.txt"], ["result_1.txt"])
    assert "the median of 3 consecutive windows" in table([times], detailed=True)


def test_demonstrations_use_all_their_runs_and_runs_without_starts_have_no_windows(
    tmp_path: Path, write_run: WriteRun
) -> None:
    (times,) = score([written(tmp_path, write_run, dataset="digits", quality_target=0.5)])
    assert times.window is None and times.score_minutes == pytest.approx(32.0)
    (written(tmp_path / "sets", write_run) / "result_0.txt").write_bytes(b"")
    (result,) = score([tmp_path / "sets"])
    assert result.score_minutes is None and "need a run_start in each log" in (result.reason or "")


def test_failed_runs_may_sink_the_median_window(tmp_path: Path, write_run: WriteRun) -> None:
    folder = written(tmp_path, write_run)
    for number in (3, 4):
        (folder / f"result_{number}.txt").unlink()
        write_run(folder, number, minutes=40 + number, start=1.8e9 + (6 - number) * 1e5, status="aborted")
    (one,) = score([folder])
    assert one.score_minutes is None and one.windows == 3
    assert one.reason == (
        "2 of the median window's 5 runs did not reach the target, but only one may be dropped as the slowest"
    )
