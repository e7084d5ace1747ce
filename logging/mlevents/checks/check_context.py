"""Context of the checks of one log: the record and the rules that apply to it."""

from __future__ import annotations

from mlevents import keys
from mlevents.checks.finding import Finding, Level
from mlevents.event import Event
from mlevents.record import RunRecord
from mlevents.rounds import BenchmarkRules, Ruleset


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
