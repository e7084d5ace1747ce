"""Quality of one side against another: runs that stop at the target are counted, others tested as scipy tests them."""

from dataclasses import replace
from pathlib import Path

import pytest

from judging.comparison.quality_test import compare_quality, p_worse
from mlevents.record import read
from mlevents.summary import RunSummary, summarize

RUN = Path(__file__).resolve().parents[3] / "results" / "any_script" / "a" / "result_0.txt"
pytestmark = pytest.mark.results


def runs(qualities: list[float]) -> list[RunSummary]:
    """Runs of one evaluation each."""
    run = summarize(read(RUN))
    ended = [replace(run.quality[-1], value=quality) for quality in qualities]
    return [
        replace(run, quality=(point,), final_quality=point.value, path=Path(f"result_{number}.txt"))
        for number, point in enumerate(ended)
    ]


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("margin", [0.0, 0.002])
def test_the_p_value_is_that_of_scipys_one_sided_t_test(margin, higher):
    stats = pytest.importorskip("scipy.stats")
    gains = [0.001, -0.002, 0.003, 0.0005, 0.0012]
    sign = 1 if higher else -1
    expected = stats.ttest_1samp([sign * gain + margin for gain in gains], 0, alternative="greater").pvalue
    assert p_worse(gains, margin, higher) == pytest.approx(expected, rel=1e-9)


def test_runs_of_one_length_are_no_worse_worse_or_neither():
    first, better, worse = runs([0.97, 0.975, 0.98]), runs([0.98, 0.986, 0.991]), runs([0.96, 0.964, 0.969])
    assert compare_quality(first, better, (3, 3)).no_worse is True
    assert compare_quality(first, worse, (3, 3)).no_worse is False
    assert compare_quality(first, worse, (3, 3), margin=0.05).no_worse is True
    assert compare_quality(first, runs([0.975, 0.97, 0.981]), (3, 3)).no_worse is None
    assert "leaving out runs" in compare_quality(first, better, (3, 4)).untested


def test_runs_that_stop_at_their_target_are_counted():
    run = summarize(read(RUN))
    again = [replace(run, path=Path(f"result_{number}.txt")) for number in (0, 1)]
    assert len(run.quality) > 1
    quality = compare_quality(again, again, (2, 2))
    assert quality.no_worse is True and quality.finding == "target reached by 2 of 2 and 2 of 2 runs"
    assert compare_quality(again, again[:1], (2, 2)).no_worse is False
    assert compare_quality(again, [], (2, 0)).no_worse is None
    assert compare_quality(again, again, (2, 2), at_target=False).p == 0  # of one length, reached by the last alone
