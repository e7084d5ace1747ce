"""The race that a command line names: of configs or of commands, a new one or the folder of one to resume."""

import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError
from timedrun.racing import race_file
from timedrun.racing.race_file import COMMANDS, Race
from timedrun.runner.process.launch_env import MAX_RESTARTS

OF_CONFIGS: Final = ("data", "data_folder", "ranks", "threads", "ablate", "ratios", "answers")
OF_COMMANDS: Final = ("preset", "quality", "lower", "start", "stop", "at", "build", "budgets")
"""Options of one kind of race alone."""


def is_of_commands(options: Mapping[str, Any]) -> bool:
    """Return True if the options of a command line are of a race of commands. Raises UsageError for a new race with an
    option of the other kind."""
    if options["resume"]:
        return race_file.load(Path(options["resume"])).benchmark == COMMANDS
    commands: bool = options["benchmark"] == COMMANDS
    of_race = ("target", "minutes") if options["verb"] == "race" else ()  # of a tuning, both kinds have them
    others, kind = (OF_CONFIGS, "commands") if commands else ((*OF_COMMANDS, *of_race), "configs")
    _require(options, lambda option, given: option not in others, f"a {options['verb']} of {kind} has no such option")
    return commands


def forks_runs(options: Mapping[str, Any]) -> bool:
    """Return True if a race of configs runs them, each as one process without an agent that restarts it."""
    if options["ranks"] > 1 or MAX_RESTARTS in os.environ:
        return False
    return not options["resume"] or race_file.load(Path(options["resume"])).left


def known_race(arguments: Namespace) -> tuple[Path, Race]:
    """Return the folder and the race of --resume. Raises UsageError if another verb planned it, it is of another
    benchmark, or an option differs from its plan."""
    folder = Path(arguments.resume)
    race = race_file.load(folder)
    if arguments.verb != race.verb:
        raise UsageError(f"{folder} is of another verb: `timedrun {race.verb} --resume {folder}`.")
    if arguments.benchmark not in (None, race.benchmark):
        raise UsageError(f"{folder} is a race of {race.benchmark}, not of {arguments.benchmark}; nothing was run.")
    used = {"runs": race.runs, "data_folder": getattr(arguments, "data_folder", None)}
    used |= {name: value for name, value in race.options.items() if value is not None}
    same: Callable[[str, Any], bool] = lambda option, given: option == "resume" or str(given) == str(used.get(option))  # noqa: E731
    _require(vars(arguments), same, "--resume takes the plan from race.json")
    return folder, race


def _require(options: Mapping[str, Any], fits: Callable[[str, Any], bool], why: str) -> None:
    """Raise UsageError for an option that was given and does not fit."""
    for option in options["parser"]._actions:
        given = options.get(option.dest, option.default)
        changed = option.option_strings and option.dest not in ("json", "verbose") and str(given) != str(option.default)
        if changed and not fits(option.dest, given):
            raise UsageError(f"{why}; leave out {option.option_strings[0]}.")
