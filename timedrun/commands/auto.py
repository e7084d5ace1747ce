"""`timedrun auto`: the fastest settings of a config on this machine, chosen by measured steps."""

import argparse
import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from judging.ground import stdio
from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import write_json
from judging.pages.table import Table
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.selection import CHOSEN, GIVEN, Selection, Selector, verdict
from timedrun.analysis.step_times import StepTimes, step_times
from timedrun.benchmark import Benchmark
from timedrun.commands.chosen_config import settings_of
from timedrun.commands.profile import require_file, require_runnable
from timedrun.config import RunConfig, digest, dump
from timedrun.config_choice import FILE, config_of, with_text
from timedrun.preflight import checks
from timedrun.recipes.measured import MEASURED, measured_recipe
from timedrun.run.progress import duration
from timedrun.storage.method_sources import changes_naming

STEPS: Final = StepPlan(positions=(0.1, 0.5, 0.9), chunks=3, chunk=5, skip=2, evaluate=False)
TOLERANCE: Final = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""Relative difference of the first losses that rounding explains, by precision."""
_with_text = cache(with_text)  # which the search asks for again and again: 0.06 s each


def auto(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    started = time.monotonic()
    benchmark, config = settings_of(arguments, rest)
    out = arguments.out or Path(f"{config.name}_auto.json")
    require_file("--out", out)
    if out.suffix != FILE:
        raise UsageError(f"--out {out}: only a config file whose name ends in {FILE} can be run; nothing was measured.")
    if out.exists():
        raise UsageError(f"{out} exists; nothing was measured. Set another name with --out.")
    given = config.name
    if arguments.level == 2:
        recipe = measured_recipe(benchmark.name, config)
        try:
            config = (
                recipe.at(config_of(benchmark, recipe.config, None, rest), arguments.budget)
                if recipe
                else config.with_recipe(arguments.budget, rest)
            )
        except UsageError as error:
            raise UsageError(
                f"{error} Recipes: {'; '.join(each.budgets for each in MEASURED)}; imagenet: 9 epochs or more."
            ) from None
    elif arguments.budget:
        raise UsageError("--budget chooses the recipe of -O2; -O1 leaves the schedule as it is.")
    require_runnable(benchmark, [config], arguments)

    def left() -> float:
        return float(60 * arguments.minutes - (time.monotonic() - started))

    def measured(configs: Mapping[str, RunConfig], limited: bool) -> tuple[dict[str, StepTimes], dict[str, str]]:
        seconds = left() / 2 if limited else math.inf  # a long warm-up, such as compiling, leaves time for the rest
        folder, threads = arguments.data_folder, arguments.threads
        return step_times(benchmark.name, configs, STEPS, data_folder=folder, threads=threads, seconds=seconds)

    asked = [name for name in TOLERANCE if f"precision {name}" in arguments.tried]
    selector = Selector(
        config,
        [*config.equivalents(), *arguments.tried],
        lambda changes: changed(benchmark, config, changes, arguments),
        measured,
        setting=lambda change: change.split()[0],
        tolerance=max(TOLERANCE[name] for name in (config.precision, *asked)),
        expired=lambda: left() <= 0,
        shown=lambda text: stdio.stage(f"timedrun auto: {text}", terminal_only=False),
    )
    try:
        done = selector.run()
    except ValueError as error:
        raise TimedrunError(f"{error}; {out} was not written.") from None
    stdio.stage("")
    late = f"not measured before the time was over: {', '.join(done.unmeasured)}; give more --minutes or fewer --try"
    if done.unmeasured and not selector.losses:
        stdio.message(f"timedrun auto: {late}; {out} was not written.")
        return ExitCode.INCONCLUSIVE
    notes = f"timedrun auto -O{arguments.level} from {given}: {'; '.join(done.sentences)}. {config.notes}"
    chosen = replace(done.settings, name=f"{config.name}_auto", notes=notes)
    settings = dump(chosen)
    write_json(out, settings)
    if arguments.json:
        values = {"config": str(out), "config_digest": digest(chosen), "seconds": time.monotonic() - started}
        print(json.dumps({"benchmark": benchmark.name, "given": given, **values, **done.as_values()}, indent=2))
    else:
        show(config, done)
        word = shlex.quote(f"{out}{changes_naming(settings)}")
        print(f"{out}: run it with `timedrun run {benchmark.name} {word}`")
        print(f"chosen in {duration(time.monotonic() - started)}")
    if done.unmeasured:
        stdio.message(f"timedrun auto: {late}")
    return ExitCode.INCONCLUSIVE if done.unmeasured else ExitCode.OK


def changed(benchmark: Benchmark, config: RunConfig, changes: Sequence[str], given: argparse.Namespace) -> RunConfig:
    """Return `config` with `changes`; raise UsageError if they do not fit together, or this machine."""
    for change in changes:
        try:
            config = _with_text(config, change)
        except SystemExit:  # of the parser, which has written what it lacks
            raise UsageError(f"--try {change!r} is no setting of {config.name} and no method") from None
    problems = checks.settings_problems(benchmark, config, 1)
    problems = problems or checks.device_problems(config, 1, emulation=given.emulated_precision)
    if problems := problems or checks.data_problems(benchmark, config, 1, given.data_folder):
        raise UsageError("; ".join(dict.fromkeys(problem.rstrip(".") for problem in problems)))
    return config


def show(config: RunConfig, selection: Selection[RunConfig]) -> None:
    """Print the evidence for each change, and the speed-up of all."""
    rows = [
        [evidence.change, "kept" if evidence.kept else "dropped", verdict(evidence)]
        for evidence in selection.evidence.values()
    ]
    Table(["change", "", "step, with it over without it [95 %]"], rows).show()
    print()
    if selection.speed_up is None:
        print(f"no change {'that was measured ' if selection.unmeasured else ''}pays: {config.name} stays as it is")
        return
    given, chosen = (selection.times[name].seconds * 1e3 for name in (GIVEN, CHOSEN))
    print(f"{config.name}: {given:.2f} ms per step; chosen: {chosen:.2f} ms: {selection.speed_up.text()}")
    print(f"losses of the first steps differ by at most {selection.loss:.1e}")
