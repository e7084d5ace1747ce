"""`timedrun profile`: where the time of a config's run goes, from a few of its steps."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable
from pathlib import Path

import torch

from judging.comparison.extrapolation import MOST_WAITING
from judging.ground import stdio
from judging.ground.errors import ExitCode, PreflightError, UsageError
from judging.pages.table import Table
from mlevents.terminal_escape import printable
from timedrun.analysis import profile as analysis
from timedrun.analysis.profile import EVALUATION, Part, Profile
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_timer import LOADING, LOOP, METHOD
from timedrun.benchmark import Benchmark
from timedrun.commands.run import settings_of
from timedrun.config import RunConfig, digest
from timedrun.preflight import checks
from timedrun.provenance import source, system
from timedrun.run.progress import duration
from timedrun.storage.benchmark_folders import ROOT


def profile(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    benchmark, config = settings_of(arguments, rest)
    trace: Path | None = arguments.trace
    if trace is not None and not trace.parent.is_dir():
        raise UsageError(f"--trace {trace}: the folder {trace.parent} does not exist; nothing was measured.")
    require_runnable(benchmark, [config], arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    plan = StepPlan(
        positions=tuple(number / (arguments.positions - 1) for number in range(arguments.positions)),
        chunks=-(-arguments.steps // StepPlan.chunk),
        skip=arguments.skip,
        evaluate=arguments.evaluation,
    )
    shown, folder = not arguments.json, arguments.data_folder
    measured = analysis.profile(benchmark, config, plan, data_folder=folder, trace=trace, shown=shown)
    stdio.stage("")
    if arguments.json:
        values = {
            "benchmark": benchmark.name,
            "config": config.name,
            "config_digest": digest(config),
            "device": measured.device.type,
            "threads": torch.get_num_threads(),
            "global_batch": config.global_batch,
            **measured.as_values(),
            "source": source.provenance(ROOT),
            "system": system.describe("", "", ranks=1, device=measured.device.type),
        }
        print(json.dumps(values, indent=2))
    else:
        show(config, measured)
        if trace is not None:
            print(f"Chrome trace: {trace} (chrome://tracing or ui.perfetto.dev)")
    return ExitCode.OK


def require_runnable(benchmark: Benchmark, configs: Iterable[RunConfig], arguments: argparse.Namespace) -> list[str]:
    """Raise PreflightError with every reason why a config cannot be trained here by one process; warn of other load,
    and return the warnings."""
    before = checks.CpuReading.now()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("steps are measured on one rank; start it without a launcher, or `unset WORLD_SIZE`.")
    for config in configs:
        failures = [
            *checks.settings_problems(benchmark, config, 1),
            *checks.device_problems(config, 1, emulation=arguments.emulated_precision),
            *checks.data_problems(benchmark, config, 1, arguments.data_folder),
        ]
        if failures:
            raise PreflightError(failures)
    warnings = checks.load_problems(before, arguments.threads)
    for problem in warnings:
        stdio.message(f"timedrun {arguments.verb}: warning: {problem}")
    return warnings


def show(config: RunConfig, profile: Profile) -> None:
    """Print the table of parts by position, and below it estimates, bottleneck, bounds and overhead."""
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
    title = f"{config.name} on {where}, batch {config.global_batch}: {unit} per step, by progress of the run"
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
    waited = statistics.fmean(at.waited for at in profile.positions)
    if waited > MOST_WAITING:
        lines.append(
            f"warning: the training thread waited for a core for {waited:.0%} of the time, since other processes use"
            " them: times and shares are those of a busy machine; repeat on an idle one"
        )
    return lines


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
