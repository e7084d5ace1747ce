"""Student's t against scipy's."""

import pytest
from scipy import stats

from mlevents.student_t import mean_margin, quantile


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("degrees", [0.3, 1, 1.5, 2, 3, 4, 5.7, 9, 19, 38, 100, 1e3, 1e5])
def test_quantiles_are_those_of_scipy(degrees: float, confidence: float) -> None:
    assert quantile(degrees, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = [3.2761, 3.2790, 3.2784, 3.2769]
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert mean_margin(values, 0.9) == pytest.approx((interval.high - interval.low) / 2, rel=1e-9)
