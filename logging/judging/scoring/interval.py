"""Estimates with confidence intervals: verdict, text with the digits that the spread supports, and JSON."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final, Self

from mlevents.student_t import mean_margin

MOST_DIGITS: Final = 4


@dataclass(frozen=True)
class Interval:
    """Estimate with the bounds of its confidence interval; None if there are too few values for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], least: int = 2) -> Self:
        """Return the mean of `values` with its 95 % interval (Student's t), without one for fewer than `least`."""
        mean = fmean(values)
        if len(values) < least:
            return cls(mean)
        reach = mean_margin(values)
        return cls(mean, mean - reach, mean + reach)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval, or None if the values are too few for a meaningful one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def mapped(self, function: Callable[[float], float]) -> "Interval":
        """Return the interval of a rising or a falling function of the estimate."""
        return Interval(function(self.value), *sorted(map(function, self.bounds or ())))

    @property
    def width(self) -> float:
        """Upper less lower bound; infinite without bounds."""
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def widened(self, below: float, above: float | None = None) -> "Interval":
        """Return the interval, if there is one, with the lower bound `below` lower and the upper one `above` higher, by
        default as much."""
        if self.low is None or self.high is None:
            return self
        return Interval(self.value, self.low - below, self.high + (below if above is None else above))

    def verdict_against(self, equal: float, above: str, below: str) -> str:
        """Return `above` or `below` if the interval is on that side of `equal`, else "no difference shown"."""
        low, high = self.bounds or (equal, equal)
        return above if low > equal else below if high < equal else "no difference shown"

    def digits(self, least: int = 2, reach: tuple[float, float] = (0.0, math.inf)) -> list[str]:
        """Format an estimate that is not negative and its bounds with the significant digits that the spread supports.
        `least`: fewest significant digits; one more without an interval. A bound that is not 1 is not rounded to 1.
        `reach`: values that can be measured; others are shown as "<0.5" and ">2.0"."""

        def text(value: float, significant: int) -> str:
            if not reach[0] <= value <= reach[1]:
                return f"<{reach[0]:.2g}" if value < reach[0] else f">{reach[1]:.2g}"
            return f"{value:.{max(0, significant - 1 - math.floor(math.log10(value)))}f}" if value else "0"

        if self.bounds is None:
            return [text(self.value, least + 1)]
        low, high = (min(max(bound, reach[0]), reach[1]) for bound in self.bounds)
        spread = math.log(high / low) / 2 if low > 0 else float(high > 0)
        significant = MOST_DIGITS if spread <= 0 else min(MOST_DIGITS, max(least, 1 - math.floor(math.log10(spread))))
        while significant < MOST_DIGITS and any(
            end != 1 and text(end, significant) == text(1.0, significant) for end in (low, high)
        ):
            significant += 1
        return [text(value, significant) for value in (self.value, *self.bounds)]

    def text(self, unit: str = "x", *, least: int = 2, reach: tuple[float, float] = (0.0, math.inf)) -> str:
        """Format a ratio and its interval unless it is a point, as "1.3x [0.72, 2.2]"."""
        return bracketed(self.digits(least, reach)[: 1 if self.low == self.high else 3], unit)

    @property
    def difference(self) -> str:
        """The estimate of a difference with its interval, as "+0.0080 [+0.0010, +0.0150]"."""
        return bracketed([f"{value:+.4f}" for value in (self.value, *(self.bounds or ()))])


def bracketed(texts: Sequence[str], unit: str = "") -> str:
    """Join an estimate with its bounds, if there are any."""
    return f"{texts[0]}{unit}" + (f" [{texts[1]}, {texts[2]}]" if len(texts) > 1 else "")


def as_values(estimates: Any, name: str = "ratio") -> dict[str, Any]:
    """Return a dataclass as JSON values, in which the value of each `Interval` is called `name`."""
    return asdict(estimates, dict_factory=lambda items: {name if key == "value" else key: item for key, item in items})
