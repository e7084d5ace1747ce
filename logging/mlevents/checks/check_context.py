"""A run's record beside the rules that apply to it: what every check of one log starts from."""

from __future__ import annotations

from mlevents import keys
from mlevents.checks.finding import Finding, Level
from mlevents.event import Event
from mlevents.record import RunRecord
from mlevents.rounds import BenchmarkRules, Ruleset


class CheckedRun:
    """A record beside the rules that apply to it."""

    def __init__(self, record: RunRecord, rules: Ruleset) -> None:
        self.record = record
        self.rules = rules
        self.benchmark: BenchmarkRules | None = rules.benchmarks.get(record.benchmark or "")
        # By identity: two records may be equal, and a log may hold many.
        self.position = {id(event): index for index, event in enumerate(record.events)}

    def finding(self, level: Level, rule: str, message: str, event: Event | None = None) -> Finding:
        """A finding about this log, at the line of `event`."""
        line = None if event is None else event.line
        return Finding(level=level, rule=rule, message=message, line=line, path=str(self.record.path))

    def evaluations(self) -> list[Event]:
        """The eval_accuracy events of the timed region."""
        started, stopped = self.record.started, self.record.stopped
        first = self.position[id(started)] if started else len(self.record.events)
        last = self.position[id(stopped)] if stopped else len(self.record.events)
        return [event for event in self.record.events[first:last] if event.key == keys.EVAL_ACCURACY]
