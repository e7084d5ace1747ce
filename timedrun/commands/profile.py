"""`timedrun profile`: where the time of a config's run goes, from a few of its steps."""

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from judging.comparison.composition import after_the_others, run_seconds, step_seconds, together
from judging.comparison.extrapolation import MOST_WAITING, Rates, over_schedule
from judging.ground import stdio
from judging.ground.errors import ExitCode, PreflightError, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths, write_json
from judging.pages.table import Table
from mlevents.terminal_escape import printable
from timedrun.analysis import profile as analysis
from timedrun.analysis.profile import EVALUATION, Part, Profile
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_benchmark import measure_steps, show_steps
from timedrun.analysis.step_timer import LOADING, LOOP, METHOD
from timedrun.benchmark import Benchmark, find
from timedrun.config import RunConfig, digest
from timedrun.distributed.process_group import choose_device
from timedrun.distributed.process_times import CpuReading
from timedrun.evidence.config_sides import ConfigSide as Side
from timedrun.evidence.config_sides import sides_of
from timedrun.preflight import checks, machine_checks
from timedrun.provenance import source, system
from timedrun.run.origin import set_threads
from timedrun.run.progress import duration
from timedrun.run.worker import LaunchOptions
from timedrun.storage.benchmark_folders import ROOT


def profile(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    benchmark, sides = sides_given(arguments, rest)
    trace: Path | None = arguments.trace
    for option, path in (("--trace", trace), ("--out", arguments.out)):
        require_file(option, path)
    if trace is not None and (len(sides) > 1 or arguments.interleaved):
        raise UsageError("--trace shows the steps of one config, without --interleaved; nothing was measured.")
    with TemporaryDirectory() as folder:
        if arguments.synthetic:
            sides = [replace(side, config=on_synthetic_data(benchmark, side, Path(folder))) for side in sides]
            arguments.data_folder = Path(folder) if any(Path(folder).iterdir()) else None
        warned = require_runnable(benchmark, [side.config for side in sides], arguments)
        set_threads(arguments.threads)
        plan = StepPlan(
            positions=tuple(number / (arguments.positions - 1) for number in range(arguments.positions)),
            chunks=-(-arguments.steps // StepPlan.chunk),
            skip=arguments.skip,
            evaluate=arguments.evaluation,
        )
        if arguments.interleaved:
            return interleaved(benchmark, sides, plan, arguments, warned)
        place = {"data_folder": arguments.data_folder, "trace": trace, "shown": not arguments.json}
        measured = [analysis.profile(benchmark, side.config, plan, **place) for side in sides]
    stdio.stage("")
    values = [values_of(benchmark, side, of_side, arguments) for side, of_side in zip(sides, measured, strict=True)]
    try:
        told = composition(values) if len(values) > 1 else values[0]
    except UsageError as error:
        told = {"profiles": values, "composition": []}
        stdio.message(f"timedrun profile: {error}")
    if arguments.out:
        write_json(arguments.out, told)
    if arguments.json:
        print(json.dumps(told, indent=2))
        return ExitCode.OK
    for side, of_side in zip(sides, measured, strict=True):
        show(side, of_side, not told.get("composition"))
    if told.get("composition"):
        show_composition(told)
    if trace is not None:
        print(f"Chrome trace: {trace} (chrome://tracing or ui.perfetto.dev)")
    return ExitCode.OK


def interleaved(
    benchmark: Benchmark, sides: Sequence[Side], plan: StepPlan, arguments: argparse.Namespace, warned: Sequence[str]
) -> ExitCode:
    """Measure whole steps of all configs in turns; raise TimedrunError if the steps of none could be measured."""
    stdio.stage(f"timedrun profile: steps of {len(sides)} configs in turns", terminal_only=False)
    place = {"data_folder": arguments.data_folder, "threads": arguments.threads}
    configs = [(side.label, side.config) for side in sides]
    rows, failed = measure_steps(benchmark, configs, plan=replace(plan, evaluate=False), **place)
    stdio.stage("")
    if not rows:
        raise TimedrunError("; ".join(f"{label}: {reason}" for label, reason in failed.items()))
    told = {
        "threads": arguments.threads,
        "warnings": list(warned),
        "rows": [row.as_values(rows[0]) for row in rows],
        "failed": failed,
        "source": source.provenance(ROOT),
        "system": system.describe("", "", ranks=1, device=choose_device(rows[0].config.device).type),
        "environment": system.environment().splitlines(),
    }
    if arguments.out:
        write_json(arguments.out, told)
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        show_steps(rows, failed)
    return ExitCode.OK


def sides_given(arguments: argparse.Namespace, rest: list[str]) -> tuple[Benchmark, list[Side]]:
    """Return the benchmark and the configs that a command line names; raise UsageError if it names none."""
    if not arguments.benchmark or not arguments.configs:
        raise UsageError("name a benchmark and at least one config: timedrun profile BENCHMARK CONFIG [CONFIG ...]")
    benchmark = find(arguments.benchmark, working_directory=True)
    return benchmark, sides_of(benchmark, arguments.configs, arguments.data, rest, verb="profile")


def on_synthetic_data(benchmark: Benchmark, side: Side, folder: Path) -> RunConfig:
    """Return the config of `side` on random data, which is written to `folder` if runs read it from files."""
    make = benchmark.hook("datasets", "synthetic")
    if make is None:
        raise UsageError(
            f"{benchmark.name} makes no synthetic data: its datasets.py has no function `synthetic`; leave out"
            " --synthetic, and give the data with --data-folder."
        )
    made: RunConfig = make(side.config, folder)
    return made


def values_of(benchmark: Benchmark, side: Side, measured: Profile, arguments: argparse.Namespace) -> dict[str, Any]:
    config = side.config
    return {
        "benchmark": benchmark.name,
        "config": config.name,
        "label": side.label,
        "config_digest": digest(config),
        "synthetic_data": arguments.synthetic,
        "device": measured.device.type,
        "threads": torch.get_num_threads(),
        "global_batch": config.global_batch,
        **measured.as_values(),
        "source": source.provenance(ROOT),
        "system": system.describe("", "", ranks=1, device=measured.device.type),
    }


def composition(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the profiles, and what the changes from the first config to each of the others give together."""
    rates = [
        Rates.of(of | {"config": of["label"], "evaluation_seconds": of["evaluation_seconds"] or 0.0}) for of in values
    ]
    base, *alone = rates
    predicted = together(base, alone)
    rows = []
    for side, after in zip([*rates, predicted], [None, *after_the_others(base, alone), None], strict=True):
        progress, parts = [at.progress for at in side.positions], [at.parts for at in side.positions]
        rows.append(
            {
                "config": side.config,
                "parts": {
                    name: over_schedule(progress, [of.get(name, 0.0) for of in parts])
                    for name in dict.fromkeys(name for of in parts for name in of)
                },
                "seconds_per_step": step_seconds(side),
                "seconds": run_seconds(side),
                "saves": 1 - run_seconds(side) / run_seconds(base),
                "saves_after_the_others": after,
            }
        )
    return {"profiles": list(values), "composition": rows}


def show_composition(told: dict[str, Any]) -> None:
    """Print what each config saves, alone and after the others, and all together by prediction."""
    rows = told["composition"]
    names = dict.fromkeys("method calls" if name.startswith(METHOD) else name for row in rows for name in row["parts"])
    cells = []
    for row in rows:
        parts = dict.fromkeys(names, 0.0)
        for name, seconds in row["parts"].items():
            parts["method calls" if name.startswith(METHOD) else name] += seconds
        after = row["saves_after_the_others"]
        last = [f"{row['saves']:.1%}" if row is not rows[0] else "-", "-" if after is None else f"{after:.1%}"]
        cells.append([row["config"], *(f"{1e3 * seconds:.2f}" for seconds in parts.values()), *last])
        cells[-1][-2:-2] = [f"{1e3 * row['seconds_per_step']:.2f}", _time(row["seconds"])]
    print("\nms per step over the whole schedule; the last row is predicted from those above it (Amdahl's law)")
    Table(["config", *names, "step", "run", "saves", "after the others"], cells).show()
    gain = rows[0]["seconds"] / rows[-1]["seconds"]
    told_by_race = "`timedrun race` measures it, and the steps that each config needs to its target"
    print(f"\nall together, at equal steps: {gain:.2f}x as fast as {rows[0]['config']}; {told_by_race}")


def require_file(option: str, path: Path | None) -> None:
    """Raise UsageError if no file can be written to the `path` of `option`, as there is a folder, or none for it."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        problem = "this is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        raise UsageError(f"{option} {path}: {problem}; nothing was measured.")


def require_runnable(benchmark: Benchmark, configs: Iterable[RunConfig], arguments: argparse.Namespace) -> list[str]:
    """Raise PreflightError with every reason why a config cannot be trained here by one process; warn of other load,
    and return the warnings."""
    before = CpuReading.now()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("steps are measured on one rank; start it without a launcher, or `unset WORLD_SIZE`.")
    options = LaunchOptions(paths=ResultPaths(Path(), 0), threads=arguments.threads)
    for config in configs:
        failures = [
            *checks.settings_problems(benchmark, config, 1),
            *checks.launch_problems(config, options),
            *checks.device_problems(config, 1, emulation=arguments.emulated_precision),
            *checks.data_problems(benchmark, config, 1, arguments.data_folder),
        ]
        if failures:
            raise PreflightError(failures)
    warnings = machine_checks.load_problems(before, arguments.threads)
    for problem in warnings:
        stdio.message(f"timedrun {arguments.verb}: warning: {problem}")
    return warnings


def show(side: Side, profile: Profile, alone: bool) -> None:
    """Print the table of parts by position, and below it estimates, bottleneck, bounds and overhead; of several
    configs only what is wrong with the measurement."""
    if not alone:
        print("\n".join(stdio.fitted(printable(f"{side.label}: {line}"), 4) for line in warnings(profile)))
        return
    config = side.config
    unit, scale = ("ms", 1e3) if max(profile.step_seconds) < 10 else ("s", 1.0)

    def cell(seconds: float) -> str:
        value = seconds * scale
        return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}" if value else "-"

    def gain(part: Part) -> list[str]:
        return [f"{part.share:.0%}", f"{part.bound:.2f}x" if part.share < 1 else "-"]

    rows = [
        [name, *(cell(parts.get(name, 0.0)) for parts in profile.part_seconds), *gain(part)]
        for name, part in profile.parts.items()
        if name != EVALUATION
    ]
    training = Part(profile.training_seconds, profile.training_seconds / profile.run_seconds)
    rows.append(["step", *map(cell, profile.step_seconds), *gain(training)])
    if EVALUATION in profile.parts:
        rows.append([EVALUATION, *["-"] * len(profile.positions), *gain(profile.parts[EVALUATION])])
    threads = torch.get_num_threads()
    where = f"{profile.device.type}, {threads} thread{'s' * (threads > 1)}"
    sizes = [at.input for at in profile.positions]
    of = f" of {sizes[0]}" if len({*sizes}) == 1 and sizes[0] else ""
    rows[:0] = [] if len({*sizes}) == 1 else [["input", *sizes, "", ""]]
    title = f"{config.name} on {where}, batch {config.global_batch}{of}: {unit} per step, by progress of the run"
    print(stdio.fitted(printable(title), 0))
    Table(["part", *(f"{at.progress:.0%}" for at in profile.positions), "of run", "if free"], rows).show()
    print()
    for line in sentences(config, profile):
        print(stdio.fitted(printable(line), 4))


def sentences(config: RunConfig, profile: Profile) -> list[str]:
    """Return estimates, bottleneck, bounds and overhead in words."""
    name, part = profile.bottleneck
    evaluations = f"{profile.evaluations:,} evaluations (not measured)"
    if (each := profile.evaluation_seconds) is not None:
        evaluations = f"{profile.evaluations:,} evaluations of {_time(each)}"
    lines = [
        f"whole schedule, if the target does not end it: {profile.steps:,} steps, {_time(profile.training_seconds)},"
        f" and {evaluations}: {_time(profile.run_seconds)}",
        f"bottleneck: {_resource(profile, name)}: {part.share:.0%} of the run; methods that speed up nothing else gain"
        f" at most {part.bound:.2f}x",
    ]
    middle = len(profile.positions) // 2
    if profile.without_model is None:
        lines.append(f"without the model: not measured ({profile.without_model_reason})")
    else:
        lines.append(
            f"without the model: {_time(profile.without_model)} per step for loader, methods and loop; a change of the"
            f" model alone gains at most {profile.step_seconds[middle] / profile.without_model:.2f}x per step"
        )
    if within := [method.name for method in config.methods if METHOD + method.name not in profile.parts]:
        lines.append(f"part of the model or the loader, without a call of their own in a step: {', '.join(within)}")
    if threads := profile.positions[middle].background:
        shown = ", ".join(f"{name.removeprefix(METHOD)} {_time(seconds)}" for name, seconds in threads.items())
        lines.append(f"in the loader's threads, while steps run: {shown} per step")
    overhead = profile.overheads
    lines.append(
        f"overhead: steps divided into parts took {statistics.median(overhead):+.1%} ({min(overhead):+.0%} to"
        f" {max(overhead):+.0%} in pairs of {StepPlan.chunk} steps); the times above are of undivided steps"
    )
    return lines + warnings(profile)


def warnings(profile: Profile) -> list[str]:
    waited = statistics.fmean(at.waited for at in profile.positions)
    busy = (
        f"warning: the training thread waited for a core for {waited:.0%} of the time, since other processes use"
        " them: times and shares are those of a busy machine; repeat on an idle one"
    )
    return [busy] * (waited > MOST_WAITING)


def _resource(profile: Profile, name: str) -> str:
    cores = statistics.fmean(at.cores for at in profile.positions)
    busy = statistics.fmean(use.busy for use in profile.use) if profile.use else 0.0
    words = {
        "computing": f"the processor (forward, backward, optimizer; {cores:.1f} of {os.cpu_count()} cores used)",
        "host": f"the host, which launches kernels too slowly: the GPU idles for {1 - busy:.0%} of a step",
        LOADING: "the loader: training waits for data",
        LOOP: "the training loop between its calls of model, optimizer and methods",
    }
    if name == "computing" and profile.use:
        return f"the GPU (forward, backward, optimizer; busy for {busy:.0%} of a step)"
    return words.get(name, name)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 90 else duration(seconds)
