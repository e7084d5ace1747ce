"""Context of the checks of one log: the record and the rules that apply to it."""

from functools import cached_property
from itertools import dropwhile
from statistics import median_low
from typing import Final, TypeGuard

from mlevents import keys
from mlevents.evaluations import evaluated_offline
from mlevents.event import Event, Finding, Level, is_number
from mlevents.record import RunRecord
from mlevents.rounds import FIRST_ROUND_MS, BenchmarkRules, Ruleset

TRAINED: Final = frozenset({keys.EPOCH_START, keys.EPOCH_STOP, keys.BLOCK_START, keys.BLOCK_STOP})


def is_batch(value: object) -> TypeGuard[int | float]:
    """Return True if `value` may be a batch size; 24.0 is one, no number below 1, nor one too large for a float."""
    return is_number(value) and 1 <= value < 2**53


class CheckedRun:
    """A record with the rules that apply to it."""

    def __init__(self, record: RunRecord, rules: Ruleset) -> None:
        self.record = record
        self.rules = rules
        self.benchmark: BenchmarkRules | None = rules.benchmarks.get(record.benchmark or "")
        # Keyed by identity: a log may hold many events, and equal ones.
        self.position = {id(event): index for index, event in enumerate(record.events)}

    def finding(self, level: Level, rule: str, message: str, event: Event | None = None) -> Finding:
        """Return a finding about this log, at the line of `event`."""
        line = None if event is None else event.line
        return Finding(level=level, rule=rule, message=message, line=line, path=str(self.record.path))

    def evaluations(self) -> list[Event]:
        """Return the eval_accuracy events of the timed region."""
        return [event for event in self.record.timed if event.key == keys.EVAL_ACCURACY]

    @cached_property
    def untrained(self) -> frozenset[int]:
        """Identities of the blocks and epochs that train nothing, with their stops: those that start during an
        evaluation, and of a log with epochs the blocks of evaluations that start after the last one."""
        numbers: set[int] = set()
        epochs = [at for at, event in enumerate(self.record.timed) if event.key in (keys.EPOCH_START, keys.EPOCH_STOP)]
        after = self.record.timed[epochs[-1] :] if epochs else ()
        if after and after[0].key == keys.EPOCH_STOP and any(event.key == keys.EVAL_START for event in after):
            blocks = (event for event in after if event.key in (keys.BLOCK_START, keys.BLOCK_STOP))
            numbers |= {id(event) for event in dropwhile(lambda event: event.key == keys.BLOCK_STOP, blocks)}
        evaluating = False
        opened: dict[str, Event] = {}
        for event in self.record.timed:
            if event.key in (keys.EVAL_START, keys.EVAL_STOP):
                evaluating = event.key == keys.EVAL_START
                opened.clear()
            elif evaluating and event.key in (keys.BLOCK_START, keys.EPOCH_START):
                opened[event.key] = event
            elif evaluating and event.key in TRAINED:
                start = opened.pop(keys.BLOCK_START if event.key == keys.BLOCK_STOP else keys.EPOCH_START, None)
                numbers |= {id(start), id(event)} if start is not None else set()
        return frozenset(numbers)

    @cached_property
    def evaluated_offline(self) -> bool:
        """True if checkpoints were evaluated after the clock, where the benchmark allows it."""
        return evaluated_offline(self.record.timed, self.record.stopped, self.benchmark)

    @cached_property
    def misdated(self) -> dict[int, Event]:
        """By identity, the events whose time in milliseconds is not within a factor of 5 of the log's median: it has
        lost or gained a digit, and no place in the order of times."""
        middle = median_low([event.time_ms for event in self.record.events])
        if middle < FIRST_ROUND_MS:
            return {}
        return {id(event): event for event in self.record.events if not middle / 5 < event.time_ms < middle * 5}

    def training(self) -> list[Event]:
        """Return the starts and stops of blocks and epochs of the timed region, without those of evaluations."""
        timed = (event for event in self.record.timed if event.key in TRAINED and id(event) not in self.misdated)
        return [event for event in timed if id(event) not in self.untrained]
