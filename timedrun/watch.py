"""Signs of life of all ranks: one that dies, stops or gets stuck is named on every other in bounded time, under any
launcher and whatever collective the others wait in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from timedrun.ranks import Ranks

SILENT_SECONDS = 12.0
"""A rank that gave no sign of life for so long is lost."""
STUCK_SECONDS = 60.0
"""A rank whose loop has not moved for so long, while others wait for it in a collective, is stuck."""


class Watch:
    """A thread on each rank that tells the others how far it is, and looks at how far they are.

    ranks: this process's place; with one rank there is nothing to watch and no thread.
    on_lost: called once, from the watch's thread, with words that name rank, cause and last step, when a rank is lost
        while this one may be caught in a collective. It has to end the process.
    """

    def __init__(
        self,
        ranks: Ranks,
        on_lost: Callable[[str], None],
        *,
        every_seconds: float = 1.0,
        silent_seconds: float = SILENT_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        self.ranks = ranks
        self.on_lost = on_lost
        self.every = every_seconds
        self.silent = silent_seconds
        self.stuck = stuck_seconds
        self.step = 0

    def start(self) -> Self:
        """Begin to tell and to look; all ranks call it together."""
        return self

    def at(self, step: int) -> None:
        """This rank finished optimizer step `step`. Costs an assignment."""
        self.step = step

    def failed(self, error: BaseException) -> str:
        """Tell the others that this rank ends with `error`, and say what ended the run: the error of the rank that
        failed first, or the rank that was lost, each with its rank and last step; of one rank, this error's own words.
        Waits a few seconds at most until that is known."""
        return f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Leave: this rank's run is over, and its silence means nothing from now on."""
