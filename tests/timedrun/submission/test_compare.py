"""Speed-up ratios and their intervals, and sets that are not comparable."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from mlevents.record import read, result_files
from mlevents.summary import RunSummary, summarize
from timedrun.cli import main
from timedrun.submission.compare import compare_sets
from timedrun.submission.speedup_ratio import NotComparable, Ratio, compare

WriteRun = Callable[..., Path]
TIMES = st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=12)


def test_ratio_by_hand() -> None:
    found = compare([8.0, 2.0], [2.0, 2.0], paired=True)
    # logs of the ratios: ln 4 and 0; mean ln 2, standard error (ln 4) / 2; Student's t of 1 degree of freedom: 12.7062
    assert found.ratio == pytest.approx(2.0)
    assert found.low == pytest.approx(math.exp(math.log(2) - 12.7062 * math.log(4) / 2), rel=1e-3)
    assert found.high == pytest.approx(math.exp(math.log(2) + 12.7062 * math.log(4) / 2), rel=1e-3)
    assert found.ratio_of_medians == pytest.approx(2.5)
    equal = compare([2.0, 2.0], [1.0, 1.0], paired=False)
    assert (equal.low, equal.high) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_covers_the_truth_as_often_as_it_says(paired: bool) -> None:
    random = np.random.default_rng(7)
    true, hits, trials = 3.0, 0, 200
    for _ in range(trials):
        machine = random.normal(0, 0.3, 5) if paired else np.zeros(5)  # what both runs of a pair have in common
        slow = true * np.exp(machine + random.normal(0, 0.05, 5))
        fast = np.exp(machine + random.normal(0, 0.15, 5))
        found = compare(list(slow), list(fast), paired=paired)
        assert found.low is not None and found.high is not None
        hits += found.low <= true <= found.high
    assert 0.90 <= hits / trials <= 0.99


def test_sentences_say_what_was_found() -> None:
    def sentence(low: float | None, high: float | None) -> str:
        return Ratio(
            ratio=2.0, low=low, high=high, ratio_of_medians=2.1, runs_slow=5, runs_fast=4, paired=False
        ).sentence

    assert "faster" in sentence(1.5, 2.5) and "95 % interval 1.500 to 2.500 (5 and 4 runs" in sentence(1.5, 2.5)
    assert "slower" in sentence(0.5, 0.9)
    assert "no difference" in sentence(0.9, 2.5)
    assert "no interval" in sentence(None, None)
    assert all("unverified" in sentence(*bounds) for bounds in ((1.5, 2.5), (0.5, 0.9), (0.9, 2.5), (None, None)))


@pytest.mark.parametrize("paired", [True, False])
def test_the_ratio_is_given_with_and_without_disturbed_runs(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str], paired: bool
) -> None:
    load = {"capacity_seconds": 20.0, "busy_seconds": 12.4, "own_seconds": 0.2}
    for name, minutes, disturbed in (("slow", 8.0, 0), ("fast", 2.0, 2)):
        for number in range(5):
            times = (4 if number == disturbed else 1) * (1 + number / 1000)
            start = 1.7e9 + number * 1e5 + (5e4 if name == "fast" else 0)
            noisy = load if number == disturbed else None
            write_run(tmp_path / name, number, minutes=minutes * times, start=start, machine_load=noisy)
    option = ["--paired"] if paired else []
    assert main(["compare", str(tmp_path / "slow"), str(tmp_path / "fast"), *option, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = "result_{}.txt: other processes used 61% of the machine's CPU time"
    assert found["disturbances"] == [f"slow/{text.format(0)}", f"fast/{text.format(2)}"]
    quiet = found["undisturbed"]
    assert (quiet["ratio"], quiet["low"], quiet["high"]) == pytest.approx((4.0, 4.0, 4.0), rel=0.01)
    assert found["low"] < 3.0
    assert (quiet["runs_slow"], quiet["runs_fast"]) == ((3, 3) if paired else (4, 4))
    assert main(["compare", str(tmp_path / "slow"), str(tmp_path / "fast"), *option]) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Without the disturbed runs"))
    assert f"ratio {quiet['ratio']:.3f} [" in said and ("3 pairs" if paired else "4 and 4 runs") in said


@pytest.mark.parametrize("bad", [[math.nan], [0.0], [-1.0], [math.inf]])
def test_invalid_times_are_refused(bad: list[float]) -> None:
    with pytest.raises(NotComparable, match="second set"):
        compare([1.0], bad, paired=False)


def test_incomplete_pairs_are_refused(tmp_path: Path, write_run: WriteRun) -> None:
    for folder, number in (("slow", 0), ("slow", 1), ("fast", 2)):
        write_run(tmp_path / folder, number, minutes=10 + number)
    with pytest.raises(NotComparable, match="2 and 1 runs cannot be pairs"):
        compare_sets(_runs(tmp_path / "slow"), _runs(tmp_path / "fast"), paired=True)
    assert issubclass(NotComparable, ValueError)


def _runs(folder: Path) -> list[RunSummary]:
    return [summarize(read(path)) for path in result_files(folder)]


def test_published_sets_differ_as_published(published: Path) -> None:
    for benchmark, claimed in (("resnet", 4.6), ("bert", 2.7)):
        sets = [_runs(published / "results" / f"8xA100_80GB-{which}" / benchmark) for which in ("baseline", "methods")]
        found = compare_sets(sets[0], sets[1], paired=False)
        assert found.low is not None and found.high is not None
        assert found.low < claimed < found.high and found.low > 2
    with pytest.raises(NotComparable, match="not interleaved"):
        compare_sets(sets[0], sets[1], paired=True)


def test_interleaved_sets_are_compared_in_pairs(tmp_path: Path, write_run: WriteRun) -> None:
    for number, minutes in enumerate([10.0, 12.0, 14.0]):
        # The order within a pair turns round, as an honest race's does.
        starts = (2e9 + number * 1e4, 2e9 + number * 1e4 + 2e3)[:: -1 if number % 2 else 1]
        write_run(tmp_path / "slow", number, minutes=minutes, start=starts[0])
        write_run(tmp_path / "fast", number, minutes=minutes / 4, start=starts[1])
    found = compare_sets(_runs(tmp_path / "slow"), _runs(tmp_path / "fast"), paired=True)
    assert found.paired and (found.runs_slow, found.runs_fast) == (3, 3)
    assert found.ratio == pytest.approx(4.0, rel=1e-3) and found.low == pytest.approx(4.0, rel=1e-2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"status": "aborted"}, "did not reach its target"),
        ({"qualities": (0.5, 0.7)}, "ended at 0.7, but its target is 0.759"),
        ({"dataset": "digits", "quality_target": 0.759}, r"dataset \(imagenet in .* and digits"),
        ({"quality_target": 0.76}, "quality target"),
        ({"benchmark": "bert"}, r"benchmark \(resnet in .* and bert"),
    ],
)
def test_unequal_work_is_refused(tmp_path: Path, write_run: WriteRun, change: dict[str, object], match: str) -> None:
    for number in range(2):
        write_run(tmp_path / "slow", number, minutes=10 + number)
        write_run(tmp_path / "fast", number, minutes=7 + number, **(change if number else {}))
    with pytest.raises(NotComparable, match=match) as caught:
        compare_sets(_runs(tmp_path / "slow"), _runs(tmp_path / "fast"), paired=False)
    assert "fast/result_1.txt" in str(caught.value)


def test_copies_do_not_count_as_runs(tmp_path: Path, write_run: WriteRun) -> None:
    for folder in ("slow", "fast"):
        write_run(tmp_path / folder, 0)
    copied = _runs(tmp_path / "fast") * 2
    with pytest.raises(NotComparable, match="contains copies of a run"):
        compare_sets(_runs(tmp_path / "slow"), copied, paired=False)
    with pytest.raises(NotComparable, match="no run"):
        compare_sets([], copied, paired=False)
