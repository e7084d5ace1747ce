"""Every how many steps all ranks decide together whether a run goes on: seldom enough to cost nothing, often enough
for a signal to be acted on within seconds."""

from __future__ import annotations

import torch

SECONDS = 2.0
"""What lies between two checks at most, where steps take alike."""
MOST_STEPS = {"cpu": 10, "cuda": 50}


class SyncInterval:
    """Steps until the next check. They follow from what all ranks were told alike, never from one rank's clock, so that
    all of them look at each other after the same step.

    steps: a fixed number; None: as many as fit into SECONDS, at most MOST_STEPS, at first 1.
    """

    def __init__(self, device: torch.device, steps: int | None = None) -> None:
        self._fixed = steps
        self._most = steps or MOST_STEPS.get(device.type, 10)
        self.steps = steps or 1
        self._checked_step: int | None = None
        self._begun: tuple[int, float] | None = None

    def begin(self, step: int, now: float) -> None:
        """Training begins, or goes on, after step `step` at second `now`: what lay before was no training."""
        self._begun = (step, now)
        if self._checked_step is None:
            self._checked_step = step

    def due(self, step: int) -> bool:
        """Whether all ranks check after step `step`."""
        if self._fixed is not None or self._checked_step is None:
            return step % self.steps == 0
        return step - self._checked_step >= self.steps

    def seconds_a_step(self, step: int, now: float) -> float:
        """This rank's own, since it began or checked; 0 where no step was done."""
        if self._begun is None or step <= self._begun[0]:
            return 0.0
        return (now - self._begun[1]) / (step - self._begun[0])

    def checked(self, step: int, slowest: float, now: float) -> None:
        """All ranks checked after step `step`; `slowest` is the largest of their `seconds_a_step`."""
        self._checked_step, self._begun = step, (step, now)
        if self._fixed is None and slowest > 0:
            self.steps = max(1, min(self._most, 2 * self.steps, int(SECONDS / slowest)))
