"""Cost of a time to train: hours times the price per hour of the system."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost in US dollars of a time to train alone, without preparation, initialization, storage and failed runs."""

    usd: float | None  # None if there is no time
    usd_per_hour: float

    def __str__(self) -> str:
        return (
            "none: there is no score" if self.usd is None else f"{dollars(self.usd)} at {per_hour(self.usd_per_hour)}"
        )


def dollars(usd: float) -> str:
    """Return US dollars as text."""
    if usd >= 1 or usd <= 0:
        return f"${usd:,.2f}"
    return f"${usd:.{1 - math.floor(math.log10(usd))}f}".rstrip("0").rstrip(".")


def per_hour(price: float | None) -> str:
    """Return a price in US dollars per hour as text; "" if there is none."""
    return "" if price is None else f"${price:,.2f} per hour"


def cost(minutes: float | None, price: float) -> Cost:
    """Return the cost of `minutes` on a system that costs `price` US dollars per hour."""
    return Cost(usd=None if minutes is None else minutes / 60 * price, usd_per_hour=price)
