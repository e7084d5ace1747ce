"""Reference convergence points have the statistics of MLCommons' RCP_Checker, in all rounds and at all batch sizes."""

from itertools import pairwise

import numpy as np
import pytest
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker, submission_runs

from mlevents.rounds import MLPERF_RULESETS, ruleset
from mlevents.rounds.convergence_points import all_points, olympic_mean, point_at, pruned_points, rounds_with_points

PAIRS = [(name, benchmark) for name, rules in MLPERF_RULESETS.items() for benchmark in rules.benchmarks]


def theirs(checker, batch):
    """RCP_Checker.check_directory's choice of a record."""
    if (record := checker._find_rcp(batch, "pruned_rcps")) is not None:
        return record
    low = checker._find_top_min_rcp(batch, "pruned_rcps")
    high = checker._find_bottom_max_rcp(batch, "pruned_rcps")
    if low and high:
        return checker._create_interp_rcp(batch, low, high)[1]
    return checker._find_min_rcp("pruned_rcps") if high else None


@pytest.mark.parametrize(("name", "benchmark"), PAIRS)
def test_the_point_of_any_batch_size_is_the_checkers(name, benchmark):
    if benchmark not in submission_runs["training"]:
        assert benchmark in ("dlrm", "minigo")  # RCP_Checker raises KeyError for them
        return
    checker = RCP_Checker("training", name, benchmark, False)
    sizes = [point.batch_size for point in all_points(name, benchmark)]
    asked = [sizes[0] - 1, *sizes, *((low + high) // 2 for low, high in pairwise(sizes)), sizes[-1] + 1]
    for batch in asked:
        ours, official = point_at(ruleset(name), benchmark, batch), theirs(checker, batch)
        if official is None:
            assert ours is None and batch > pruned_points(name, benchmark)[-1].batch_size
            continue
        assert (ours.batch_size, ours.mean) == (official["BS"], official["RCP Mean"])
        assert ours.deviation == pytest.approx(official["RCP Stdev"], rel=1e-12)
        allowed = 46_080 if benchmark == "llama31_405b" else 0
        assert ours.minimum + allowed == pytest.approx(official["Min Epochs"], abs=1.1e-4)


@pytest.mark.parametrize("count", [3, 9, 10, 18, 27, 40, 120])
def test_olympic_means_have_the_digits_of_numpy(count):
    values = [round(value, 3) for value in np.random.default_rng(count).uniform(0.5, 2.0, count)]
    assert olympic_mean(values, 1) == np.mean(sorted(values)[1:-1])


def test_rounds_with_points_are_named():
    assert rounds_with_points("resnet") == ["2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0"]
    assert rounds_with_points("minigo") == [] and all_points("2.0.0", "no_benchmark") == ()
