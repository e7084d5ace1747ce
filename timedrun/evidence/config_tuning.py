"""Tuning of configs: settings of each side, found in equal machine time on a split of their own."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from judging.ground.config_values import flatten
from judging.ground.errors import UsageError, nearest
from judging.ground.race_labels import letters
from judging.ground.result_files import write_json
from timedrun.evidence.config_race import ConfigRequest, planned_race
from timedrun.evidence.config_sides import ConfigSide, split_overrides
from timedrun.evidence.warm_parent import WarmParent
from timedrun.racing.race_file import Race, Range, Tuned, Tuning, chosen_digest
from timedrun.racing.search import LONGEST, Search, Values, add
from timedrun.racing.tuning_report import TuningReport
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.config import RunConfig, dump, load
from timedrun.runner.config_choice import config_in

LENGTH, FIRST = "length", "first_evaluation"
"""In place of settings: ratios of the length of the schedule, and of the part of it that passes before the first
evaluation, to the config's own."""


def report_of(folder: Path, race: Race, *, benchmark_named: bool) -> TuningReport:
    """Return the report on a tuning of configs. A benchmark of the working directory runs only if the user named it."""
    assert race.tuning
    benchmark = find(race.benchmark, working_directory=benchmark_named)
    search = Search(race, folder, partial(trial, benchmark, race.tuning))
    return TuningReport(race, folder, search, partial(write_configs, benchmark, race.tuning))


def new_tuning(
    request: ConfigRequest, parent: WarmParent | None, *, minutes: float, target: float | None
) -> tuple[Path, Race]:
    """Plan the first run of each side, find everything that would fail in it, and write the folder of the tuning.

    minutes: machine time of each side. target: quality at which a trial ends; None: that of the config.
    """
    benchmark, rest = request.find(), list(request.overrides)
    ranged = {at for at, word in enumerate(rest) if Range.parsed(word)}
    ranged |= {at - 1 for at in ranged}
    ranges, overrides = ([word for at, word in enumerate(rest) if (at in ranged) is wanted] for wanted in (True, False))
    sides = request.sides(benchmark, overrides)
    given = split_overrides(ranges, letters(len(sides)), request.configs)
    tuning = Tuning(
        minutes=minutes,
        seed=request.rounds.first_seed,
        split=sides[0].config.for_tuning().dataset,
        spaces={},
        bases={side.config.name: dump(side.config) for side in sides},
        labels={side.config.name: side.label for side in sides},
        target=target,
    )
    firsts = []
    for letter, side in zip(letters(len(sides)), sides, strict=True):
        base, own = side.config.name, {**flatten(dump(side.config)), LENGTH: 1.0, FIRST: 1.0}
        space = tuning.spaces[base] = space_of(side.config, own, [*given[""], *given[letter]])
        name, values = f"{base}_0", {key: of.at(float(own[key])) for key, of in space.items()}  # type: ignore[arg-type]
        label = add(tuning, base, name, values)
        settings = trial(benchmark, tuning, tuning.bases[base], values, name, LONGEST * tuning.minutes)
        firsts.append(ConfigSide(label=label, config=config_in(benchmark, settings)))
    return planned_race(request, benchmark, firsts, parent, no_package="for a tuning", tuning=tuning)


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
