"""`timedrun profile`: where the time of a config's run goes, from a few of its steps."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import ResultPaths, write_json
from timedrun.commands.chosen_config import resources_of
from timedrun.evidence.analysis import profile as analysis
from timedrun.evidence.analysis import profile_report
from timedrun.evidence.analysis.profile_report import Profiled
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_benchmark import measure_steps, show_steps, values_of
from timedrun.evidence.config_sides import sides_of
from timedrun.evidence.preflight import checks
from timedrun.evidence.preflight.machine_checks import require_file
from timedrun.runner.benchmark import find
from timedrun.runner.provenance import system
from timedrun.runner.run.origin import set_threads


def profile(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    if not arguments.benchmark or not arguments.configs:
        raise UsageError("name a benchmark and at least one config: timedrun profile BENCHMARK CONFIG [CONFIG ...]")
    benchmark = find(arguments.benchmark, working_directory=True)
    sides = sides_of(benchmark, arguments.configs, arguments.data, rest, verb="profile")
    require_file("--out", arguments.out)
    configs, options = [side.config for side in sides], resources_of(arguments, ResultPaths(Path(), 0))
    with TemporaryDirectory() as folder:
        if arguments.synthetic:
            if (make := benchmark.hook("datasets", "synthetic")) is None:
                raise UsageError(
                    f"{benchmark.name} makes no synthetic data: its datasets.py has no function `synthetic`; leave out"
                    " --synthetic, and give the data with --data-folder."
                )
            configs = [make(config, Path(folder)) for config in configs]
            made = any(Path(folder).iterdir())  # unless runs make the data themselves
            options = replace(options, data_folder=Path(folder) if made else None)
        warned = checks.check_steps(benchmark, configs, options, verb="profile")
        set_threads(options.threads)
        plan = StepPlan(
            chunks=-(-arguments.steps // StepPlan.chunk),
            skip=2 + max([3, *(getattr(getattr(config, "data", None), "prefetch", 0) for config in configs)]),
            evaluate=arguments.evaluation and not arguments.interleaved,
        )
        labels, data_folder = [side.label for side in sides], options.data_folder
        if arguments.interleaved:
            stdio.stage(f"timedrun profile: steps of {len(sides)} configs in turns", terminal_only=False)
            named, threads = [*zip(labels, configs, strict=True)], options.threads
            rows, failed = measure_steps(benchmark, named, plan, data_folder, threads)
            told = {"threads": threads, "warnings": warned, **values_of(rows, failed)}
            told["environment"] = system.environment().splitlines()
        else:
            shown = not arguments.json
            profiles = [analysis.profile(benchmark, of, plan, data_folder, shown=shown) for of in configs]
            measured = [*map(Profiled, labels, configs, profiles)]
            told = profile_report.as_values(measured, synthetic_data=arguments.synthetic)
    stdio.stage("")
    if arguments.out:
        write_json(arguments.out, told)
    if arguments.json:
        print(json.dumps(told, indent=2))
    elif arguments.interleaved:
        show_steps(rows, failed)
    else:
        profile_report.show(measured, told.get("composition", ()))
    return ExitCode.OK
