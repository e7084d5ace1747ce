"""Command line of a race of configs, a sweep or a tuning of them: a new one, or the folder of one."""

import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from timedrun.commands.known_race import known_race
from timedrun.config_choice import changes_of
from timedrun.distributed.launch_env import Launch
from timedrun.evidence.config_race import ConfigRequest, config_runs, profile_methods, require_named
from timedrun.evidence.race_package import package_race
from timedrun.evidence.warm_parent import WarmParent
from timedrun.racing.conduct import Conduct
from timedrun.racing.plan import Rounds
from timedrun.racing.race_file import Race
from timedrun.racing.tuning_report import TuningReport


def request_of(arguments: Namespace, overrides: Sequence[str]) -> ConfigRequest:
    """Return what a command line asks for."""
    if not (arguments.benchmark and arguments.configs):
        raise UsageError(
            f"name a benchmark and configs, or the folder of a {arguments.verb} with --resume or --report."
        )
    names = ("verb", "benchmark", "configs", "data", "base", "ablate", "results", "answers")
    options = vars(arguments)
    own = {name: options[name] for name in names if name in options}
    return ConfigRequest(**own, overrides=overrides, rounds=Rounds.of(options), launch=Launch.of(options))


def race_of_configs(
    arguments: Namespace,
    overrides: Sequence[str],
    new: Callable[[ConfigRequest, WarmParent | None], tuple[Path, Race]],
    report_of: Callable[..., TuningReport] | None = None,
) -> ExitCode:
    """Run a race that `new` plans, or the one of --resume or --report, and report on it; a tuning by `report_of`."""
    parent: WarmParent | None = getattr(arguments, "parent", None)
    known = arguments.resume or arguments.report
    if not known:
        request = request_of(arguments, overrides)
        folder, race = new(request, parent)
        launch = request.launch
    else:
        folder, race = known_race_of_configs(arguments, overrides)
        launch = Launch.of(vars(arguments)).resumed(race.options)
    if arguments.resume:
        require_named(race, folder, benchmark_named=arguments.benchmark is not None)
    runs = config_runs(race, folder, launch, parent, resumed=bool(arguments.resume))
    if race.ablation and not known and (interrupted := profile_methods(runs, race)):
        stdio.message(f"timedrun race: no run was made; start with `timedrun race --resume {shlex.quote(str(folder))}`")
        return ExitCode(128 + interrupted)
    tuning = report_of(folder, race, benchmark_named=arguments.benchmark is not None) if report_of else None
    return Conduct(
        start=runs.start,
        package=package_race,
        tuning=tuning,
        report_only=bool(arguments.report),
        as_json=arguments.json,
    ).run(race, folder)


def known_race_of_configs(arguments: Namespace, overrides: Sequence[str]) -> tuple[Path, Race]:
    """Return the folder and the race of --resume or --report. Raises UsageError unless the command line leaves the plan
    to race.json."""
    if overrides or not all(word.startswith("+") for word in arguments.configs):
        raise UsageError(
            "--resume and --report take the plan from race.json; leave out configs and overrides, but name methods of"
            " the working directory (+module:Class)."
        )
    for word in arguments.configs:
        changes_of(word)
    folder, race = known_race(arguments)
    if arguments.benchmark not in (None, race.benchmark):
        raise UsageError(f"{folder} is a race of {race.benchmark}, not of {arguments.benchmark}; nothing was run.")
    return folder, race
