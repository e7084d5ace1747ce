"""Energy of a run from its power files, computed as MLCommons' summarizer does."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from judging.scoring.olympic import milliseconds
from mlevents.event import Event, is_number
from mlevents.record import read
from mlevents.summary import RunSummary

MIN_READINGS: Final = 60  # power_measurement.adoc, "Measure max(a run, 60 power samples)"


class PowerError(ValueError):
    """Error raised for power files without a valid measurement; the message names the file and what it lacks."""


KINDS: Final = {"system": "system", "gpu": "GPUs", "cpu": "processors"}
"""Measured parts: by power files the whole system, by counters in a log its GPUs and processors, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class RunEnergy:
    """Energy of one run over all its nodes and interconnects, with notes on broken power rules."""

    joules: float
    nodes: int
    switches: int
    notes: tuple[str, ...]


def set_energies(
    summaries: Sequence[RunSummary], times: Sequence[float | None], notes: list[str]
) -> list[float | None]:
    """Return the joules of every run that has a time (minutes), in the order of `summaries`; empty if none is known.

    Missing files and broken power rules are added to `notes`."""
    measured: list[RunEnergy | None] = []
    for run, minutes in zip(summaries, times, strict=True):
        if minutes is None or run.started_ms is None:
            measured.append(None)
            continue
        try:
            measured.append(run_energy(run.path, started_ms=run.started_ms, minutes=minutes))
        except PowerError as error:
            notes.append(f"the energy was not computed: {error}")
            return []
    known = [energy for energy in measured if energy is not None]
    if len({(energy.nodes, energy.switches) for energy in known}) > 1:
        notes.append("the energy was not computed: the runs have different numbers of power files")
        return []
    notes += dict.fromkeys(note for energy in known for note in energy.notes)
    return [energy.joules if energy else None for energy in measured]


def joules_of(run: RunSummary) -> dict[str, float]:
    """Return the joules of a run by the keys of `KINDS`, as far as power files and log have them."""
    measured = dict(run.joules)
    if run.minutes is not None and run.started_ms is not None and (run.path.parent / "power").is_dir():
        with suppress(PowerError):
            measured["system"] = run_energy(run.path, started_ms=run.started_ms, minutes=run.minutes).joules
    return measured


def shared_energy(runs: Sequence[RunSummary]) -> tuple[str, dict[Path, float]]:
    """Return what the energies that all runs have are of, and the joules of each by its path: of the system if all have
    power files, else of GPUs and processors. "", or the reason if the logs give one, and {} if there is none."""
    measured = {run.path: joules_of(run) for run in runs}
    shared = set.intersection(*map(set, measured.values())) if measured else set()
    kinds = ["system"] if "system" in shared else [kind for kind in KINDS if kind in shared]
    if not kinds:
        return next((run.unmeasured for run in runs if run.unmeasured), ""), {}
    joules = {path: sum(known[kind] for kind in kinds) for path, known in measured.items()}
    return " and ".join(KINDS[kind] for kind in kinds), joules


def energy_text(joules: float) -> str:
    """Return joules as text, larger ones in watt-hours or kilowatt-hours."""
    if joules >= 3.6e6:
        return f"{joules / 3.6e6:,.2f} kWh"
    return f"{joules / 3.6e3:.4g} Wh" if joules >= 1e4 else f"{joules:,.4g} J"


def run_energy(result: Path, *, started_ms: float, minutes: float) -> RunEnergy:
    """Compute the energy of the run with the log `result` from power/<name of the log>/node_<i>.txt and sw_<i>.txt.

    Each reading is the power since the one before it; the energy is the mean power of the measurement times the time to
    train (mlperf_logging, result_summarizer.py, `_compute_power_node`; power_measurement.adoc, "Scoring"). An
    interconnect has one power estimate instead of readings (`_compute_power_sw`). Raises PowerError if a file is
    missing or holds no measurement."""
    folder = result.parent / "power" / result.name.split(".")[0]
    nodes, switches = (_numbered(folder, kind) for kind in ("node", "sw"))
    if not nodes:
        raise PowerError(f"power/{folder.name} holds no node_0.txt")
    time_ms, joules, notes = milliseconds(minutes), 0.0, list[str]()
    for file in nodes:
        joules += _node(file, time_ms, started_ms, notes)
    for file in switches:
        joules += _switch(file, time_ms)
    if not math.isfinite(joules):
        raise PowerError(f"the readings of power/{folder.name} have no finite sum")
    return RunEnergy(joules=joules, nodes=len(nodes), switches=len(switches), notes=tuple(notes))


def _node(file: Path, time_ms: float, started_ms: float, notes: list[str]) -> float:
    name = f"{file.parent.name}/{file.name}"
    begin = previous = end = last = None
    efficiency, held, readings = 1.0, 0.0, 0
    for event in sorted(_events(file), key=lambda event: event.time_ms):
        if event.key == "power_measurement_start":
            begin = previous = event.time_ms
        elif event.key == "power_reading" and begin is not None and previous is not None and end is None:
            held += _value(event, name) * (event.time_ms - previous)
            previous = last = event.time_ms
            readings += 1
        elif event.key == "power_measurement_stop":
            end = event.time_ms
        elif event.key == "conversion_eff":
            efficiency = _value(event, name)
    if begin is None:
        raise PowerError(f"power/{name} holds no power_measurement_start")
    if end is None:
        notes.append(f"power/{name} holds no power_measurement_stop; its last reading is used instead")
        end = last if last is not None else begin
    if end <= begin:
        raise PowerError(f"power/{name} holds an empty measurement")
    if readings < MIN_READINGS:
        notes.append(f"power/{name} holds {readings} readings, but the rules require {MIN_READINGS}")
    if readings < math.floor((end - begin) / 1000):
        notes.append(f"power/{name} holds less than the one reading per second that the rules require")
    if begin > started_ms or end < started_ms + time_ms:
        notes.append(f"power/{name} does not cover the whole time to train, which the rules require")
    return efficiency * held * time_ms / (end - begin) / 1000


def _switch(file: Path, time_ms: float) -> float:
    name = f"{file.parent.name}/{file.name}"
    efficiency = 1.0
    for event in _events(file):
        if event.key == "conversion_eff":
            efficiency = _value(event, name)
        elif event.key == "interconnect_power_est":
            return efficiency * _value(event, name) * time_ms / 1000
    raise PowerError(f"power/{name} holds no interconnect_power_est")


def _events(file: Path) -> tuple[Event, ...]:
    try:
        record = read(file)
    except OSError as error:
        raise PowerError(f"power/{file.parent.name}/{file.name} cannot be read: {error.strerror}") from None
    if not record.events:
        raise PowerError(f"power/{file.parent.name}/{file.name}: {record.problems[-1].message.partition(';')[0]}")
    return record.events


def _value(event: Event, name: str) -> float:
    if not is_number(event.value):
        raise PowerError(f"power/{name}, line {event.line}: the value of {event.key} is not a number")
    return event.value


def _numbered(folder: Path, kind: str) -> list[Path]:
    """Return the files of a kind by number; numbers start from 0 (package_checker's power_checker.py)."""
    pattern = re.compile(rf"{kind}_([0-9]+)\.txt")
    files = {int(match[1]): file for file in folder.glob(f"{kind}_*.txt") if (match := pattern.fullmatch(file.name))}
    if sorted(files) != list(range(len(files))):
        raise PowerError(f"the numbers of {kind}_*.txt in power/{folder.name} are not consecutive from 0")
    return [files[number] for number in sorted(files)]
