"""Steps of several configs in turns: paired ratios with an interval, failures by name."""

import math
from dataclasses import astuple, replace

import pytest

from image_classification.configs import ImageRunConfig
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_times import StepTimes, speed_up, step_times
from timedrun.benchmark import find


def test_the_speed_up_is_the_geometric_mean_of_pairs_with_students_interval() -> None:
    base = StepTimes((0.0, 1.0), ((2.0, 4.0), (8.0,)), 10)
    other = StepTimes((0.0, 1.0), ((1.0, 1.0), (1.0,)), 10)
    gain = speed_up(base, other)
    # Logarithms to base 2: 1, 2, 3; mean 2, standard deviation 1; Student's t with 2 degrees of freedom: 4.302653.
    margin = 4.302653 / math.sqrt(3)
    assert astuple(gain) == pytest.approx((4, 2 ** (2 - margin), 2 ** (2 + margin)), rel=1e-6)
    assert gain.verdict_against(1, "faster", "slower") == "no difference shown"
    assert speed_up(base, replace(base, chunks=((2.0, 4.0), (8.0,)))).value == 1
    with pytest.raises(ValueError, match="at least two chunks"):
        speed_up(replace(base, chunks=((1.0,),)), replace(base, chunks=((1.0,),)))


def test_seconds_per_step_are_integrated_medians_of_the_chunks() -> None:
    times = StepTimes((0.0, 1.0), ((1.0, 1.0, 9.0), (3.0, 3.0, 1.5)), 10)
    assert times.seconds == 2.0


def test_configs_are_measured_together_and_a_failure_leaves_the_others() -> None:
    benchmark = find("image_classification")
    smoke = benchmark.config("smoke", "synthetic")
    assert isinstance(smoke, ImageRunConfig)
    broken = replace(smoke, data=replace(smoke.data, source="cifar10"))  # without a data folder
    plan = StepPlan(positions=(0.0, 1.0), chunks=2, chunk=2, skip=1, evaluate=False)
    found, failed = step_times(benchmark.name, {"smoke": smoke, "broken": broken}, plan, threads=1)
    assert failed.keys() == {"broken"} and "data-folder" in failed["broken"]
    (times,) = found.values()
    assert [len(chunks) for chunks in times.chunks] == [2, 2] and times.seconds > 0
