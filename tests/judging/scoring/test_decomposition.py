"""A ratio of times is the product of samples, samples per second of training, and evaluation with start-up."""

from dataclasses import replace
from statistics import fmean, geometric_mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judging.comparison.compare import compare_sets
from judging.comparison.speedup_ratio import compare, decompose
from judging.ground import stdio
from judging.scoring.decomposition import Decomposition, RunParts, decomposition, run_parts, time_parts
from mlevents.rounds import RULESETS
from tests.judging.conftest import summaries

RESNET = RULESETS["2.0.0"].benchmarks["resnet"]
SHARES = st.floats(0.05, 1.0)


def run(minutes: float, samples: float, share: float = 1.0) -> RunParts:
    return RunParts(
        minutes=minutes, training_minutes=minutes * share, amounts={"samples": samples}, evaluation_marked=True
    )


RUNS = st.lists(st.builds(run, st.floats(1e-3, 1e4), st.floats(1, 1e12), SHARES), min_size=2, max_size=6)


@settings(max_examples=25)
@given(RUNS, RUNS)
def test_the_product_of_the_factors_is_the_ratio_for_both_means(slow, fast):
    geometric = decompose(slow, fast, paired=False)
    assert geometric.ratio == pytest.approx(
        compare([one.minutes for one in slow], [one.minutes for one in fast], paired=False).value
    )
    arithmetic = decomposition(time_parts(slow, "samples", fmean), time_parts(fast, "samples", fmean))
    assert arithmetic.ratio == pytest.approx(fmean(a.minutes for a in slow) / fmean(b.minutes for b in fast))
    for found in (geometric, arithmetic):
        product = found.samples.value * found.samples_per_second.value * found.evaluation_and_startup.value
        assert product == pytest.approx(found.ratio, rel=1e-12)


def factors(found: Decomposition | None) -> tuple[float, ...]:
    return found.samples.value, found.samples_per_second.value, found.evaluation_and_startup.value


@pytest.mark.parametrize(
    ("fake", "expected"),
    [
        ([run(10, 2e6), run(12, 2.4e6), run(11, 2.2e6)], (0.5, 2, 1)),  # twice the samples at twice the speed
        ([run(20, 1e6), run(24, 1.2e6), run(22, 1.1e6)], (1, 0.5, 1)),  # only sleeps
        ([run(8, 1e6, 1.0), run(9.6, 1.2e6, 1.0), run(8.8, 1.1e6, 1.0)], (1, 1, 1.25)),  # only skips evaluation
        ([run(5, 0.5e6), run(6, 0.6e6), run(5.5, 0.55e6)], (2, 1, 1)),  # fewer samples
    ],
)
def test_each_way_to_be_faster_has_its_factor(fake, expected):
    share = 0.8 if expected[2] != 1 else 1.0
    found = decompose([run(10, 1e6, share), run(12, 1.2e6, share), run(11, 1.1e6, share)], fake, paired=True)
    assert factors(found) == pytest.approx(expected)
    assert (found.samples.low, found.samples.high) == pytest.approx((expected[0],) * 2)


def test_the_parts_of_a_log_by_hand(tmp_path, write_run):
    (summary,) = summaries(write_run(tmp_path, 0, minutes=10.0))  # 3 epochs of 1,281,167 images, a tenth is evaluation
    assert summary.startup_minutes == 0
    parts = run_parts(replace(summary, startup_minutes=1.0), RESNET)
    assert parts.training_minutes == pytest.approx(8.0, rel=1e-4)
    assert parts.amounts == {"samples": 3 * 1_281_167, "epochs": 3}
    set_of_one = time_parts([parts], "samples", geometric_mean)
    assert set_of_one.samples_per_second == pytest.approx(3 * 1_281_167 / 480, rel=1e-4)
    unlikely = run_parts(replace(summary, train_samples=4571.0), RESNET)  # no count of images that the rules allow
    assert unlikely.amounts == {"epochs": 3}
    both = decompose([parts], [unlikely], paired=False)
    assert both.first.unit == "epochs" and both.samples.value == pytest.approx(1)
    assert run_parts(replace(summary, converged_at={}), RESNET) is None
    steps = run_parts(replace(summary, converged_at={"step_num": 10}), RESNET)
    assert steps.amounts == {"samples": 640, "steps": 10}
    assert decompose([unlikely], [steps], paired=False) is None


def test_published_speed_ups_are_fewer_epochs_or_faster_steps(published_sample):
    folders = [published_sample[name] / "results" for name in ("v2.0", "v2.1")]
    slow, fast = ([summaries(folder / f"8xA100_80GB-{side}") for folder in folders] for side in ("baseline", "methods"))
    resnet, bert = (compare_sets(*sides, paired=False) for sides in zip(slow, fast, strict=True))
    assert resnet.decomposition.samples.value == pytest.approx(84 / 27)
    assert factors(resnet.decomposition)[1:] == pytest.approx((1.50, 0.986), abs=0.03)
    assert factors(bert.decomposition)[1:] == pytest.approx((2.72, 1.023), abs=0.03)
    assert bert.decomposition.per_sample == pytest.approx(2.72 * 1.023, abs=0.03)
    assert any("first epoch's excess" in note for note in resnet.notes)


def test_score_and_compare_show_the_parts(tmp_path, write_run, told, printed, monkeypatch):
    for number in range(5):
        start = 1.7e9 + number * 1e5
        qualities = (0.4, 0.5, 0.6, 0.761)
        write_run(tmp_path / "slow", number, minutes=90.0 + number, qualities=qualities, start=start, config_digest="a")
        for folder, digest in (("fast", "b"), ("same", "a")):
            write_run(tmp_path / folder, number, minutes=30.0, qualities=qualities[2:], config_digest=digest)
    (score,) = told("score", tmp_path / "slow")
    parts = score["parts"]
    assert parts["samples"] / parts["samples_per_second"] / parts["training_share"] / 60 == pytest.approx(
        score["score_minutes"]
    )
    monkeypatch.setattr(stdio, "terminal_columns", lambda stream: 80)
    same_config = printed("compare", tmp_path / "slow", tmp_path / "same")
    assert "Caveat" not in same_config and "= samples" in same_config
    lines = printed("compare", tmp_path / "slow", tmp_path / "fast").splitlines()
    assert max(map(len, lines)) <= 80
    caveat = next(at for at, line in enumerate(lines) if line.startswith("Caveat: slow was measured with one training"))
    table = next(at for at, line in enumerate(lines) if "first" in line and "second" in line)
    assert caveat < table and next(line for line in lines if line.startswith("= samples")).endswith("2.000x")
