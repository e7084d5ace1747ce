"""Report of profiles: the parts of a step by position, what bounds a run, and what several changes give together."""

import os
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from judging.comparison.composition import composition
from judging.comparison.extrapolation import MOST_WAITING
from judging.ground import stdio
from judging.ground.errors import UsageError
from judging.pages.table import Table
from mlevents.terminal_escape import printable
from timedrun.evidence.analysis.profile import EVALUATION, Part, Profile
from timedrun.evidence.analysis.step_timer import LOADING, LOOP, METHOD
from timedrun.runner.config import RunConfig, digest
from timedrun.runner.process.progress import duration
from timedrun.runner.run.origin import of_measurements


class Profiled(NamedTuple):
    """A config under the label that the user gave it, and its profile."""

    label: str
    config: RunConfig
    profile: Profile


def as_values(profiled: Sequence[Profiled], *, synthetic_data: bool) -> dict[str, Any]:
    """Return a profile as JSON values, or several with what the changes from the first config give together; nothing,
    and a message says why, if they do not compose."""
    values = [
        {
            "benchmark": config.benchmark,
            "config": config.name,
            "label": label,
            "config_digest": digest(config),
            "synthetic_data": synthetic_data,
            "device": profile.device.type,
            "threads": torch.get_num_threads(),
            "global_batch": config.global_batch,
            **profile.as_values(),
            **of_measurements(profile.device.type),
        }
        for label, config, profile in profiled
    ]
    if len(values) == 1:
        return values[0]
    try:
        rows = composition(values)
    except UsageError as error:
        stdio.message(f"timedrun profile: {error}")
        rows = []
    return {"profiles": values, "composition": rows}


def show(profiled: Sequence[Profiled], composed: Sequence[dict[str, Any]]) -> None:
    """Print what several configs give together, with what is wrong with their measurement; without it each profile."""
    for label, config, profile in profiled:
        if composed:
            print("\n".join(stdio.fitted(printable(f"{label}: {line}"), 4) for line in warnings(profile)))
        else:
            show_parts(config, profile)
    if composed:
        show_composition(composed)


def show_parts(config: RunConfig, profile: Profile) -> None:
    """Print the table of parts by position, and below it estimates, bottleneck and bounds."""
    unit, scale = ("ms", 1e3) if max(profile.step_seconds) < 10 else ("s", 1.0)

    def cell(seconds: float) -> str:
        value = seconds * scale
        return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}" if value else "-"

    def gain(part: Part) -> list[str]:
        return [f"{part.share:.0%}", f"{part.bound:.2f}x" if part.share < 1 else "-"]

    sizes = [at.input for at in profile.positions]
    one_size = len({*sizes}) == 1
    rows = [] if one_size else [["input", *sizes, "", ""]]
    rows += [
        [name, *(cell(parts.get(name, 0.0)) for parts in profile.part_seconds), *gain(part)]
        for name, part in profile.parts.items()
        if name != EVALUATION
    ]
    training = Part(profile.training_seconds, profile.training_seconds / profile.run_seconds)
    rows.append(["step", *map(cell, profile.step_seconds), *gain(training)])
    if EVALUATION in profile.parts:
        rows.append([EVALUATION, *["-"] * len(sizes), *gain(profile.parts[EVALUATION])])
    threads = torch.get_num_threads()
    where = f"{profile.device.type}, {threads} thread{'s' * (threads > 1)}"
    batch = f"batch {config.global_batch}{f' of {sizes[0]}' if one_size and sizes[0] else ''}"
    print(stdio.fitted(printable(f"{config.name} on {where}, {batch}: {unit} per step, by progress of the run"), 0))
    Table(["part", *(f"{at.progress:.0%}" for at in profile.positions), "of run", "if free"], rows).show()
    print()
    for line in sentences(config, profile):
        print(stdio.fitted(printable(line), 4))


def show_composition(rows: Sequence[dict[str, Any]]) -> None:
    """Print what each config saves, alone and after the others, and all together by prediction."""

    def column(part: str) -> str:
        return "method calls" if part.startswith(METHOD) else part

    names = dict.fromkeys(column(part) for row in rows for part in row["parts"])
    cells = []
    for row in rows:
        parts = dict.fromkeys(names, 0.0)
        for part, seconds in row["parts"].items():
            parts[column(part)] += seconds
        times = [f"{1e3 * seconds:.2f}" for seconds in (*parts.values(), row["seconds_per_step"])]
        saves, after = f"{row['saves']:.1%}" if row is not rows[0] else "-", row["saves_after_the_others"]
        cells.append([row["config"], *times, _time(row["seconds"]), saves, "-" if after is None else f"{after:.1%}"])
    print("\nms per step over the whole schedule; the last row is predicted from those above it (Amdahl's law)")
    Table(["config", *names, "step", "run", "saves", "after the others"], cells).show()
    gain = rows[0]["seconds"] / rows[-1]["seconds"]
    told_by_race = "`timedrun race` measures it, and the steps that each config needs to its target"
    print(f"\nall together, at equal steps: {gain:.2f}x as fast as {rows[0]['config']}; {told_by_race}")


def sentences(config: RunConfig, profile: Profile) -> list[str]:
    """Return estimates, bottleneck and bounds in words."""
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
    if within := [method.name for method in config.methods if METHOD + method.name not in profile.parts]:
        lines.append(f"part of the model or the loader, without a call of their own in a step: {', '.join(within)}")
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
    busy = statistics.fmean(profile.busy) if profile.busy else 0.0
    words = {
        "computing": f"the processor (forward, backward, optimizer; {cores:.1f} of {os.cpu_count()} cores used)",
        "host": f"the host, which launches kernels too slowly: the GPU idles for {1 - busy:.0%} of a step",
        LOADING: "the loader: training waits for data",
        LOOP: "the training loop between its calls of model, optimizer and methods",
    }
    if name == "computing" and profile.busy:
        return f"the GPU (forward, backward, optimizer; busy for {busy:.0%} of a step)"
    return words.get(name, name)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 90 else duration(seconds)
