"""The test that runs of one length reach a target, and the sign test, against scipy's."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from judging.comparison.quality_test import p_worse
from judging.comparison.speedup_ratio import compare
from judging.scoring.target_test import (
    LEVEL,
    POWER,
    NotTestable,
    power,
    runs_needed,
    sign_p,
    target_test,
    target_test_of,
    unseen,
)
from mlevents.record import read
from mlevents.rounds import RULESETS
from mlevents.summary import RunSummary, summarize

RESNET = RULESETS["2.0.0"].benchmarks["resnet"]
QUALITIES = (0.7604, 0.7611, 0.7598, 0.7607, 0.7615, 0.7602, 0.759)


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("target", [0.7585, 0.759, 0.7605, 0.762])
def test_p_values_are_those_of_scipy(target, higher):
    test = target_test(QUALITIES, target, higher)
    side = "greater" if higher else "less"
    assert test.p_t == pytest.approx(stats.ttest_1samp(QUALITIES, target, alternative=side).pvalue, rel=1e-9)
    reached = sum(one >= target if higher else one <= target for one in QUALITIES)  # the last one is exactly 0.759
    assert test.p_sign == pytest.approx(stats.binomtest(reached, 7, 0.5, alternative="greater").pvalue, rel=1e-12)
    assert (test.runs, test.reached, test.passed) == (7, reached, test.p_t < LEVEL)


def test_a_published_speedrun_record_has_its_published_p_value():
    # Validation losses of 40 runs of modded-nanogpt's record of 4 December 2024 (value embeddings), from its README.
    printed = (
        "3.2759 3.2781 3.2791 3.2771 3.2838 3.2749 3.2793 3.2790 3.2794 3.2744 3.2751 3.2845 3.2736 3.2783 "
        "3.2793 3.2779 3.2756 3.2810 3.2803 3.2766 3.2851 3.2750 3.2778 3.2723 3.2842 3.2735 3.2750 3.2796 "
        "3.2782 3.2758 3.2763 3.2751 3.2791 3.2804 3.2725 3.2898 3.2718 3.2764 3.2710 3.2745 "
    )
    test = target_test([float(word) for word in printed.split()], 3.28, higher_is_better=False)
    assert (f"{test.p_t:.4f}", f"{test.mean:.4f}", f"{test.deviation:.4f}") == ("0.0003", "3.2777", "0.0040")
    assert test.passed and test.runs == 40


def scipys_power(effect: float, runs: int) -> float:
    return float(stats.nct.sf(stats.t.ppf(1 - LEVEL, runs - 1), runs - 1, effect * runs**0.5))


@pytest.mark.parametrize(("effect", "runs"), [(0.5, 2), (2.0, 3), (1.0, 7), (0.3, 20), (0.1, 100), (0.05, 3000)])
def test_the_power_is_that_of_scipys_noncentral_t(effect, runs):
    assert power(effect, runs) == pytest.approx(scipys_power(effect, runs), abs=1e-5)


@pytest.mark.parametrize("effect", [3.0, 1.0, 0.5, 0.1])
def test_the_runs_needed_are_the_least_with_that_power(effect):
    needed = runs_needed(effect)
    assert needed is not None and scipys_power(effect, needed) >= POWER > scipys_power(effect, needed - 1)


def test_no_number_of_runs_shows_a_mean_that_misses_the_target():
    assert target_test(QUALITIES, 0.77, True).runs_needed is None and runs_needed(0.0) is None
    assert runs_needed(1e-3) is None  # more than any set has


@pytest.mark.parametrize(("values", "why"), [([0.76], "are 1 run;"), ([0.76] * 5, "are 5 runs of one quality")])
def test_runs_without_a_spread_are_refused(values, why):
    with pytest.raises(NotTestable, match=why):
        target_test(values, 0.75, True)


def logged(folder: Path, write_run, **changed: object) -> list[RunSummary]:
    """Write runs of one evaluation each, the last of them `changed`."""
    last = len(QUALITIES) - 1
    paths = [
        write_run(folder, number, **{"qualities": [one]} | (changed if number == last else {}))
        for number, one in enumerate(QUALITIES)
    ]
    return [summarize(read(path)) for path in paths]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"qualities": (0.3, 0.761)}, "result_6.txt was evaluated several times and stopped at its target"),
        ({"qualities": (0.3, 0.7), "status": "aborted"}, "differ in length .result_5.txt after 1 epoch, result_6.txt"),
        ({"qualities": (), "status": "aborted"}, "result_6.txt has no quality at its end"),
        ({"seed": 1}, "two of its runs have seed 1"),
    ],
)
def test_runs_whose_last_quality_was_selected_are_refused(changed, why, tmp_path, write_run):
    with pytest.raises(NotTestable, match=why):
        target_test_of(logged(tmp_path, write_run, **changed), RESNET, 0.7595)


def test_the_command_prints_the_test_of_runs_at_the_target_and_exits_by_it(tmp_path, write_run, told, printed):
    runs = logged(tmp_path, write_run, status="aborted")
    assert target_test_of(runs, RESNET, 0.7595) == target_test(QUALITIES, 0.7595, True)
    shown = printed("score", tmp_path, "--target-test", "0.7592")
    assert "is shown to reach 0.7592: t test p = 0.0046 (level 0.01), sign test p = 0.062 (6 of 7 runs" in shown
    assert "; 8 runs pass with probability 0.8" in shown
    (result,) = told("score", tmp_path, "--target-test", "0.761", code=1)
    assert result["target_test"]["runs_needed"] is None and result["steps_runs"] == [20_018] * 7
    write_run(tmp_path / "stopped", 0)
    shown = printed("score", tmp_path / "stopped", "--target-test", "0.7595", code=1)
    assert "no test: result_0.txt was evaluated several times" in shown


@given(st.integers(1, 40), st.data())
def test_the_sign_test_is_the_binomial_test(trials, data):
    successes = data.draw(st.integers(0, trials))
    assert sign_p(successes, trials) == pytest.approx(stats.binomtest(successes, trials, alternative="greater").pvalue)


def test_five_runs_without_a_failure_do_not_exclude_one_in_ten_and_the_report_says_so():
    """The t test finds pairs with such a loss no worse in most races."""
    draw = np.random.default_rng(1)
    losses = draw.normal(0.0, 0.002, (500, 5)) - np.where(draw.random((500, 5)) < 0.1, 0.1, 0.0)
    assert np.mean([p_worse(pairs, 0.01, True) < 0.05 for pairs in losses]) > 0.5
    assert unseen(5) == "5 runs need not show what happens in up to 45% of runs"
    assert stats.binomtest(0, 5).proportion_ci(0.90, "exact").high == pytest.approx(0.45, abs=0.005)


def test_pairs_that_tell_by_students_t_may_be_too_few_without_its_assumption():
    ratio = compare([1.2] * 4 + [1.21], [1.0] * 5, paired=True)
    assert ratio.verdict == "faster" and ratio.p_sign == pytest.approx(2 / 32)
    assert "sign test p = 0.062" in ratio.sentence
    assert compare([1.2, 1.3], [1.0, 1.1, 1.0], paired=False).p_sign is None
