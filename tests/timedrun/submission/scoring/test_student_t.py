"""Student's t against scipy's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from timedrun.submission.scoring.student_t import quantile, tail


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("degrees", [0.3, 1, 1.5, 2, 3, 4, 5.7, 9, 19, 38, 100, 1e3, 1e5])
def test_quantiles_are_those_of_scipy(degrees: float, confidence: float) -> None:
    assert quantile(degrees, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)


@settings(max_examples=50)
@given(st.floats(0.0, 1e3), st.floats(0.1, 1e4))
def test_tails_are_those_of_scipy(t: float, degrees: float) -> None:
    assert tail(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize(("degrees", "confidence"), [(0, 0.95), (-1, 0.95), (float("nan"), 0.95), (3, 0), (3, 1)])
def test_invalid_parameters_are_refused(degrees: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="degrees > 0"):
        quantile(degrees, confidence)
