"""The race that a command line names: of configs or of commands, a new one or the folder of one to resume."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError
from timedrun.racing import race_file
from timedrun.racing.race_file import COMMANDS, Race

OF_CONFIGS: Final = (
    *("data", "data_folder", "ranks", "threads", "emulated_precision"),
    *("ablate", "ratios", "dry_run", "answers"),
)
OF_COMMANDS: Final = ("preset", "quality", "lower", "start", "stop", "at", "build", "budgets")
"""Options of one kind of race alone."""


def is_of_commands(arguments: Namespace) -> bool:
    """Return True for a race of commands. Raises UsageError for a new one with an option of the other kind."""
    if arguments.resume:
        return race_file.load(Path(arguments.resume)).benchmark == COMMANDS
    commands = arguments.benchmark == COMMANDS
    others, kind = (OF_CONFIGS, "commands") if commands else (OF_COMMANDS, "configs")
    _require(arguments, lambda option, given: option not in others, f"a {arguments.verb} of {kind} has no such option")
    return commands


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
    _require(arguments, same, "--resume takes the plan from race.json")
    return folder, race


def _require(arguments: Namespace, fits: Callable[[str, Any], bool], why: str) -> None:
    """Raise UsageError for an option that was given and does not fit."""
    for option in arguments.parser._actions:
        given = getattr(arguments, option.dest, option.default)
        if option.option_strings and str(given) != str(option.default) and not fits(option.dest, given):
            if option.dest != "json":
                raise UsageError(f"{why}; leave out {option.option_strings[0]}.")
