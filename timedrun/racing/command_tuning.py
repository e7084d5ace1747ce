"""Tuning of command lines, whose ranges stand in them: `python train.py --lr {lr:0.01..1} --batch {batch:16..256}`."""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import cattrs

from judging.ground.atomic_file import replace_text
from judging.ground.errors import UsageError
from timedrun.racing.command_side import CommandSide
from timedrun.racing.race_file import Race, Range, Tuned, Tuning, chosen_digest
from timedrun.racing.search import LONGEST, Search, Values, add
from timedrun.racing.tuning_report import TuningReport

SPLIT: Final = "TIMEDRUN_SPLIT"  # environment variable of a trial with the data that the user states
PLACE: Final = re.compile(r"\{(\w+):([^{}]*)\}")
PRESET: Final = ("after", "before", "unreadable", "hint", "environment")
"""Settings of every side that no option has, only presets."""
KEPT: Final = (
    *("quality", "target", "lower", "metric", "start", "stop", "stop_at_target", "reported", "log", "seed_variable"),
    *PRESET,
)
"""Settings of every side that are options of a race, or of its preset."""


def first_trials(
    sides: Mapping[str, CommandSide], labels: Mapping[str, str], *, minutes: float, seed: int, split: str
) -> tuple[Tuning, dict[str, CommandSide], dict[str, str]]:
    """Return the tuning of `sides`, and the first setting of each, in the middle of its ranges, and its label, by
    folder. Raises UsageError for a command without a range."""
    tuning = Tuning(
        minutes=minutes,
        seed=seed,
        split=split,
        spaces={name: space_of(side.command) for name, side in sides.items()},
        bases={name: asdict(side) for name, side in sides.items()},
        labels=dict(labels),
    )
    firsts: dict[str, CommandSide] = {}
    named: dict[str, str] = {}
    for base, space in tuning.spaces.items():
        values = {key: of.at(math.sqrt(of.low * of.high)) for key, of in space.items()}
        name = f"{base}_0"
        named[name] = add(tuning, base, name, values)
        settings = trial(tuning.bases[base], values, name, LONGEST * minutes)
        firsts[name] = cattrs.structure(settings, CommandSide)
    return tuning, firsts, named


def space_of(command: str) -> dict[str, Range]:
    """Return the ranges in a command line by name. Raises UsageError if it has none, or one that is no range."""
    ranges = {name: (text, Range.parsed(text)) for name, text in PLACE.findall(command)}
    if wrong := [f"{{{name}:{text}}}" for name, (text, of) in ranges.items() if of is None]:
        raise UsageError(f"{wrong[0]} in {command!r} is no range; write {{NAME:LOW..HIGH}}, such as {{lr:0.01..1}}.")
    if not ranges:
        raise UsageError(f"{command!r} has nothing to tune; write {{NAME:LOW..HIGH}} in it, such as {{lr:0.01..1}}.")
    return {name: of for name, (_, of) in ranges.items() if of}


def filled(command: str, values: Values) -> str:
    """Return a command line with values in place of its ranges; {NAME} stands for the value once more."""
    command = PLACE.sub(lambda match: f"{{{match[1]}}}", command)
    for name, value in values.items():
        command = command.replace(f"{{{name}}}", str(value) if isinstance(value, int) else f"{value:.6g}")
    return command


def trial(base: dict[str, Any], values: Values, name: str, minutes: float) -> dict[str, Any]:
    """Return the settings of a run of the side `base` with `values`, ended after `minutes`."""
    return {**base, "command": filled(base["command"], values), "name": name, "minutes": minutes}


def report_of(folder: Path, planned: Race) -> TuningReport:
    """Return the report on a tuning of commands, whose trials find its split in the environment."""
    assert planned.tuning
    os.environ[SPLIT] = planned.tuning.split
    return TuningReport(planned, folder, Search(planned, folder, trial), partial(write_commands, planned.tuning))


def write_commands(tuning: Tuning, folder: Path, chosen: dict[str, tuple[Values, Tuned]]) -> dict[str, str]:
    """Write the chosen commands to a file of TOML that `timedrun race` reads, with the records of their tuning."""
    side = cattrs.structure(next(iter(tuning.bases.values())), CommandSide)
    kept = {key: value for key in KEPT if (value := getattr(side, key)) not in ("", False, ())}
    lines = [f"{key} = {toml(value)}" for key, value in kept.items()]
    for base, (values, record) in chosen.items():
        command = filled(tuning.bases[base]["command"], values)
        record = replace(record, of=chosen_digest({"command": command}))
        lines += ["", "[[sides]]", f"label = {toml(tuning.labels[base])}", f"command = {toml(command)}"]
        lines.append(f"tuning = {toml(asdict(record))}")
    file = folder / "tuned.toml"
    replace_text(file, "\n".join(lines) + "\n")
    return dict.fromkeys(chosen, str(file))


def toml(value: Any) -> str:
    """Return a value in TOML, whose strings, numbers and switches are JSON's."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
