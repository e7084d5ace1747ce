"""The cost of a cold first stretch, by hand and with numbers that no run would log."""

import math

import pytest

from mlevents.cold_start import excess, share


def test_the_first_stretch_is_held_to_the_median_pace_of_the_later_ones():
    stretches = [(20.0, 50.0), (10.0, 10.0), (10.0, 30.0), (5.0, 10.0)]  # later: 1, 3 and 2 a unit
    assert excess(stretches) == 50.0 - 20 * 2.0
    assert share(stretches, 100.0) == pytest.approx(0.1)
    assert excess([(1.0, 3.0), (1.0, 2.0)]) == 1.0
    assert excess([(1.0, 3.0)]) is excess([]) is share([(1.0, 3.0)], 3.0) is None
    assert (excess([(1.0, 1.0), (1.0, 2.0)]), share([(1.0, 1.0), (1.0, 2.0)], 3.0)) == (-1.0, 0.0)


@pytest.mark.parametrize(
    "stretches, whole",
    [
        ([(0.0, 1.0), (1.0, 1.0)], 2.0),
        ([(1.0, 1.0), (0.0, 1.0)], 2.0),
        ([(1.0, 2.0), (1.0, 1.0)], 0.0),
        ([(1.0, math.inf), (1.0, 1.0)], 2.0),
        ([(1.0, math.inf), (1.0, math.inf)], 2.0),
    ],
)
def test_what_makes_no_sense_has_no_share(stretches, whole):
    assert share(stretches, whole) is None
