"""Training statistics as logged: loss, and samples and seconds of each epoch or block without its evaluation."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from mlevents import keys

LOSS_SECONDS: Final = 5.0
"""Shortest time between two logged losses within an epoch or block; its end logs one as well."""


@dataclass
class TrainStats:
    """Last training loss, and stretches of training, each from `begin` to `end`. A stretch that a stop interrupted
    counts as one, without the gap."""

    part_samples: int = 0
    """Trained in the current stretch before the run was stopped."""
    part_seconds: float = 0.0
    loss: float | None = None
    """Of the last step before a synchronization, the mean over all ranks; None once it is logged."""
    _begun: tuple[int, float] | None = None
    _loss_logged: float | None = None

    def begin(self, samples: int, now: float) -> None:
        """Begin or continue a stretch at `samples` of the run and second `now`."""
        if self._loss_logged is None:
            self._loss_logged = now
        self._begun = (samples - self.part_samples, now - self.part_seconds)

    def take_loss(self, now: float, *, at_end: bool = False) -> dict[str, float]:
        """Return the loss as an entry of the log if one is due within a stretch, or at its end; each loss once."""
        due = at_end or (self._begun is not None and now - (self._loss_logged or 0.0) >= LOSS_SECONDS)
        if self.loss is None or not due:
            return {}
        entry, self.loss, self._loss_logged = {keys.TRAIN_LOSS: self.loss}, None, now
        return entry

    def end(self, samples: int, now: float) -> float | None:
        """End the stretch; return its samples per second, or None if nothing was trained in it."""
        assert self._begun is not None
        trained, spent = samples - self._begun[0], now - self._begun[1]
        self._begun, self.part_samples, self.part_seconds = None, 0, 0.0
        if trained <= 0 or spent <= 0:
            return None
        return trained / spent

    def state(self, samples: int, now: float) -> dict[str, Any]:
        """Return the state for a checkpoint taken at `samples` and second `now`, in a stretch or between two."""
        values = asdict(self)
        del values["_begun"], values["_loss_logged"]
        if self._begun is not None:
            values |= {"part_samples": samples - self._begun[0], "part_seconds": now - self._begun[1]}
        return values
