"""Moments on a device's timeline: the host's clock for a CPU, events of the current stream for CUDA."""

import time
from collections.abc import Callable
from typing import cast

import torch

Stamp = float | torch.cuda.Event


def stamp(device: torch.device, monotonic: Callable[[], float] = time.perf_counter) -> Stamp:
    """Return the present moment of `device`, without waiting for it."""
    if device.type != "cuda":
        return monotonic()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin: Stamp, end: Stamp) -> float:
    """Return the seconds from `begin` to `end`, both of one device, which has passed them."""
    if isinstance(begin, float) or isinstance(end, float):
        return cast(float, end) - cast(float, begin)
    return begin.elapsed_time(end) / 1e3  # type: ignore[no-any-return]
