"""Straggler detection: compare the time of each rank's own work in a step, without its waits for other ranks."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from timedrun.methods.method import DDPInner
from timedrun.runner.distributed.device_clock import Stamp, seconds_between, stamp
from timedrun.runner.distributed.process_group import ProcessGroup

PARTS: Final = ("loading", "computing")
CHECKS: Final = 3
"""Consecutive checks at which a rank has to be slow."""
RATIO: Final = 1.5
"""Least ratio of a slow rank's time to the median rank's, for one part of a step."""
LEAST_SECONDS: Final = 0.010
"""Least excess over the median rank's time."""
LEAST_SHARE: Final = 0.1
"""Least excess of the sum of both parts, as a share of the median rank's: hidden work slows no other rank. A host that
runs ahead of its GPU may seem to load while it waits for others; then its sum does not exceed theirs."""
UNKNOWN: Final = -1.0
HOOKED: Final = 3
"""Number of parameters whose gradients are timed: the first ones, whose gradients come last."""


@dataclass(frozen=True)
class SlowRank:
    """A rank that slows the others down, with the fields of the log's event."""

    rank: int
    seconds: float
    """Time of its own work per step."""
    median_seconds: float
    """Time of the median rank; of two ranks, of the other."""
    part: str
    """loading: from the end of a step to the next forward pass; computing: from there to the last gradient."""


class StragglerDetector:
    """Timer of a rank's own work and comparison with the other ranks; inactive with one rank.

    Loading ends where DistributedDataParallel's forward pass begins. Computing begins after its buffer broadcast, which
    waits for rank 0, and ends with the last gradient of the micro-batch, before the wait for other ranks' gradients. On
    a GPU, computing is timed by CUDA events, loading on the host.
    """

    def __init__(self, ranks: ProcessGroup, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.ranks = ranks
        self._monotonic = monotonic
        self._ended: float | None = None
        self._loading: list[float] = []
        self._spans: list[tuple[Stamp, Stamp | None]] = []
        self._steps: list[list[tuple[Stamp, Stamp | None]]] = []
        self._training = False  # the spans before the first step include warm-up
        self._slow_checks = torch.zeros(ranks.world_size, len(PARTS), dtype=torch.int64)
        self._reported = torch.zeros(ranks.world_size, len(PARTS), dtype=torch.bool)

    def attach(self, parallel: nn.Module) -> None:
        """Time the forward and backward passes of `parallel`, the result of `ProcessGroup.wrap`."""
        if self.ranks.world_size == 1:
            return
        inner = next(module for module in parallel.modules() if isinstance(module, DDPInner))
        parallel.register_forward_pre_hook(self._loaded)
        inner.register_forward_pre_hook(self._begins)
        trained = [parameter for parameter in parallel.parameters() if parameter.requires_grad]
        for parameter in trained[:HOOKED]:
            parameter.register_post_accumulate_grad_hook(self._gradient)  # type: ignore[no-untyped-call]

    def stepped(self) -> None:
        """Record the end of an optimizer step."""
        if self.ranks.world_size > 1:
            self._ended = self._monotonic()
            if self._training:
                self._steps.append(self._spans)
            self._spans = []
            self._training = True

    def report(self) -> list[float]:
        """Return this rank's times since the last call in a table of all ranks, flat, [ranks, parts] seconds, UNKNOWN
        elsewhere: the elementwise maximum over ranks is the full table. Empty with one rank."""
        if self.ranks.world_size == 1:
            return []
        self._ended = None  # a check may be followed by an evaluation or a checkpoint
        table = [UNKNOWN] * (self.ranks.world_size * len(PARTS))
        for place, seconds in enumerate((self._loading, self._computing()), self.ranks.rank * len(PARTS)):
            table[place] = statistics.median(seconds or [UNKNOWN])
        self._loading.clear()
        self._steps.clear()
        return table

    def detect(self, reports: Sequence[float]) -> SlowRank | None:
        """Return the straggler, if any, from the maximum of all `reports`; equal on all ranks. Each is returned once,
        and again only after it was not slow for CHECKS checks."""
        table = torch.tensor(reports, dtype=torch.float64).view(-1, len(PARTS))
        if not len(table):
            return None
        whole = table.clamp(min=0.0).sum(1, keepdim=True)
        median, median_whole = table.median(0).values, whole.median()  # the lower one of an even number
        slow = table - median > ((RATIO - 1) * median).clamp(min=LEAST_SECONDS)
        slow &= whole - median_whole > LEAST_SHARE * median_whole
        # Counts up to CHECKS and back to 0, so that a single check of the other kind has no effect.
        counted = (self._slow_checks + torch.where(slow, 1, -1)).clamp(0, CHECKS)
        known = (table != UNKNOWN).all(0)  # else hardly a step since the last check
        self._slow_checks = torch.where(known, counted, self._slow_checks)
        self._reported &= self._slow_checks > 0
        due = ((self._slow_checks == CHECKS) & ~self._reported).nonzero().tolist()
        if not due:
            return None
        rank, part = due[0]
        self._reported[rank, part] = True
        return SlowRank(rank, float(table[rank, part]), float(median[part]), PARTS[part])

    def _computing(self) -> list[float]:
        """Return the seconds of each step since the last report that the device has completed."""
        seconds = []
        for spans in self._steps:
            ended = [(begin, end) for begin, end in spans if end is not None]
            if ended and all(isinstance(end, float) or end.query() for _, end in ended):  # type: ignore[no-untyped-call]
                seconds.append(sum(seconds_between(begin, end) for begin, end in ended))
        return seconds

    def _loaded(self, module: nn.Module, arguments: object) -> None:
        if self._ended is not None:
            self._loading.append(self._monotonic() - self._ended)
            self._ended = None

    def _begins(self, module: nn.Module, arguments: object) -> None:
        self._spans.append((self._stamp(), None))

    def _gradient(self, parameter: Tensor) -> None:
        if self._spans:
            self._spans[-1] = self._spans[-1][0], self._stamp()  # the last one stays

    def _stamp(self) -> Stamp:
        return stamp(self.ranks.device, self._monotonic)
