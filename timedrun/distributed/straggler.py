"""How long each rank works on a step by itself, without the waiting for others, so that a slow one can be named."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from timedrun.distributed.process_group import DDPInner, ProcessGroup

Part = Literal["loading", "computing"]
PARTS: Final[tuple[Part, ...]] = ("loading", "computing")
CHECKS: Final = 3
"""A rank is slow that was at so many checks one after the other."""
RATIO: Final = 1.5
"""Of its time to the median rank's, for one part of a step."""
LEAST_SECONDS: Final = 0.010
"""More than the median rank's."""
LEAST_SHARE: Final = 0.1
"""More than the median rank's, for the whole of its own work: what hides behind other work slows nobody. A host that
runs ahead of its GPU may seem to load while it waits for the others; then its whole is not longer than theirs."""
UNKNOWN: Final = -1.0
HOOKED: Final = 3
"""Parameters whose gradients are clocked: the first ones, whose gradients come last."""


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for."""

    rank: int
    seconds: float
    """A step of its own work."""
    median_seconds: float
    """The same of the median rank; of two, of the other."""
    part: str
    """loading: from the end of a step to the next forward pass; computing: from there to the last gradient."""

    @property
    def words(self) -> str:
        """For a person."""
        return (
            f"rank {self.rank} is slow: {self.seconds * 1e3:.0f} ms a step {self.part}, the median rank"
            f" {self.median_seconds * 1e3:.0f} ms"
        )


class StragglerDetector:
    """Clocks a rank's own work. With one rank it does nothing.

    Loading ends where DistributedDataParallel's forward pass begins. Computing begins behind its exchange of buffers,
    which waits for rank 0, and ends with the last gradient of the micro-batch, before the others' gradients are waited
    for. On a GPU computing is what its events say; loading is the host's.
    """

    def __init__(self, ranks: ProcessGroup, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.ranks = ranks
        self._monotonic = monotonic
        self._ended: float | None = None
        self._loading: list[float] = []
        self._spans: list[tuple[_Stamp, list[_Stamp]]] = []
        self._steps: list[list[tuple[_Stamp, list[_Stamp]]]] = []
        self._training = False  # the spans of the first step have those of warm-up before them
        self._in_a_row: dict[tuple[int, Part], int] = {}
        self._told: set[tuple[int, Part]] = set()

    def attach(self, parallel: nn.Module) -> None:
        """Clock the forward and backward passes of `parallel`, which `ProcessGroup.wrap` made."""
        if self.ranks.world_size == 1:
            return
        entrance = next(module for module in parallel.modules() if isinstance(module, DDPInner))
        parallel.register_forward_pre_hook(self._loaded)
        entrance.register_forward_pre_hook(self._begins)
        clocked = [parameter for parameter in parallel.parameters() if parameter.requires_grad]
        for parameter in clocked[:HOOKED]:
            parameter.register_post_accumulate_grad_hook(self._gradient)  # type: ignore[no-untyped-call]

    def stepped(self) -> None:
        """An optimizer step ended."""
        if self.ranks.world_size > 1:
            self._ended = self._monotonic()
            if self._training:
                self._steps.append(self._spans)
            self._spans = []
            self._training = True

    def report(self) -> list[float]:
        """This rank's seconds since the last call, in its place of all ranks': what all ranks take the elementwise
        maximum of, so that each has everybody's; no numbers where there is one rank."""
        if self.ranks.world_size == 1:
            return []
        self._ended = None  # what follows a check may be an evaluation or a checkpoint
        table = [UNKNOWN] * (self.ranks.world_size * len(PARTS))
        place = self.ranks.rank * len(PARTS)
        table[place : place + len(PARTS)] = [
            statistics.median(self._loading or [UNKNOWN]),
            statistics.median(self._computing() or [UNKNOWN]),
        ]
        self._loading.clear()
        self._steps.clear()
        return table

    def judge(self, reports: Sequence[float]) -> SlowRank | None:
        """Who is slow by the maximum of all `reports`, if somebody is; on all ranks alike. Told once; again only after
        it was not slow for a while."""
        table = [reports[place : place + len(PARTS)] for place in range(0, len(reports), len(PARTS))]
        if not table:
            return None
        found: SlowRank | None = None
        wholes = [sum(seconds for seconds in row if seconds != UNKNOWN) for row in table]
        median_whole = statistics.median_low(wholes)
        for place, part in enumerate(PARTS):
            if any(row[place] == UNKNOWN for row in table):
                continue  # two checks with hardly a step in between
            median = statistics.median_low(row[place] for row in table)
            for rank, row in enumerate(table):
                more = row[place] - median
                whole = wholes[rank] - median_whole
                slow = more > max(LEAST_SECONDS, (RATIO - 1) * median) and whole > LEAST_SHARE * median_whole
                # Up to CHECKS while it is slow, back to 0 as slowly: one check in between changes nothing.
                before = self._in_a_row.get((rank, part), 0)
                now = min(CHECKS, before + 1) if slow else max(0, before - 1)
                self._in_a_row[rank, part] = now
                if now == 0:
                    self._told.discard((rank, part))
                if now == CHECKS and (rank, part) not in self._told and found is None:
                    self._told.add((rank, part))
                    found = SlowRank(rank, row[place], median, part)
        return found

    def _computing(self) -> list[float]:
        """Seconds of each step since the last comparison that can be told without waiting for the device."""
        found = []
        for spans in self._steps:
            seconds = [_seconds(begin, ends) for begin, ends in spans if ends]
            if seconds and None not in seconds:
                found.append(sum(one for one in seconds if one is not None))
        return found

    def _loaded(self, module: nn.Module, arguments: object) -> None:
        if self._ended is not None:
            self._loading.append(self._monotonic() - self._ended)
            self._ended = None

    def _begins(self, module: nn.Module, arguments: object) -> None:
        self._spans.append((self._stamp(), []))

    def _gradient(self, parameter: Tensor) -> None:
        if self._spans:
            self._spans[-1][1].append(self._stamp())

    def _stamp(self) -> _Stamp:
        if self.ranks.device.type != "cuda":
            return self._monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.ranks.device))
        return event


_Stamp = float | torch.cuda.Event


def _seconds(begin: _Stamp, ends: list[_Stamp]) -> float | None:
    """From `begin` to the last of `ends`; None where the device has not come to it."""
    seconds = []
    for end in ends:
        if isinstance(begin, float) and isinstance(end, float):
            seconds.append(end - begin)
        elif isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            if not end.query():  # type: ignore[no-untyped-call]
                return None
            seconds.append(begin.elapsed_time(end) / 1e3)
    return max(seconds)
