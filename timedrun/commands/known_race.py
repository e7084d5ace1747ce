"""The race that a command line resumes or reports on."""

from argparse import Namespace
from pathlib import Path

from judging.ground.errors import UsageError
from timedrun.racing import race_file
from timedrun.racing.race_file import COMMANDS, Race


def known_race(arguments: Namespace) -> tuple[Path, Race]:
    """Return the folder and the race of --resume or --report. Raises UsageError if another verb planned it, or for an
    option that differs from its plan."""
    folder = Path(arguments.resume or arguments.report)
    race = race_file.load(folder)
    commands = race.benchmark == COMMANDS
    if (arguments.verb, arguments.benchmark == COMMANDS) != (race.verb, commands):
        words = f"{race.verb} {COMMANDS}" if commands else race.verb
        option = "resume" if arguments.resume else "report"
        raise UsageError(f"{folder} is of another verb: `timedrun {words} --{option} {folder}`.")
    used = {"runs": race.runs, "data_folder": getattr(arguments, "data_folder", None)}
    used |= {name: value for name, value in race.options.items() if value is not None}
    for option in arguments.parser._actions:
        given, usual = getattr(arguments, option.dest, option.default), option.default
        known = not option.option_strings or option.dest in ("json", "resume", "report")
        if not known and str(given) not in (str(usual), str(used.get(option.dest, usual))):
            name = option.option_strings[0]
            raise UsageError(f"--resume and --report take the plan from race.json; leave out {name}.")
    return folder, race
