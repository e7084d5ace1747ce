"""`timedrun tune`: settings of each side of a race, found in equal machine time on a split of their own."""

import argparse
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from judging.ground.config_values import flatten
from judging.ground.errors import ExitCode, UsageError, nearest
from judging.ground.race_labels import letters
from judging.ground.result_files import write_json
from timedrun.benchmark import Benchmark, find
from timedrun.commands.race import planned_race, race_of_configs
from timedrun.config import RunConfig, dump, load
from timedrun.config_choice import config_in
from timedrun.racing.race_file import Race, Range, Tuned, Tuning, chosen_digest
from timedrun.racing.search import LONGEST, Search, Values, add
from timedrun.racing.sides import Side, sides_of, split_overrides
from timedrun.racing.tuning_report import TuningReport

LENGTH, FIRST = "length", "first_evaluation"
"""In place of settings: ratios of the length of the schedule, and of the part of it that passes before the first
evaluation, to the config's own."""


def tune(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run trials of every config, of the one that was given the least time first, until each has its minutes; write the
    chosen settings. On SIGINT the current run ends, and is repeated when the tuning is resumed."""

    def report_of(folder: Path, planned: Race) -> TuningReport:
        assert planned.tuning
        benchmark = find(planned.benchmark, working_directory=arguments.benchmark is not None)
        search = Search(planned, folder, partial(trial, benchmark, planned.tuning))
        return TuningReport(planned, folder, search, partial(write_configs, benchmark, planned.tuning))

    return race_of_configs(arguments, rest, new_tuning, report_of)


def new_tuning(arguments: argparse.Namespace, rest: list[str]) -> tuple[Path, Race]:
    """Plan the first run of each side, find everything that would fail in it, and write the folder of the tuning."""
    benchmark = find(arguments.benchmark, working_directory=True)
    ranged = {at for at, word in enumerate(rest) if Range.parsed(word)}
    ranged |= {at - 1 for at in ranged}
    ranges, overrides = ([word for at, word in enumerate(rest) if (at in ranged) is wanted] for wanted in (True, False))
    sides = sides_of(benchmark, arguments.configs, arguments.data, overrides)
    given = split_overrides(ranges, letters(len(sides)), arguments.configs)
    tuning = Tuning(
        minutes=arguments.minutes,
        seed=arguments.first_seed,
        split=sides[0].config.for_tuning().dataset,
        spaces={},
        bases={side.config.name: dump(side.config) for side in sides},
        labels={side.config.name: side.label for side in sides},
        target=arguments.target,
    )
    firsts = []
    for letter, side in zip(letters(len(sides)), sides, strict=True):
        base, own = side.config.name, {**flatten(dump(side.config)), LENGTH: 1.0, FIRST: 1.0}
        space = tuning.spaces[base] = space_of(side.config, own, [*given[""], *given[letter]])
        name, values = f"{base}_0", {key: of.at(float(own[key])) for key, of in space.items()}  # type: ignore[arg-type]
        label = add(tuning, base, name, values)
        settings = trial(benchmark, tuning, tuning.bases[base], values, name, LONGEST * tuning.minutes)
        firsts.append(Side(label=label, config=config_in(benchmark, settings)))
    return planned_race(arguments, benchmark, firsts, no_package="for a tuning", tuning=tuning)


def space_of(config: RunConfig, own: dict[str, Any], words: list[str]) -> dict[str, Range]:
    """Return the ranges of a side: those of its config, and in their place those of `words`, as `--optimizer.peak-lr
    0.1..1`. Raises UsageError for the range of what is no positive number."""
    space = {key: Range(*ends, whole=isinstance(own[key], int)) for key, ends in config.search_space().items()}
    for option, text in zip(words[::2], words[1::2], strict=True):
        key = option.removeprefix("--").replace("-", "_")
        value, of = own.get(key), Range.parsed(text)
        if of is None or isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            numbers = [name for name, number in own.items() if isinstance(number, int | float) and number > 0]
            raise UsageError(f"{option} {text}: no setting of {config.name} above 0.{nearest(key, numbers)}")
        space[key] = replace(of, whole=isinstance(value, int))
    return space


def trial(
    benchmark: Benchmark, tuning: Tuning, base: dict[str, Any], values: Values, name: str, minutes: float
) -> dict[str, Any]:
    """Return the settings of a run of the config `base` with `values` on its tuning split, stopped after `minutes`.
    Raises UsageError for values that contradict each other."""
    config = with_values(config_in(benchmark, base), values).for_tuning()
    target = config.evaluation.target if tuning.target is None else tuning.target
    evaluation = replace(config.evaluation, target=target)
    return dump(replace(config, name=name, evaluation=evaluation, budget_minutes=minutes))


def with_values(config: RunConfig, values: Values) -> RunConfig:
    """Return `config` with settings by their dotted names. Raises UsageError for values that contradict each other."""
    ratios = [values.get(key, 1.0) for key in (LENGTH, FIRST)]
    settings = dump(config.lengthened(*ratios) if {LENGTH, FIRST} & values.keys() else config)
    for key, value in values.items():
        if key not in (LENGTH, FIRST):
            *path, last = key.split(".")
            place: Any = settings
            for name in path:  # a method is in a list
                place = {part["method"]: part for part in place}[name] if isinstance(place, list) else place[name]
            place[last] = value
    return load(type(config), settings)


def write_configs(
    benchmark: Benchmark, tuning: Tuning, folder: Path, chosen: dict[str, tuple[Values, Tuned]]
) -> dict[str, str]:
    """Write the chosen settings of each config to a file of its own, with the record of their tuning."""
    files = {}
    for base, (values, record) in chosen.items():
        file = folder / f"{base}_tuned.json"
        config = with_values(config_in(benchmark, tuning.bases[base]), values)
        searched = ", ".join(f"{key} {text}" for key, text in record.space.items())
        config = replace(config, name=file.stem, notes=f"{base}, {record.words}: {searched}.")
        write_json(file, dump(config) | {"tuning": asdict(replace(record, of=chosen_digest(dump(config))))})
        files[base] = str(file)
    return files
