"""Student's t against scipy's."""

from __future__ import annotations

import pytest
from scipy import stats

from mlevents.student_t import quantile


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("degrees", [0.3, 1, 1.5, 2, 3, 4, 5.7, 9, 19, 38, 100, 1e3, 1e5])
def test_quantiles_are_those_of_scipy(degrees: float, confidence: float) -> None:
    assert quantile(degrees, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)
