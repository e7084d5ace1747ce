"""Student's t against scipy's."""

import pytest
from scipy import stats

from mlevents.student_t import mean_margin, quantile


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("degrees", [0.3, 1, 1.5, 2, 3, 5.7, 19, 100, 1e3, 1e5])
def test_quantiles_and_margins_of_means_are_those_of_scipy(degrees, confidence):
    assert quantile(degrees, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)
    values = [3.2761, 3.2790, 3.2784, 3.2769]
    interval = stats.ttest_1samp(values, 0).confidence_interval(confidence)
    assert mean_margin(values, confidence) == pytest.approx((interval.high - interval.low) / 2, rel=1e-9)
