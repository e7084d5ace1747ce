"""Forecasts of the check of reference convergence agree with simulations by MLCommons' checker, and with theory."""

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

from judging.checking.forecast import forecast, runs_to_tell
from mlevents.rounds import ruleset
from mlevents.rounds.convergence_points import point_at

SIMULATED = 1500


def written(folder: Path, write_run, epochs: tuple[int, ...], **logged: object) -> Path:
    """Runs that reach the target at these epochs."""
    for number, last in enumerate(epochs):
        qualities = [0.01 * epoch for epoch in range(1, last)] + [0.76]
        write_run(folder, number, qualities=qualities, **({"global_batch_size": 3264} | logged))
    return folder


def test_the_probabilities_are_those_of_simulated_sets_in_the_official_checker(tmp_path, write_run, told):
    epochs = (33, 34, 35, 35, 36, 34)
    forecasted = told("score", "--forecast", written(tmp_path / "runs", write_run, epochs), "--ruleset", "2.0")
    mean, deviation = np.mean(epochs), np.std(epochs, ddof=1)
    assert (forecasted["mean"], forecasted["deviation"]) == (pytest.approx(mean), pytest.approx(deviation))
    checker = RCP_Checker("training", "2.0.0", "resnet", False)
    record = checker._find_rcp(3264, "pruned_rcps")
    drawn = np.random.default_rng(5).normal(mean, deviation, (SIMULATED, 5))
    verdicts = [checker._eval_submission_record(record, list(epochs), str(tmp_path)) for epochs in drawn]
    shares = {
        "fails": np.mean([not passed for passed, _ in verdicts]),
        "scaled": np.mean([passed and factor > 1 for passed, factor in verdicts]),
        "unscaled": np.mean([passed and factor == 1 for passed, factor in verdicts]),
    }
    for name, share in shares.items():
        assert 0.02 < share < 0.9  # all three occur
        assert abs(share - forecasted[name]) < 4 * math.sqrt(share * (1 - share) / SIMULATED)
    factors = [factor for passed, factor in verdicts if passed and factor > 1]
    error = 4 * np.std(factors) / math.sqrt(len(factors))
    assert forecasted["mean_factor"] == pytest.approx(np.mean(factors), abs=error)


@pytest.mark.parametrize("batch_size", [1536, 1800])
def test_of_three_runs_the_probability_is_that_of_a_median(batch_size):
    one = forecast("gpt3", batch_size, ruleset("4.1.0"))
    below = scipy.stats.norm(one.mean, one.deviation).cdf(one.reference.minimum)
    assert one.runs == 3 and one.fails == pytest.approx(3 * below**2 - 2 * below**3, abs=0.005)
    assert one.fails + one.scaled + one.unscaled == pytest.approx(1)


@pytest.mark.parametrize("effect", [0.2, 0.5, 1.0, 2.0])
def test_the_number_of_runs_has_the_power_of_the_noncentral_t_distribution(effect):
    def power(runs):
        t = scipy.stats.t.ppf(0.95, runs - 1)
        return float(scipy.stats.nct.sf(t, runs - 1, effect * math.sqrt(runs)))

    exact = next(runs for runs in range(2, 1000) if power(runs) >= 0.95)
    assert runs_to_tell(-3 * effect, 3.0) == exact


def test_the_reference_itself_is_as_often_above_its_mean_as_below_and_no_number_of_runs_tells_it():
    point = point_at(ruleset("4.0.0"), "resnet", 4096)
    one = forecast("resnet", 4096)
    assert one.ruleset == "4.0.0" and point is not None  # the newest round with points
    assert (one.reference, one.mean, one.deviation) == (point, point.mean, point.deviation)
    assert one.unscaled == pytest.approx(0.5, abs=0.005) and one.runs_to_tell_mean is None
    assert runs_to_tell(0.0, 1.0) is None and runs_to_tell(0.0, 0.0) is None and runs_to_tell(1.0, 0.0) == 2


def test_text_fits_100_columns_and_names_differing_settings(tmp_path, write_run, printed):
    folder = written(tmp_path, write_run, (33, 34, 34), lars_opt_base_learning_rate=2.5, model_bn_span=32)
    write_run(tmp_path, 3, status="aborted", global_batch_size=3264)
    text = printed("score", "--forecast", folder, "--ruleset", "v2.0", "--batch-size", "5000")
    assert max(map(len, text.splitlines())) <= 100
    assert "A set of 5 such runs" in text and "opt_base_learning_rate 2.5 (10.5 and " in text
    assert "1 of 4 runs did not converge" in text and "converge equally at 5000" in text.replace("\n    ", " ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("chess --batch-size 8", "no round has reference convergence points of 'chess'"),
        ("resnet", "needs --batch-size"),
        ("resnet --batch-size 64 --ruleset 5.1", "use --ruleset 2.0.0 or 2.1.0 or 3.0.0 or 3.1.0 or 4.0.0"),
        ("resnet --batch-size 99999", "is above all reference convergence points"),
        ("no/such/folder", "does not exist"),
    ],
)
def test_refusals_say_what_there_is(words, why, refused):
    assert why in refused("score", "--forecast", *words.split())


def test_runs_that_cannot_be_forecast_are_refused(tmp_path, write_run, refused):
    write_run(written(tmp_path / "mixed", write_run, (34, 34)), 2, global_batch_size=64)
    written(tmp_path / "single", write_run, (34,))
    write_run(tmp_path / "aborted", 0, status="aborted")
    written(tmp_path / "digits", write_run, (34, 35), dataset="digits", quality_target=0.5)
    (tmp_path / "empty.txt").touch()
    for name, why in {
        "mixed": "the runs have global batch sizes [64, 3264]",
        "single": "1 of the 1 runs converged",
        "aborted": "0 of the 1 runs converged",
        "digits": "used data other than resnet's",
        "empty.txt": "no readable :::MLLOG record",
    }.items():
        assert why in refused("score", "--forecast", tmp_path / name)
