"""The fastest of several ways to build a training step of one's own, chosen by measured steps."""

import gc
import inspect
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from judging.ground import stdio
from judging.ground.cores import usable_cores
from timedrun.evidence.analysis.profiled_run import LOSSES
from timedrun.evidence.analysis.selection import TOLERANCE, Selection, Selector
from timedrun.evidence.analysis.step_times import StepTimes
from timedrun.methods import ChannelsLast, MaskedHead, Unpadding
from timedrun.methods.training.number_formats import emulated

TrainStep = Callable[[], Tensor | float]
"""Trains one step and returns its loss."""
CHUNK_SECONDS: Final = 0.2  # time of the steps that are measured one after another, at least


def choose(
    build: Callable[..., TrainStep],
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    tolerance: float | None = None,
    chunks: int = 8,
    minutes: float = 10,
    monotonic: Callable[[], float] = time.perf_counter,
) -> Selection[dict[str, Any]]:
    """Choose the changes that speed up a training step and leave its first losses as they were.

    All is measured in this process, two builds at a time, and standard error says what is next. A change of a global
    switch, such as `torch.backends.cudnn.benchmark`, must be set and unset in `build`.

    Args:
        build: returns a training step, from the same initial weights and batches at every call.
        changes: keyword arguments of `build` by the name of the change, each after those that it needs; the `methods`
            of several changes are joined. By default those of `suggested`.
        tolerance: relative difference of a loss that rounding explains; by default that of the number formats tried.
        chunks: turns of each build.
        minutes: length of the search, after which what helped alone is kept.

    Of the selection returned, `build(**selection.settings)` is the fastest step. `selection.report` prints it as
    `timedrun auto` does. Raises ValueError if the step as given or as chosen fails, or the chosen one changes the loss.

    Example::

        def build(methods=(), precision="fp32", compile=False):
            torch.manual_seed(1)
            model = stack(*methods).model(torchvision.models.resnet18())
            ...
            return train_step

        chosen = choose(build)
        print(chosen.report("ResNet-18"))
    """
    tried = suggested(build) if changes is None else changes
    if not tried:
        raise ValueError(f"build declares none of {', '.join(SUGGESTED)}: nothing can be tried; give `changes`.")
    until = monotonic() + 60 * minutes

    def changed(names: Sequence[str]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for name in names:
            settings |= {**tried[name], METHODS: (*settings.get(METHODS, ()), *tried[name].get(METHODS, ()))}
        return {name: value for name, value in settings.items() if name != METHODS or value}

    def measured(settings: Mapping[str, dict[str, Any]], _: bool) -> tuple[dict[str, StepTimes], dict[str, str]]:
        return step_times({name: partial(build, **setting) for name, setting in settings.items()}, chunks, monotonic)

    def setting(change: str) -> str:
        return change if METHODS in tried[change] else " ".join(sorted(tried[change]))

    def shown(text: str) -> None:
        stdio.stage(f"choose a step: {text}", terminal_only=False)

    if tolerance is None:
        formats = {"bf16" if change.get("tf32") else change.get("precision", "fp32") for change in tried.values()}
        tolerance = TOLERANCE["fp32" if formats == {"fp32"} else "bf16"]
    search = Selector(
        dict[str, Any](),
        list(tried),
        changed,
        measured,
        setting=setting,
        tolerance=tolerance,
        shown=shown,
        expired=lambda: monotonic() >= until,
    )
    chosen = search.run()
    stdio.stage("")
    return chosen


def suggested(build: Callable[..., object]) -> dict[str, dict[str, Any]]:
    """Return the changes that may pay on this machine, of the arguments of `build` that are among `SUGGESTED`.

    Examples:
        >>> suggested(lambda fused=False, batch=64: None)
        {'fused True': {'fused': True}}
    """
    values = {name: SUGGESTED[name]() for name in inspect.signature(build).parameters if name in SUGGESTED}
    return {f"{name} {_word(value)}": {name: value} for name, of in values.items() for value in of}


def _word(value: object) -> str:
    return ", ".join(type(method).__name__ for method in value) if isinstance(value, tuple) else str(value)


def _precisions() -> list[str]:
    """Return the 16-bit format with fast instructions: on a GPU, one of its tensor cores."""
    if not torch.cuda.is_available():
        return [] if emulated("bf16", "cpu") else ["bf16"]
    generation, _ = torch.cuda.get_device_capability()
    return ["bf16"] if generation >= 8 else ["fp16"] if generation == 7 else []


def _compiles() -> list[bool]:
    """Return [True] if inductor has what it compiles with: Triton on a GPU, a C++ compiler for a CPU."""
    if torch.cuda.is_available():
        return [True] * (torch.cuda.get_device_capability() >= (7, 0))
    return [True] * any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))


METHODS: Final = "methods"
SUGGESTED: Final[dict[str, Callable[[], Sequence[object]]]] = {
    METHODS: lambda: [(ChannelsLast(),), (Unpadding(),), (MaskedHead(),)],  # a model that one does not fit refuses it
    "channels_last": lambda: [True],
    "fused": lambda: [True],
    "tf32": lambda: [True] * (torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)),
    "precision": _precisions,
    "compile": _compiles,
    "workers": lambda: sorted({max(1, usable_cores() // 2), max(1, usable_cores() - 1), usable_cores()}),
}
"""Values that `suggested` returns of an argument, by its name: all keep the mathematics."""


def step_times(
    builds: Mapping[str, Callable[[], TrainStep]], chunks: int, monotonic: Callable[[], float]
) -> tuple[dict[str, StepTimes], dict[str, str]]:
    """Measure training steps in turns, in a random order; return their times and the reasons of those that failed."""
    steps: dict[str, TrainStep] = {}
    losses: dict[str, tuple[float, ...]] = {}
    failed: dict[str, str] = {}
    counts: dict[str, int] = {}
    for name, build in builds.items():
        try:
            step = build()
            losses[name] = tuple(float(step()) for _ in range(LOSSES))
            each = statistics.median(_seconds(step, 1, monotonic) for _ in range(3))
        except Exception as error:  # of the user's code: any
            failed[name] = f"{type(error).__name__}: {error}"
            continue
        steps[name], counts[name] = step, max(1, round(CHUNK_SECONDS / max(1e-9, each)))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    shuffled = random.Random(1)
    for _ in range(chunks):
        for name in shuffled.sample(sorted(steps), len(steps)):
            _seconds(steps[name], 1, monotonic)  # its data and instructions come back to the caches
            seconds[name].append(_seconds(steps[name], counts[name], monotonic))
    steps.clear()
    gc.collect()
    times = {name: StepTimes((0.5,), (tuple(taken),), losses=losses[name]) for name, taken in seconds.items()}
    return times, failed


def _seconds(step: TrainStep, count: int, monotonic: Callable[[], float]) -> float:
    """Return the seconds per step of `count` steps, the device's work included."""
    if cuda := torch.cuda.is_available():
        torch.cuda.synchronize()
    started = monotonic()
    for _ in range(count):
        step()
    if cuda:
        torch.cuda.synchronize()
    return (monotonic() - started) / count
