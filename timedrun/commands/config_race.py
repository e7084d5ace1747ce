"""Command line of a race of configs, a sweep or a tuning of them: a new one, or the folder of one."""

import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from timedrun.commands.known_race import known_race
from timedrun.evidence.config_race import ConfigRequest, ConfigRuns, go_on, profile_methods
from timedrun.evidence.race_package import package_race
from timedrun.evidence.warm_parent import WarmParent
from timedrun.racing.conduct import Conduct
from timedrun.racing.plan import Rounds
from timedrun.racing.race_file import Race
from timedrun.racing.tuning_report import TuningReport
from timedrun.runner.config_choice import changes_of
from timedrun.runner.process.launch_env import Launch


def request_of(arguments: Namespace, overrides: Sequence[str]) -> ConfigRequest:
    """Return what a command line asks for."""
    if not (arguments.benchmark and arguments.configs):
        raise UsageError("name a benchmark and configs, `command` and command lines, or a folder with --resume.")
    names = ("verb", "benchmark", "configs", "data", "ablate", "results", "answers")
    options = vars(arguments)
    own = {name: options[name] for name in names if name in options}
    return ConfigRequest(**own, overrides=overrides, rounds=Rounds.of(options), launch=Launch.of(options))


def race_of_configs(
    arguments: Namespace,
    overrides: Sequence[str],
    new: Callable[[ConfigRequest, WarmParent | None], tuple[Path, Race]],
    report_of: Callable[..., TuningReport] | None = None,
) -> ExitCode:
    """Run a race that `new` plans, or the one of --resume, and report on it; a tuning by `report_of`."""
    parent: WarmParent | None = getattr(arguments, "parent", None)
    named = arguments.benchmark is not None  # code of the working directory runs only if the user names it
    if arguments.resume:
        require_no_plan(arguments.configs, overrides)
        folder, race = known_race(arguments)
        launch = Launch.of(vars(arguments)).resumed(race.options)
        if race.left:
            go_on(race, folder, parent, benchmark_named=named)
    else:
        request = request_of(arguments, overrides)
        (folder, race), launch = new(request, parent), request.launch
    runs = ConfigRuns(benchmark=race.benchmark, folder=folder, launch=launch, parent=parent)
    if race.ablation and not arguments.resume and (interrupted := profile_methods(runs, race)):
        stdio.message(f"timedrun race: no run was made; start with `timedrun race --resume {shlex.quote(str(folder))}`")
        return ExitCode(128 + interrupted)
    tuning = report_of(folder, race, benchmark_named=named) if report_of else None
    as_json, verbose = arguments.json, arguments.verbose
    conduct = Conduct(start=runs.start, package=package_race, tuning=tuning, as_json=as_json, verbose=verbose)
    return conduct.run(race, folder)


def require_no_plan(configs: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise UsageError unless the command line of a known race leaves the plan to race.json; note methods it names."""
    if overrides or not all(word.startswith("+") for word in configs):
        raise UsageError(
            "--resume takes the plan from race.json; leave out configs and overrides, but name methods of the working"
            " directory (+module:Class)."
        )
    for word in configs:
        changes_of(word)
