"""Speed-up ratios and their intervals, the pairs that a difference needs, and sets that are not comparable."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from judging.comparison.compare import compare_sets
from judging.comparison.speedup_ratio import (
    Difference,
    NotComparable,
    Ratio,
    compare,
    least_visible,
    pairs_needed,
    spread_of,
)
from judging.scoring.interval import Interval
from tests.judging.conftest import summaries

TIMES = st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=12)


def test_ratio_by_hand():
    found = compare([8.0, 2.0], [2.0, 2.0], paired=True)
    # logs of the ratios: ln 4 and 0; mean ln 2, standard error (ln 4) / 2; Student's t of 1 degree of freedom: 12.7062
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(math.exp(math.log(2) - 12.7062 * math.log(4) / 2), rel=1e-3)
    assert found.high == pytest.approx(math.exp(math.log(2) + 12.7062 * math.log(4) / 2), rel=1e-3)
    assert found.ratio_of_medians == pytest.approx(2.5)
    equal = compare([2.0, 2.0], [1.0, 1.0], paired=False)
    assert (equal.low, equal.high) == pytest.approx((2.0, 2.0))


def ratio(low: float | None, high: float | None, pairs: int = 0, value: float = 2.0) -> Ratio:
    """A ratio of 5 and 4 runs, or of interleaved pairs."""
    counts = {"runs_slow": pairs or 5, "runs_fast": pairs or 4, "paired": pairs > 0}
    return Ratio(value, low, high, ratio_of_medians=2.1, slow="a", fast="b", **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "verdict", "sentence"),
    [
        (ratio(1.5, 2.5), "faster", "b is faster: 2.0x as fast as a (95 % CI 1.5 to 2.5, 5 and 4 runs; "),
        (ratio(0.5, 0.9, value=0.7), "slower", "b is slower: 0.70x as fast as a (95 % CI 0.50 to 0.90, "),
        (ratio(0.9, 2.5, 5), "no difference shown", "No significant difference: b is 2.0x as fast as a (95 % CI 0.90 "),
        (ratio(0.01, 400.0, 2), "too few pairs (2 < 3)", "Too few pairs (2 < 3): b is 2.00x as "),
        (ratio(None, None), "too few runs (5 and 4; 2 of each are needed)", "Too few runs (5 and 4; 2 of each "),
    ],
)
def test_a_verdict_leads_and_too_few_runs_have_no_interval(found, verdict, sentence):
    assert found.verdict == verdict
    assert found.sentence.startswith(sentence) and "unverified" in found.sentence
    assert ("CI" in found.sentence) == ("[" in found.text()) == (not verdict.startswith("too few"))


def test_numbers_have_the_digits_that_their_spread_supports():
    assert ratio(3.2925, 11.4444, value=6.1385).text() == "6.1x [3.3, 11]"
    assert ratio(1.001, 1.006, value=1.0034).text() == "1.003x [1.001, 1.006]"
    assert ratio(1.003, 1.5, value=1.23).text() == "1.230x [1.003, 1.500]"  # no bound is rounded to 1
    assert Interval(10834.2, 0.5512, 12000).digits(least=3) == ["10834", "0.551", "12000"]
    assert Interval(0.0, 0.0, 1.4142).text(reach=(0.5, 2.0)) == "<0.5x [<0.5, 1.4]"
    assert Interval(1.3, 1.1, math.inf).text(reach=(0.5, 2.0)) == "1.3x [1.1, >2]"
    assert Interval(0.0081, 0.001, 0.0152).difference == "+0.0081 [+0.0010, +0.0152]"
    assert Interval(2.0).text() == "2.00x" and Interval(3.25, 3.25, 3.25).text() == "3.250x"
    assert Interval(-0.25).difference == "-0.2500" and Interval.of([0.01, 0.013], 3).bounds is None


@pytest.mark.parametrize("paired", [True, False])
def test_p_values_and_intervals_of_any_confidence_are_those_of_scipy(paired):
    slow, fast = [8.0, 9.5, 7.2, 8.8, 10.1], [6.9, 9.9, 6.0, 8.1, 8.7]
    logs = np.log(slow), np.log(fast)
    test = stats.ttest_rel(*logs) if paired else stats.ttest_ind(*logs, equal_var=False)
    for confidence in (0.95, 1 - 0.05 / 9):
        found = compare(slow, fast, paired=paired, confidence=confidence)
        assert (found.low, found.high) == pytest.approx(tuple(np.exp(test.confidence_interval(confidence))))
        assert found.p == pytest.approx(test.pvalue)
    assert compare(slow, slow, paired=True).p == 1.0 and compare([2.0, 4.0], [1.0, 2.0], paired=True).p == 0.0


@pytest.mark.parametrize("paired", [True, False])
def test_the_ratio_is_given_with_and_without_disturbed_runs(tmp_path, write_run, told, printed, paired):
    load = {"capacity_seconds": 20.0, "busy_seconds": 12.4, "own_seconds": 0.2}
    for name, minutes, disturbed in (("slow", 8.0, 0), ("fast", 2.0, 2)):
        for number in range(5):
            times = (4 if number == disturbed else 1) * (1 + number / 1000)
            start = 1.7e9 + number * 1e5 + (5e4 if name == "fast" else 0)
            noisy = load if number == disturbed else None
            write_run(tmp_path / name, number, minutes=minutes * times, start=start, machine_load=noisy)
    words = ["compare", tmp_path / "slow", tmp_path / "fast", *(["--paired"] if paired else [])]
    values = told(*words)
    text = "result_{}.txt: other processes used 61% of the machine's CPU time"
    assert values["disturbances"] == [f"slow/{text.format(0)}", f"fast/{text.format(2)}"]
    quiet = values["undisturbed"]
    assert (quiet["ratio"], quiet["low"], quiet["high"]) == pytest.approx((4.0, 4.0, 4.0), rel=0.01)
    assert values["low"] < 3.0
    assert (quiet["runs_slow"], quiet["runs_fast"]) == ((3, 3) if paired else (4, 4))
    lines = printed(*words).splitlines()
    said = next(line for line in lines if line.startswith("disturbed: 2 runs; without all of them"))
    assert "x [" in said and ", faster (" in said and ("3 interleaved pairs" if paired else "4 and 4 runs") in said


@pytest.mark.parametrize("bad", [[math.nan], [0.0], [-1.0], [math.inf]])
def test_invalid_times_are_refused(bad):
    with pytest.raises(NotComparable, match="second set"):
        compare([1.0], bad, paired=False)
    assert issubclass(NotComparable, ValueError)


def test_incomplete_pairs_copies_and_empty_sets_are_refused(tmp_path, write_set):
    slow = summaries(write_set(tmp_path / "slow", (10.0, 11.0)))
    fast = summaries(write_set(tmp_path / "fast", (12.0,)))
    with pytest.raises(NotComparable, match="2 and 1 runs cannot be paired"):
        compare_sets(slow, fast, paired=True)
    with pytest.raises(NotComparable, match="contains copies of a run"):
        compare_sets(slow, fast * 2, paired=False)
    with pytest.raises(NotComparable, match="a set has no run with a partner"):
        compare_sets([], fast, paired=False)
    missed = [replace(run, final_quality=0.5) for run in fast]
    with pytest.raises(NotComparable, match=r"fast: none of its 1 runs .* ended at 0.5, .* success is unbounded"):
        compare_sets(slow, missed, paired=False)
    both = [replace(run, final_quality=0.5 if number else 0.8) for number, run in enumerate(slow)]
    other = [
        replace(run, sha256=run.sha256[::-1], final_quality=0.8 if number else 0.5) for number, run in enumerate(slow)
    ]
    with pytest.raises(NotComparable, match=r"in no pair both, but in 1 and 1 runs apart; .* --no-paired"):
        compare_sets(both, other, paired=True)


def test_sides_of_one_race_are_compared_in_pairs_by_themselves(tmp_path, write_run, told):
    for number, minutes in enumerate([10.0, 20.0, 40.0, 80.0]):
        # The order within a pair turns round, as an honest race's does.
        starts = (2e9 + number * 1e4, 2e9 + number * 1e4 + 6e3)[:: -1 if number % 2 else 1]
        write_run(tmp_path / "slow", number, minutes=minutes, start=starts[0])
        if number != 2:
            write_run(tmp_path / "fast", number, minutes=minutes / 2, start=starts[1])
    words = ["compare", tmp_path / "slow", tmp_path / "fast"]
    assert not told(*words)["paired"]
    (tmp_path / "race.json").write_text(json.dumps({"runs_seconds": {"slow": [], "fast": []}}))
    race = told(*words)
    assert (race["paired"], race["runs_slow"], race["verdict"]) == (True, 3, "faster")
    assert "runs without a partner were left out: 1 of the first set" in str(race["notes"])
    assert race["portable_score"] == pytest.approx([0.5, 0.5, 0.5], rel=1e-6)
    apart = told(*words, "--no-paired")
    assert not apart["paired"] and apart["portable_score"] is None


def test_a_portable_score_is_the_inverse_of_the_paired_ratio_and_names_its_reference():
    found = replace(
        compare([10.0, 12.0, 11.0], [8.0, 9.0, 8.0], paired=True), slow="a", fast="b", slow_digest="ab" * 32
    )
    low, high = found.bounds or (0.0, 0.0)
    assert found.portable == Interval(1 / found.value, 1 / high, 1 / low)
    # By hand: exp(-0.27643 -+ 4.3027 * 0.02808), the mean of the logarithms of 1.25, 1.3333 and 1.375.
    text = "b takes 0.76 [0.67, 0.86] of the time of a (config abababababab) on the same machine"
    assert found.portable_text == text
    other = Difference(kind="hardware", what="processor", first="x", second="y")
    few = compare([10.0, 12.0], [8.0, 9.0], paired=True)
    for one in (few, replace(found, differences=(other,)), compare([10.0, 12.0, 11.0], [8.0, 9.0, 8.0], paired=False)):
        assert one.portable is None and one.portable_text == ""


@pytest.mark.parametrize("division", ["open", "closed"])
def test_sets_of_two_divisions_are_named_with_the_rule_that_forbids_their_comparison(write_run, tmp_path, division):
    sides = []
    for name, of in (("a", "open"), ("b", division)):
        for number in range(5):
            write_run(tmp_path / name, number, minutes=10.0 + number, submission_division=of)
        sides.append(summaries(tmp_path / name))
    ratio = compare_sets(*sides, paired=False)
    assert ratio.divisions == ("open", division)
    assert ("The first is of the open division, the second of the closed: " in ratio.sentence) is (division == "closed")
    assert ("both sets are of the open division" in ratio.notes) is (division == "open")


def test_a_comparison_without_an_interval_has_none_in_its_table(write_run, tmp_path, printed):
    for name in ("a", "b"):
        for number in range(2):
            write_run(tmp_path / name, number, minutes=10.0 + number, start=1.8e9 + 1e5 * number + 5e4 * (name == "b"))
    text = printed("compare", "--paired", tmp_path / "a", tmp_path / "b")
    assert "no confidence interval" in text and "samples/s" in text and "[" not in text.partition("no confidence")[2]


def power(ratio: float, spread: float, pairs: int) -> float:
    """Probability that the two-sided t test at 5 % shows `ratio`."""
    shift, critical = math.log(ratio) / spread * math.sqrt(pairs), stats.t.ppf(0.975, pairs - 1)
    return float(stats.nct.sf(critical, pairs - 1, shift))


@pytest.mark.parametrize(("ratio", "spread"), [(1.02, 0.03), (1.02, 0.01), (1.2, 0.1), (0.9, 0.05)])
def test_as_many_pairs_show_the_difference_with_a_probability_of_four_fifths(ratio, spread):
    pairs = pairs_needed(ratio, spread)
    assert pairs is not None and math.log(least_visible(spread, pairs)) <= abs(math.log(ratio)) + 1e-5
    assert power(max(ratio, 1 / ratio), spread, pairs) >= 0.8
    assert pairs == 3 or power(max(ratio, 1 / ratio), spread, pairs - 1) < 0.8


def test_a_difference_that_hardly_is_one_needs_more_pairs_than_anybody_runs():
    assert pairs_needed(1.0, 0.03) is None and pairs_needed(1.0001, 0.03) is None
    assert power(least_visible(0.03, 8), 0.03, 8) == pytest.approx(0.8, abs=1e-3)


def test_the_spread_is_that_of_the_pairs():
    logs = [0.1, 0.3, 0.2, 0.6]
    found = compare([math.exp(log) for log in logs], [1.0] * 4, paired=True, confidence=0.99)
    assert spread_of(found) == pytest.approx(0.216, abs=1e-3)
    assert spread_of(compare([1.0, 2.0], [1.0, 1.0], paired=True)) is None
