"""Command line of a race of commands, or a tuning of them, which needs no torch."""

from argparse import Namespace
from typing import Final

from judging.ground.errors import ExitCode, UsageError
from timedrun.commands.known_race import known_race
from timedrun.evidence.race_package import package_race
from timedrun.racing.command_race import CommandRequest, command_runs, new_race, run_code
from timedrun.racing.command_tuning import KEPT, report_of
from timedrun.racing.conduct import Conduct
from timedrun.racing.plan import Rounds

PLANNED: Final = ("verb", "results", "repo", "at", "build", "share", "budgets", "split")
"""Options that a request takes as they are."""


def race_of_commands(arguments: Namespace) -> ExitCode:
    """Run, check, score, plot and compare commands; the exit code of a single one is that of its runs."""
    if arguments.resume and arguments.configs:
        raise UsageError("--resume takes the plan from race.json; leave out commands.")
    folder, race = known_race(arguments) if arguments.resume else new_race(request_of(arguments))
    tuning = report_of(folder, race) if race.tuning else None
    with command_runs(folder, race, new=not arguments.resume) as start:
        as_json, verbose = arguments.json, arguments.verbose
        conduct = Conduct(start=start, package=package_race, tuning=tuning, as_json=as_json, verbose=verbose)
        return run_code(race, folder, conduct.run(race, folder))


def request_of(arguments: Namespace) -> CommandRequest:
    """Return what a command line asks for."""
    options = {name: value for name, value in vars(arguments).items() if value is not None}
    if not {"quality", "target"} <= options.keys():
        stops = "which a race at --budgets records" if options.get("budgets") else "where the clock stops"
        raise UsageError(f"give --quality or --preset, what is read of the output, and --target, {stops}.")
    tunes = arguments.verb == "tune"
    return CommandRequest(
        commands=arguments.sides,
        settings={name: options[name] for name in (*KEPT, *["minutes"] * (not tunes)) if name in options},
        rounds=Rounds.of(options),
        minutes=options["minutes"] if tunes else 0.0,
        **{name: options[name] for name in PLANNED if name in options},
    )
