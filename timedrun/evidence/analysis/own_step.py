"""The fastest of several ways to build a training step of one's own, chosen by measured steps."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from judging.ground import stdio
from timedrun.evidence.analysis.profiled_run import LOSSES
from timedrun.evidence.analysis.selection import Selection, Selector
from timedrun.evidence.analysis.step_times import StepTimes

TrainStep = Callable[[], Tensor | float]
"""Trains one step and returns its loss."""
CHUNK_SECONDS: Final = 0.2  # time of the steps that are measured one after another, at least


def choose(
    build: Callable[..., TrainStep],
    changes: Mapping[str, Mapping[str, Any]],
    *,
    tolerance: float = 1e-4,
    chunks: int = 8,
    monotonic: Callable[[], float] = time.perf_counter,
) -> Selection[dict[str, Any]]:
    """Choose the changes that speed up a training step and leave its first losses as they were.

    All is measured in this process, two builds at a time, and standard error says what is next. A change of a global
    switch, such as `torch.backends.cudnn.benchmark`, must be set and unset in `build`.

    Args:
        build: returns a training step, from the same initial weights and batches at every call.
        changes: keyword arguments of `build` by the name of the change, each after those that it needs.
        tolerance: relative difference of a loss that rounding explains.
        chunks: turns of each build.

    Of the selection returned, `build(**selection.settings)` is the fastest step. Raises ValueError if the step as given
    or as chosen fails, or the chosen one changes the loss.

    Example::

        def build(channels_last=False, fused=False):
            torch.manual_seed(1)
            model = torchvision.models.resnet18()
            ...
            return train_step

        chosen = choose(build, {"channels last": {"channels_last": True}, "fused": {"fused": True}})
        print("\\n".join(chosen.sentences))
    """

    def changed(names: Sequence[str]) -> dict[str, Any]:
        return {name: value for change in names for name, value in changes[change].items()}

    def measured(settings: Mapping[str, dict[str, Any]], _: bool) -> tuple[dict[str, StepTimes], dict[str, str]]:
        return step_times({name: partial(build, **setting) for name, setting in settings.items()}, chunks, monotonic)

    def setting(change: str) -> str:
        return " ".join(sorted(changes[change]))

    def shown(text: str) -> None:
        stdio.stage(f"choose a step: {text}", terminal_only=False)

    given: dict[str, Any] = {}
    search = Selector(given, list(changes), changed, measured, setting=setting, tolerance=tolerance, shown=shown)
    chosen = search.run()
    stdio.stage("")
    return chosen


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
    times = {name: StepTimes((0.5,), (tuple(taken),), 1, losses=losses[name]) for name, taken in seconds.items()}
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
