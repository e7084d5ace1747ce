"""The energy of a run from the power files beside its log, computed as MLCommons' summarizer does."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlevents.event import Event, is_number
from mlevents.record import read
from mlevents.summary import RunSummary
from timedrun.submission.scoring.olympic import milliseconds

LEAST_READINGS: Final = 60  # power_measurement.adoc, "Measure max(a run, 60 power samples)"


class PowerError(ValueError):
    """Power files of which no energy can be computed: the message names the file and what it lacks."""


@dataclass(frozen=True, kw_only=True)
class RunEnergy:
    """The energy of one run over all its nodes and interconnects, and what the power rules hold against it."""

    joules: float
    nodes: int
    switches: int
    notes: tuple[str, ...]


def has_power(folder: Path) -> bool:
    """Whether a set of results was measured: a folder power/ lies beside its logs."""
    return (folder / "power").is_dir()


def set_energies(
    summaries: Sequence[RunSummary], times: Sequence[float | None], notes: list[str]
) -> list[float | None]:
    """The joules of every run that has a time (minutes), in the order of `summaries`; empty where none is known.

    What is missing, and what the power rules hold against the files, is added to `notes`.
    """
    measured: list[RunEnergy | None] = []
    for one, minutes in zip(summaries, times, strict=True):
        if minutes is None or one.started_ms is None:
            measured.append(None)
            continue
        try:
            measured.append(run_energy(one.path, started_ms=one.started_ms, minutes=minutes))
        except PowerError as error:
            notes.append(f"no energy is computed, because {error}")
            return []
    found = [one for one in measured if one is not None]
    if len({(one.nodes, one.switches) for one in found}) > 1:
        notes.append("no energy is computed, because not every run has the same number of power files")
        return []
    notes += dict.fromkeys(note for one in found for note in one.notes)
    return [one.joules if one else None for one in measured]


def run_energy(result: Path, *, started_ms: float, minutes: float) -> RunEnergy:
    """The energy of the run whose log is `result`, from power/<name of the log>/node_<i>.txt and sw_<i>.txt.

    Every reading is held back to the one before it; the mean power of the measurement times the time to train is the
    energy (mlperf_logging, result_summarizer.py, `_compute_power_node`; power_measurement.adoc, "Scoring"). An
    interconnect has one estimate of its power in place of readings (`_compute_power_sw`).

    Raises:
        PowerError: a file is missing or holds no measurement.
    """
    folder = result.parent / "power" / result.name.split(".")[0]
    nodes, switches = (_numbered(folder, kind) for kind in ("node", "sw"))
    if not nodes:
        raise PowerError(f"power/{folder.name} holds no node_0.txt, so the run was not measured")
    time_ms, joules, notes = milliseconds(minutes), 0.0, list[str]()
    for file in nodes:
        joules += _node(file, time_ms, started_ms, notes)
    for file in switches:
        joules += _switch(file, time_ms)
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
        notes.append(f"power/{name} holds no power_measurement_stop; its last reading is taken for it")
        end = last if last is not None else begin
    if end <= begin:
        raise PowerError(f"power/{name} holds no measurement of any length")
    if readings < LEAST_READINGS:
        notes.append(f"power/{name} holds {readings} readings, the rules ask for {LEAST_READINGS}")
    if readings < math.floor((end - begin) / 1000):
        notes.append(f"power/{name} holds less than one reading a second, which the rules ask for")
    if begin > started_ms or end < started_ms + time_ms:
        notes.append(f"power/{name} does not measure the whole time to train, which the rules ask for")
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
        return read(file).events
    except OSError as error:
        raise PowerError(f"power/{file.parent.name}/{file.name} cannot be read: {error.strerror}") from None


def _value(event: Event, name: str) -> float:
    if not is_number(event.value):
        raise PowerError(f"power/{name}, line {event.line}: the value of {event.key} is no number")
    return event.value


def _numbered(folder: Path, kind: str) -> list[Path]:
    """The files of a kind in the order of their numbers, which run from 0 (package_checker's power_checker.py)."""
    found = {int(match[1]): file for file in folder.glob(f"{kind}_*.txt") if (match := _number(kind, file))}
    if sorted(found) != list(range(len(found))):
        raise PowerError(f"power/{folder.name} holds {kind}_*.txt not numbered from 0 without a gap")
    return [found[number] for number in sorted(found)]


def _number(kind: str, file: Path) -> re.Match[str] | None:
    return re.fullmatch(rf"{kind}_([0-9]+)\.txt", file.name)
