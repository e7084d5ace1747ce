"""Cost of a time to train: hours times the system's price per hour, as given or from a dated table of list prices."""

import functools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import cattrs

from judging.ground.errors import UsageError
from judging.ground.result_files import read_object
from judging.scoring.recorded_run import recorded_run_of

TABLE: Final = Path(__file__).with_name("list_prices.toml")


@dataclass(frozen=True)
class PriceList:
    """Table of list prices, in which a system's description finds its machine: the first one that matches."""

    file: Path = TABLE
    offer: str = ""  # only offers that contain this text, in any case, count


Price = float | PriceList  # US dollars per hour of the whole system, or where its list price is


def prices_of(given: Sequence[float | str | None]) -> list[Price]:
    """Return the prices of the options `--price`, "list" and files of a user's own among them, each perhaps with the
    text of its offers, as list:OFFER.

    Raises UsageError if a file is no price list, or has no such offer."""
    prices: list[Price] = []
    for price in given:
        if isinstance(price, str):
            name, _, offer = price.partition(":")
            prices.append(PriceList(TABLE if name == "list" else Path(name), offer))
        elif price is not None:
            prices.append(price)
    for listed in prices:
        if isinstance(listed, PriceList) and not _offers(listed):
            raise UsageError(f"{listed.file}: no offer contains {listed.offer!r}.")
    return prices


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost in US dollars of a time to train alone, without preparation, initialization, storage and failed runs.

    `usd` is None, with the `reason`, if there is no time or no price. `date` and `source` are those of a list price."""

    usd: float | None
    usd_per_hour: float | None = None
    offer: str = "given price"
    date: str | None = None
    source: str | None = None
    others: str = ""  # number and range of the list's other prices for such a system
    reason: str | None = None

    def __str__(self) -> str:
        if self.usd is None or self.usd_per_hour is None:
            return f"none: {self.reason}"
        return f"{dollars(self.usd)} at {self.price}"

    @property
    def price(self) -> str:
        """The price as text, with the date of a list price."""
        kind = f"list price of {self.date}: {self.offer}{self.others}" if self.date else self.offer
        return f"${self.usd_per_hour:,.2f} per hour ({kind})"


@dataclass(frozen=True)
class _System:
    """System by its description; numbers are of one node."""

    accelerator: str
    accelerators: int
    processor: str
    cores: int
    nodes: int

    def __str__(self) -> str:
        if self.accelerators:
            return f"{self.accelerators} x {self.accelerator} a node"
        cores = f"{self.cores or '?'} cores a node"
        return f"a system without accelerators: {self.processor or 'unknown processor'}, {cores}"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Machine for rent with its list price: one with accelerators, or one with a processor alone."""

    accelerator: str = ""  # regular expression of the accelerator's name in a system description
    accelerators: int = 0
    each: bool = False  # true if the price is that of one accelerator, for up to `accelerators` of them
    processor: str = ""  # regular expression of the processor's name, of a machine without accelerators
    cores: int = 0
    usd_per_hour: float
    offer: str
    date: str
    source: str

    def hourly(self, system: _System) -> float | None:
        """Return the price of `system`, None if it is no such machine."""
        if not self.accelerators:
            same = not system.accelerators and self.cores == system.cores
            return self.usd_per_hour * system.nodes if same and re.search(self.processor, system.processor) else None
        least = 1 if self.each else self.accelerators
        same = least <= system.accelerators <= self.accelerators
        if not same or not re.search(self.accelerator, system.accelerator):
            return None
        return self.usd_per_hour * system.nodes * (system.accelerators if self.each else 1)


def dollars(usd: float) -> str:
    """Return US dollars as text."""
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.2g}"


def cost(log: Path, minutes: float | None, price: Price) -> Cost:
    """Return the cost of `minutes` on the system of `log`. `price`: of the whole system; a list finds it by the
    system's description next to the log or in its package."""
    if minutes is None:
        return Cost(usd=None, reason="there is no score")
    system = read_object(recorded_run_of(log).system) if isinstance(price, PriceList) else {}
    return cost_on(system, minutes, price)


def cost_on(description: Mapping[str, Any], minutes: float, price: Price) -> Cost:
    """Return the cost of `minutes` on the system with that description, which only a price list needs."""
    if not isinstance(price, PriceList):
        return Cost(usd=minutes / 60 * price, usd_per_hour=price)
    try:
        system = _system(description)
    except ValueError:
        return Cost(usd=None, reason="no description says which accelerators the system has; give its --price per hour")
    known = [(hourly, machine) for machine in _offers(price) if (hourly := machine.hourly(system)) is not None]
    if not known:
        return Cost(usd=None, reason=f"no list price is known for {system}; give its --price per hour")
    (hourly, machine), *others = known
    lowest, highest = (f"${end(other for other, _ in known):,.2f}" for end in (min, max))
    return Cost(
        usd=minutes / 60 * hourly,
        usd_per_hour=hourly,
        offer=f"{system.nodes} x {machine.offer}" if system.nodes > 1 else machine.offer,
        date=machine.date,
        source=machine.source,
        others=f"; of {len(known)} offers from {lowest} to {highest}" if others else "",
    )


def _offers(price: PriceList) -> list[Machine]:
    return [machine for machine in machines(price.file) if price.offer.lower() in machine.offer.lower()]


@functools.cache
def machines(file: Path = TABLE) -> tuple[Machine, ...]:
    """Return the machines of a price list, in its order. Raises UsageError, with the place, if it is none."""
    try:
        rows = tomllib.loads(file.read_text())["machine"]
        if not isinstance(rows, list) or not rows:
            raise ValueError("machine is not a list of tables")
    except KeyError:
        raise UsageError(f"{file}: a price list has tables [[machine]]; this file has none.") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read as a price list: {error}.") from None
    return tuple(_machine(row, f"{file}, machine {number}") for number, row in enumerate(rows, 1))


def _machine(row: object, place: str) -> Machine:
    try:
        machine = cattrs.Converter(forbid_extra_keys=True).structure(row, Machine)
        re.compile(machine.accelerator + machine.processor)
        date.fromisoformat(machine.date)
    except (cattrs.BaseValidationError, TypeError) as error:
        texts = cattrs.transform_error(error) if isinstance(error, cattrs.BaseValidationError) else [str(error)]
        raise UsageError(f"{place}: {'; '.join(texts)}.") from None
    except (re.error, ValueError) as error:
        raise UsageError(f"{place} ({machine.offer}): {error}.") from None
    names = (machine.accelerator, machine.accelerators), (machine.processor, machine.cores)
    if not 0 < machine.usd_per_hour < math.inf or sum(bool(name) and number > 0 for name, number in names) != 1:
        kinds = "accelerator and accelerators, or processor and cores"
        raise UsageError(f"{place} ({machine.offer}): needs a positive usd_per_hour, and {kinds}.")
    return machine


def _system(system: Mapping[str, Any]) -> _System:
    """Return what a description says; raise ValueError if it does not say which accelerators the system has."""
    name, each, nodes = (system.get(f) for f in ("accelerator_model_name", "accelerators_per_node", "number_of_nodes"))
    if not isinstance(name, str) or not isinstance(each, str | int | float) or not isinstance(nodes, str | int | float):
        raise ValueError("fields are missing")
    try:
        cores = int(system["host_processors_per_node"]) * int(system["host_processor_core_count"])
    except (KeyError, TypeError, ValueError):
        cores = 0
    return _System(name, int(float(each)), str(system.get("host_processor_model_name", "")), cores, int(float(nodes)))
