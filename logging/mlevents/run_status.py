"""Status of one run: reached its target, or the reason why not."""

from collections.abc import Sequence

from mlevents import keys
from mlevents.event import short
from mlevents.rounds import BenchmarkRules, rulesets_of
from mlevents.rounds.own_rules import in_force, own_rules_of, usual_ruleset_of
from mlevents.summary import RunSummary


def target(summary: RunSummary, ruleset: str | None = None) -> float | None:
    """Return the quality target of a run: as logged, else the benchmark's own, unless it is a demonstration."""
    if summary.quality_target is not None:
        return summary.quality_target
    rules, _ = rules_of(summary.benchmark or "", ruleset, [summary])
    return rules.target if rules and not summary.is_demonstration else None


def reached(summary: RunSummary, ruleset: str | None = None) -> bool:
    """Return True if a run has a time, ended in success and its last evaluation met its target.

    A run on the benchmark's own data must also meet the benchmark's target. False if no rules are known for the
    benchmark, since the direction of its metric is then unknown."""
    return failure(summary, ruleset) is None


def failure(summary: RunSummary, ruleset: str | None = None) -> str | None:
    """Return why a run did not reach its target, as a phrase that follows its name, or None if it did."""
    if not summary.events:
        return "is not an MLPerf log"
    rules, _ = rules_of(summary.benchmark or "", ruleset, [summary])
    if rules is None:
        return f"is of {short(summary.benchmark)}, for which no rules are known"
    if summary.minutes is None:
        return "has no time to train: run_start or run_stop is missing or out of order"
    if summary.status != keys.SUCCESS:
        return "was aborted" if summary.status == keys.ABORTED else f"ended with status {short(summary.status)}"
    quality, wanted = summary.final_quality, target(summary, ruleset)
    if quality is None:
        return "has no evaluation with a number before its run_stop"
    if wanted is None:
        return "logs no quality_target, which a run on other data than the benchmark's must log"
    if not rules.reached(quality, wanted):
        return f"ended at {quality:.10g}, but its target is {wanted:.10g}"
    if summary.is_demonstration:
        return None
    if not rules.reached(quality):
        return f"ended at {quality:.10g}, but its benchmark's target is {rules.target:g}"
    if rules.parts and not rules.reached(summary.final_parts):
        ends = ", ".join(f"{name} {summary.final_parts.get(name, 'nothing')}" for name in rules.parts)
        targets = ", ".join(f"{name} {part.direction} {part.target:g}" for name, part in rules.parts.items())
        return f"ended at {ends}, but its benchmark's target is {targets}"
    # as in MLCommons' summary, whose checker rejects such a log
    return f"has records that are not JSON: {summary.unreadable}" if summary.unreadable else None


def rules_of(
    benchmark: str, ruleset: str | None, logs: Sequence[RunSummary]
) -> tuple[BenchmarkRules | None, str | None]:
    """Return the rules of `benchmark` in `ruleset` (default: its own), where those that `logs` record count, and that
    ruleset's name; None if there are none. Raise ValueError if there is no such ruleset."""
    own = own_rules_of(logs)
    named = next((log.ruleset for log in logs if log.ruleset in rulesets_of(benchmark)), None)
    name = ruleset or named or usual_ruleset_of(benchmark, own)
    return (None, None) if name is None else (in_force(name, own).benchmarks.get(benchmark), name)
