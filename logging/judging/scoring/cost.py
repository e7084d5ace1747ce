"""Cost of a time to train: hours times the system's price per hour, as given or from a dated table of list prices."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from judging.ground.errors import TimedrunError
from judging.ground.result_files import read_json
from judging.scoring.recorded_run import recorded_run_of

LIST: Final = "list"
Price = float | Literal["list"]
"""US dollars per hour of the whole system, or `LIST`: the list price of the machines that its description names."""
TABLE: Final = Path(__file__).with_name("list_prices.toml")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost in US dollars of a time to train alone, without preparation, initialization, storage and failed runs.

    `usd` is None, with the `reason`, if there is no time or no price. `date` and `source` are those of a list price.
    """

    usd: float | None
    usd_per_hour: float | None = None
    offer: str = "given price"
    date: str | None = None
    source: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.usd is None or self.usd_per_hour is None:
            return f"none: {self.reason}"
        usd = f"{self.usd:,.2f}" if self.usd >= 1 else f"{self.usd:.2g}"
        return f"${usd} at {self.price}"

    @property
    def price(self) -> str:
        """The price as text, with the date of a list price."""
        kind = f"list price of {self.date}: {self.offer}" if self.date else self.offer
        return f"${self.usd_per_hour:,.2f} per hour ({kind})"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Machine for rent with its list price."""

    accelerator: str
    accelerators: int
    usd_per_hour: float
    offer: str
    date: str
    source: str


def cost(log: Path, minutes: float | None, price: Price) -> Cost:
    """Return the cost of `minutes` on the system of `log`.

    Args:
        price: of the whole system; `LIST` finds it by the system's description next to the log or in its package.
    """
    if minutes is None:
        return Cost(usd=None, reason="there is no score")
    try:
        system = read_json(recorded_run_of(log).system) if price == LIST else None
    except TimedrunError:
        system = None
    return cost_on(system, minutes, price)


def cost_on(system: object, minutes: float, price: Price) -> Cost:
    """Return the cost of `minutes` on the system with the description `system`, which only `LIST` needs."""
    if price != LIST:
        return Cost(usd=minutes / 60 * price, usd_per_hour=price)
    try:
        name, each, nodes = _accelerators(system)
    except ValueError:
        return Cost(usd=None, reason="no description says which accelerators the system has; give its --price per hour")
    for machine in machines():
        if each == machine.accelerators and re.search(machine.accelerator, name):
            count = f"{nodes} x " if nodes > 1 else ""
            usd_per_hour = nodes * machine.usd_per_hour
            return Cost(
                usd=minutes / 60 * usd_per_hour,
                usd_per_hour=usd_per_hour,
                offer=f"{count}{machine.offer}",
                date=machine.date,
                source=machine.source,
            )
    what = f"{each} x {name} a node" if each else "a system without accelerators"
    return Cost(usd=None, reason=f"no list price is known for {what}; give its --price per hour")


@functools.cache
def machines() -> tuple[Machine, ...]:
    """Return the machines of the table, in its order."""
    return tuple(Machine(**row) for row in tomllib.loads(TABLE.read_text())["machine"])


def _accelerators(system: Any) -> tuple[str, int, int]:
    """Return name and number per node of a system's accelerators, and its number of nodes; raise ValueError if its
    description does not say."""
    if not isinstance(system, dict):
        raise ValueError("not a description")
    name, each, nodes = (system.get(f) for f in ("accelerator_model_name", "accelerators_per_node", "number_of_nodes"))
    if not isinstance(name, str) or not isinstance(each, str | int | float) or not isinstance(nodes, str | int | float):
        raise ValueError("fields are missing")
    return name, int(float(each)), int(float(nodes))
