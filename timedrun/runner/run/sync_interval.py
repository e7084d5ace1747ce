"""Number of steps between the points at which all ranks decide together whether a run goes on: rare enough to cost
nothing, frequent enough to act on a signal within seconds."""

import torch

SECONDS = 2.0
"""Longest time between two synchronizations, if steps take equal times."""
MOST_STEPS = {"cpu": 10, "cuda": 50}


class SyncInterval:
    """Steps until the next synchronization. They follow from values that all ranks share, never from one rank's clock,
    so that all ranks synchronize after the same step.

    steps: a fixed number. None: as many as fit into SECONDS, at most MOST_STEPS, beginning with 1.
    """

    def __init__(self, device: torch.device, steps: int | None = None) -> None:
        self._fixed = steps
        self._most = steps or MOST_STEPS.get(device.type, 10)
        self.steps = steps or 1
        self._synced_step: int | None = None
        self._begun: tuple[int, float] | None = None

    def begin(self, step: int, now: float) -> None:
        """Begin, or continue, to measure training after step `step` at second `now`."""
        self._begun = (step, now)
        if self._synced_step is None:
            self._synced_step = step

    def due(self, step: int) -> bool:
        """Return True if all ranks synchronize after step `step`."""
        if self._fixed is not None or self._synced_step is None:
            return step % self.steps == 0
        return step - self._synced_step >= self.steps

    def seconds_per_step(self, step: int, now: float) -> float:
        """Return this rank's seconds per step since the last synchronization; 0 if no step was done."""
        if self._begun is None or step <= self._begun[0]:
            return 0.0
        return (now - self._begun[1]) / (step - self._begun[0])

    def synced(self, step: int, slowest: float, now: float) -> None:
        """Adapt the interval after step `step`; `slowest` is the largest `seconds_per_step` of all ranks."""
        self._synced_step, self._begun = step, (step, now)
        if self._fixed is None and slowest > 0:
            self.steps = max(1, min(self._most, 2 * self.steps, int(SECONDS / slowest)))
