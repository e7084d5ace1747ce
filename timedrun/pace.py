"""How long each rank works on a step by itself, without the waiting for others, so that a slow one can be named."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from timedrun.ranks import Ranks


@dataclass(frozen=True)
class SlowRank:
    """A rank that the others wait for."""

    rank: int
    seconds: float
    """A step of its own work."""
    median_seconds: float
    """The same of the median rank."""
    part: str
    """loading: from the end of a step to the next forward pass; computing: from there to the last gradient."""

    @property
    def words(self) -> str:
        """For a person."""
        return (
            f"rank {self.rank} is slow: {self.seconds * 1e3:.0f} ms a step {self.part}, the median rank"
            f" {self.median_seconds * 1e3:.0f} ms"
        )


class Pace:
    """Clocks a rank's own work. With one rank it does nothing."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def attach(self, parallel: nn.Module) -> None:
        """Clock the forward and backward passes of `parallel`, which `Ranks.wrap` made."""

    def stepped(self) -> None:
        """An optimizer step ended."""

    def compare(self) -> SlowRank | None:
        """The slow rank since the last call, if there is one; on all ranks alike, which call it together."""
        return None
