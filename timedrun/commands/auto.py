"""`timedrun auto`: the fastest settings of a config on this machine, chosen by measured steps."""

import argparse
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths, write_json
from timedrun.commands.chosen_config import resources_of, settings_of
from timedrun.evidence.analysis.measured_recipe import MEASURED, measured_recipe
from timedrun.evidence.analysis.selection import selector
from timedrun.evidence.preflight import checks
from timedrun.evidence.preflight.machine_checks import require_file
from timedrun.runner.config import RunConfig, digest, dump
from timedrun.runner.config_choice import FILE, config_of, with_text
from timedrun.runner.process.progress import duration
from timedrun.runner.storage.method_sources import changes_naming


def auto(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    started = time.monotonic()
    benchmark, given = settings_of(arguments, rest)
    out, level, budget = arguments.out or Path(f"{given.name}_auto.json"), arguments.level, arguments.budget
    require_file("--out", out)
    if out.suffix != FILE:
        raise UsageError(f"--out {out}: only a config file whose name ends in {FILE} can be run; nothing was measured.")
    if out.exists():
        raise UsageError(f"{out} exists; nothing was measured. Set another name with --out.")
    if budget and level == 1:
        raise UsageError("--budget chooses the recipe of -O2; -O1 leaves the schedule as it is.")
    config, recipe = given, measured_recipe(benchmark.name, given)
    try:
        if level == 2:
            ours = recipe and recipe.at(config_of(benchmark, recipe.config, None, rest), budget)
            config = ours or given.with_recipe(budget, rest)
    except UsageError as error:
        known = "; ".join(each.budgets for each in MEASURED)
        raise UsageError(f"{error} Recipes: {known}; imagenet: 9 epochs or more.") from None
    options = resources_of(arguments, ResultPaths(Path(), 0))
    checks.check_steps(benchmark, [config], options, verb="auto")

    def changed(changes: Sequence[str]) -> RunConfig:
        settings = config
        for change in changes:
            try:
                settings = with_text(settings, change)
            except SystemExit:  # of the parser, which has written what it lacks
                raise UsageError(f"--try {change!r} is no setting of {settings.name} and no method") from None
        if problems := next(filter(None, checks.step_problems(benchmark, settings, options)), None):
            raise UsageError("; ".join(dict.fromkeys(problem.rstrip(".") for problem in problems)))
        return settings

    search = selector(config, arguments.tried, changed, options, until=started + 60 * arguments.minutes)
    try:
        done = search.run()
    except ValueError as error:
        raise TimedrunError(f"{error}; {out} was not written.") from None
    late = f"not measured before the time was over: {', '.join(done.unmeasured)}; give more --minutes or fewer --try"
    if done.unmeasured and not search.losses:
        stdio.message(f"timedrun auto: {late}; {out} was not written.")
        return ExitCode.INCONCLUSIVE
    notes = f"timedrun auto -O{level} from {given.name}: {'; '.join(done.sentences)}. {config.notes}"
    chosen = replace(done.settings, name=f"{config.name}_auto", notes=notes)
    settings, seconds = dump(chosen), time.monotonic() - started
    write_json(out, settings)
    command = shlex.join(["timedrun", "run", benchmark.name, f"{out}{changes_naming(settings)}"])
    text = [done.report(config.name), f"{out}: run it with `{command}`", f"chosen in {duration(seconds)}"]
    told = {"config": str(out), "config_digest": digest(chosen), "seconds": seconds, **done.as_values()}
    told = {"benchmark": benchmark.name, "given": given.name, **told}
    stdio.report("\n".join(text), told, as_json=arguments.json)
    if done.unmeasured:
        stdio.message(f"timedrun auto: {late}")
    return ExitCode.INCONCLUSIVE if done.unmeasured else ExitCode.OK
