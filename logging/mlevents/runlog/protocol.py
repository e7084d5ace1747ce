"""Protocol of a timed run: the order of MLPerf's events, what each needs, and what ends a run."""

from collections.abc import Collection, Mapping
from typing import Final

from mlevents import keys
from mlevents.errors import TrainingLoopError
from mlevents.runlog import RunLog, Scalar

WITHIN: Final = {keys.BLOCK_START: keys.RUN_START, keys.EPOCH_START: keys.BLOCK_START, keys.EVAL_START: keys.RUN_START}
"""Intervals that start only within another one."""
EACH: Final = {keys.WEIGHTS_INITIALIZATION: "tensor", keys.METHOD: "value"}
"""Settings that are lists, logged in one event an item, and where the item stands in it."""


class Protocol:
    """Keep the events of one run in their order: `begin`, the clock's start, blocks of training with an evaluation in
    or after each, and one end. An interval out of order raises TrainingLoopError and is not logged.

    Args:
        progress: metadata in which the benchmark's rules count training: `epoch_num`, `samples_count` or `step_num`.

    Examples:
        >>> from pathlib import Path
        >>> run = Protocol(RunLog(Path("result_0.txt")))
        >>> run.begin({"seed": 1})
        >>> run.end("init_stop")
        >>> run.start("run_start")
        >>> run.start_block(first=1, count=1)
        >>> run.stop_block(at=1)
        >>> run.start("eval_start", **run.at(1))
        >>> run.stop_evaluation(0.76, at=1)
        >>> run.succeed(at=1)
    """

    def __init__(self, log: RunLog, progress: str = keys.EPOCH_NUM) -> None:
        self.log, self.progress = log, progress
        self._open = {keys.RUN_START} if log.started else set[str]()
        self._first = 1.0  # first epoch of the last block

    def begin(self, settings: Mapping[str, Scalar], *, cleared: bool = False, reason: str = "") -> None:
        """Log whether the page cache was `cleared`, the start of the initialization, and `settings`."""
        self.log.event(keys.CACHE_CLEAR, cleared, **({"reason": reason} if reason else {}))
        self.start(keys.INIT_START)
        self.describe(settings)

    def describe(self, settings: Mapping[str, Scalar]) -> None:
        """Log `settings`, which have the log's keys, before the clock starts."""
        for key, value in settings.items():
            for item in value if key in EACH else (value,):  # type: ignore[union-attr]  # a list
                self.log.event(key, **{EACH.get(key, "value"): item})

    def start(self, key: str, **about: Scalar) -> None:
        if key in self._open or WITHIN.get(key) not in {None, *self._open}:
            raise TrainingLoopError(f"{key} is out of order: open are {sorted(self._open)}; nothing was logged")
        self.log.start(key, **about)
        self._open.add(key)

    def resume(self, start: str) -> None:
        """Continue an interval whose start is in the log of a resumed run."""
        self._open.add(start)

    def end(self, key: str, **about: Scalar) -> None:
        start = key.removesuffix("stop") + "start"
        if start not in self._open:
            raise TrainingLoopError(f"{key} is out of order: open are {sorted(self._open)}; nothing was logged")
        self.log.end(key, **about)
        self._open.remove(start)

    def is_open(self, start: str) -> bool:
        """Return True in an interval that began with `start`."""
        return start in self._open and not self.log.stopped

    def start_block(self, first: float, count: float, at: float = 0.0) -> None:
        """Start a block of training.

        Args:
            first: number of its first epoch, counted from 1.
            count: its planned length in epochs.
            at: training before it; logged where the rules count no epochs."""
        self.start(keys.BLOCK_START, **self._span(first, count, at))
        self._first = first

    def stop_block(self, at: float = 0.0, *, first: float | None = None, count: float | None = None) -> None:
        """End the block, after all training `at`; `first` and `count` as in `start_block`."""
        self.end(keys.BLOCK_STOP, **self._span(self._first if first is None else first, count, at))

    def stop_evaluation(
        self, quality: Scalar, at: float, names: Collection[str] = (), *, apart: bool = False, step: int | None = None
    ) -> None:
        """Log the quality, under further `names` too, and the end of its evaluation. `apart`: the parts of the quality,
        a mapping, are an event each. `step`: optimizer step after which it was measured, if that is known beside
        `at`."""
        where = self.at(at)
        if apart and isinstance(quality, Mapping):
            for name, part in quality.items():
                self.log.event(keys.EVAL_ACCURACY, part, **{keys.METRIC: name}, **where)
        else:
            for key in (keys.EVAL_ACCURACY, *names):
                self.log.event(key, quality, **where, **({} if step is None else {keys.STEP: step}))
        self.end(keys.EVAL_STOP, **where)

    def succeed(self, at: float, **known: Scalar) -> None:
        """Stop the clock at the target, and close the log: nothing may follow run_stop."""
        self.end(keys.RUN_STOP, status=keys.SUCCESS, **self.at(at), **known)
        self.log.close()

    def at(self, progress: float) -> dict[str, float]:
        """Return `progress` as metadata."""
        return {self.progress: _whole(progress)}

    def _span(self, first: float, count: float | None, at: float) -> dict[str, float]:
        if self.progress != keys.EPOCH_NUM:
            return self.at(at)
        return {keys.FIRST_EPOCH_NUM: _whole(first), **({} if count is None else {keys.EPOCH_COUNT: count})}


def _whole(number: float) -> float:
    """Return a whole number as an integer."""
    return int(number) if number == int(number) else number
