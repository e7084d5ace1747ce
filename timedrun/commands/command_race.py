"""`timedrun race command`: interleaved runs of command lines, or of one command line at several commits. `timedrun run
command` is such a race of one side, `timedrun sweep command` one of command lines at several budgets."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Final

from judging.ground.errors import ExitCode, UsageError
from timedrun.commands.command_options import parsed
from timedrun.commands.known_race import known_race
from timedrun.evidence.race_package import package_race
from timedrun.racing.command_race import CommandRequest, command_runs, new_race, run_code
from timedrun.racing.command_tuning import KEPT, report_of
from timedrun.racing.conduct import Conduct
from timedrun.racing.plan import Rounds

PLANNED: Final = ("results", "repo", "at", "build", "share", "budgets", "minutes", "split")
"""Options that a request takes as they are."""


def command_race(verb: str, words: Sequence[str]) -> ExitCode:
    """Run, check, score, plot and compare the commands after `timedrun VERB command`."""
    arguments = parsed(verb, words)
    known = arguments.resume or arguments.report
    if known and arguments.sides:
        raise UsageError("--resume and --report take the plan from race.json; leave out commands.")
    folder, race = known_race(arguments) if known else new_race(request_of(arguments))
    of = {"tuning": report_of(folder, race) if race.tuning else None, "as_json": arguments.json}
    with command_runs(folder, race, new=not known, report_only=bool(arguments.report)) as start:
        conduct = Conduct(start=start, package=package_race, report_only=bool(arguments.report), **of)
        return run_code(race, folder, conduct.run(race, folder))


def request_of(arguments: Namespace) -> CommandRequest:
    """Return what a command line asks for."""
    verb = arguments.verb
    if arguments.quality is None or arguments.target is None:
        stops = "which a sweep records" if verb == "sweep" else "where the clock stops"
        raise UsageError(f"give --quality or --preset, what is read of the output, and --target, {stops}.")
    given = KEPT if verb == "tune" else (*KEPT, "minutes")  # a tuning's are not of a run
    return CommandRequest(
        verb=verb,
        commands=arguments.commands,
        settings={name: value for name in given if (value := getattr(arguments, name)) is not None},
        rounds=Rounds.of(vars(arguments)),
        **{name: value for name in PLANNED if (value := getattr(arguments, name, None)) is not None},
    )
