"""Figures of a row of `timedrun bench step`, from times and operations that are given."""

from dataclasses import astuple, replace

import pytest

from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_benchmark import StepRow, measure_steps, rate_ratio
from timedrun.analysis.step_times import StepTimes
from timedrun.benchmark import find
from timedrun.config import RunConfig

PLAN = StepPlan(positions=(0.5,), chunks=2, chunk=2, skip=2, evaluate=False)
SECONDS = ((1.0, 2.0, 3.0, 4.0, 5.0), (3.0, 4.0, 5.0, 6.0, 7.0))


def row(config: RunConfig, operations: float, peak: float | None, tokens: float | None = 100.0) -> StepRow:
    times = StepTimes((0.0, 1.0), ((3.0,), (5.0,)), 10, seconds_of_steps=SECONDS, operations=(operations, operations))
    return StepRow("label", config, times, None, tokens, peak)


def test_rates_and_shares_of_the_peak_are_those_of_the_median_step() -> None:
    config = find("language_model").config("baseline")
    measured = row(config, 32e12, 40e12)
    assert measured.quartiles == (3.0, 4.0, 5.0)
    assert measured.samples_per_second == config.global_batch / 4 == 4
    assert measured.tokens_per_second == 400
    values = measured.as_values(row(config, 64e12, 40e12))
    assert values["mfu"] == pytest.approx(32 / 4 / 40)
    assert values["mfu_with_the_operations_of_the_first"] == pytest.approx(64 / 4 / 40)
    unknown = row(config, 32e12, None, None)
    assert unknown.tokens_per_second is None and unknown.as_values(unknown)["mfu"] is None


def test_a_step_of_twice_the_batch_in_twice_the_time_has_the_same_rate() -> None:
    config = find("language_model").config("baseline")
    base = StepTimes((0.5,), ((1.0, 2.0, 3.0),), 10)
    doubled = StepTimes((0.5,), ((2.0, 4.0, 6.0),), 10)
    twice = replace(config, global_batch=2 * config.global_batch)
    assert astuple(rate_ratio(config, base, twice, doubled)) == pytest.approx((1, 1, 1))
    assert rate_ratio(config, base, config, doubled).value == pytest.approx(0.5)


def test_padding_is_no_token_but_takes_operations() -> None:
    benchmark = find("language_model")
    named = [("padded", benchmark.config("baseline")), ("unpadded", benchmark.config("methods"))]
    (padded, unpadded), failed = measure_steps(benchmark, named, plan=PLAN, threads=1, counted=2)
    assert not failed
    assert padded.tokens_per_sample == unpadded.tokens_per_sample
    assert 5 < padded.tokens_per_sample < 128  # type: ignore[operator]
    assert unpadded.operations < 0.6 * padded.operations
    assert unpadded.speed_up is not None and padded.speed_up is None and padded.peak is None
    assert padded.times.peak_bytes > 2**26
