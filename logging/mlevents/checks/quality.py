"""Check the quality of a run: the last evaluation reaches the target, and all values are plausible."""

import math
from collections.abc import Iterator
from typing import Any, Final

from mlevents import keys
from mlevents.checks.check_context import CheckedRun
from mlevents.evaluations import checkpoints, first_passing, progress_of
from mlevents.event import Event, Finding, Level, is_number, short
from mlevents.rounds import BenchmarkRules
from mlevents.rounds.ruleset import highest

_QUALITIES: Final = ("quality", "accuracy", "eval", "loss", "metric", "perplexity")
TARGETS: Final = frozenset(key for word in _QUALITIES for key in (f"target_{word}", f"{word}_target"))
LEAP: Final = 0.5  # of the target; successful runs of the published rounds gain 0.41 of it or less


def target(run: CheckedRun) -> Iterator[Finding]:
    """Report a last evaluation before run_stop that misses the target of the benchmark, or a demonstration's own."""
    own, wanted = run.record.last(keys.QUALITY_TARGET), run.benchmark.target if run.benchmark else None
    if run.record.is_demonstration:
        wanted = own.value if own is not None and is_number(own.value) else None
        if wanted is None:
            yield run.finding("error", "quality-target", "a demonstration must log its quality_target as a number", own)
            return
    yield from _logged_targets(run, wanted)
    if wanted is None or run.benchmark is None:
        return
    evaluations = run.evaluations()
    if not evaluations:
        message = "no eval_accuracy between run_start and run_stop, so nothing shows that the target was reached"
        yield run.finding("error", "target-reached", message, run.record.stopped)
    elif run.evaluated_offline and first_passing(checkpoints(run.record.timed, run.benchmark), run.benchmark):
        return  # `timed_region.stopped_at_checkpoint` judges whether it was trained in time
    elif run.benchmark.parts and not run.record.is_demonstration:
        yield from _parts(run, run.benchmark, evaluations)
    elif not is_number(evaluations[-1].value) or not run.benchmark.reached(evaluations[-1].value, wanted):
        relation = run.benchmark.direction.rstrip("=") if run.benchmark.target_excluded else run.benchmark.direction
        message = f"the last eval_accuracy before run_stop is {short(evaluations[-1].value)}, not {relation} {wanted}"
        yield run.finding("error", "target-reached", f"{message}, the target", evaluations[-1])
    else:
        yield from _reached(run, run.benchmark, evaluations, wanted)


def _logged_targets(run: CheckedRun, wanted: float | None) -> Iterator[Finding]:
    """Report the first logged target that is not the one that was checked, or that of a part of the quality."""
    parts = run.benchmark.parts if run.benchmark and not run.record.is_demonstration else {}
    allowed = [wanted, *(part.target for part in parts.values())]
    for event in run.record.events:
        logged = list(event.value.values()) if isinstance(event.value, dict) else [event.value]
        if event.key in TARGETS and wanted is not None and not all(value in allowed for value in logged):
            message = f"{event.key} is {short(event.value)}, but the target is {wanted}, which was checked"
            yield run.finding("warning", "quality-target", message, event)
            return


def _reached(run: CheckedRun, rules: BenchmarkRules, evaluations: list[Event], wanted: float) -> Iterator[Finding]:
    """Report a target that was reached without training, or only by evaluating the same point again."""
    last = evaluations[-1]
    at = progress_of(last, rules)
    if at == 0:
        yield run.finding("error", "target-reached", f"the target is reached at 0 {rules.unit}, without training", last)
    missed = [e for e in evaluations[:-1] if is_number(e.value) and not rules.reached(e.value, wanted)]
    counted = len({progress_of(event, rules) for event in evaluations}) > 1  # some logs say 1 at every evaluation
    if missed and counted and at is not None and progress_of(missed[-1], rules) == at:
        message = (
            f"the target is reached only by a repeated evaluation at {at:g} {rules.unit}; the one before (line "
            f"{missed[-1].line}) measured {short(missed[-1].value)}"
        )
        yield run.finding("warning", "evaluated-again", message, last)
    if run.record.is_demonstration or run.record.own_rules:  # a small model may learn all between two evaluations
        return
    before = evaluations[-2].value if len(evaluations) > 1 else None
    if is_number(before) and abs(last.value - before) > LEAP * wanted:
        message = f"the quality goes from {short(before)} to {short(last.value)} at the last of {len(evaluations)} "
        message += f"evaluations, by more than half of the target {wanted}; training does not make such a leap"
        yield run.finding("warning", "quality-leap", message, last)


def _parts(run: CheckedRun, rules: BenchmarkRules, evaluations: list[Event]) -> Iterator[Finding]:
    """Report each part of a quality with parts whose last value misses its target."""
    last: dict[str, tuple[Any, Event]] = {}
    for event in evaluations:
        for name, value in rules.quality_parts(event.value, event.metadata.get(keys.METRIC)).items():
            last[name] = (value, event)
    for name, part in rules.parts.items():
        if name not in last:
            message = f"no eval_accuracy between run_start and run_stop holds {name}, a part of the target"
            yield run.finding("error", "target-reached", message, evaluations[-1])
        elif not is_number(last[name][0]) or not part.reached(last[name][0]):
            value, event = last[name]
            relation = f"not {part.direction} the target {part.target}"
            message = f"the last {name} before run_stop is {short(value)}, which is {relation}"
            yield run.finding("error", "target-reached", message, event)


def value_range(run: CheckedRun) -> Iterator[Finding]:
    """Report eval_accuracy values that are not finite numbers, or exceed 1 where the target does not and higher is
    better."""
    rules = run.benchmark
    if rules is not None and rules.parts:
        return  # the required keys of the round bound each part
    most = highest(rules.target, rules.direction) if rules else math.inf
    own = run.record.own_rules is not None  # of any metric, such as a reward
    lowest, evaluations = (-math.inf if own else 0.0), run.record.all(keys.EVAL_ACCURACY)
    if wrong := [e for e in evaluations if not (is_number(e.value) and lowest <= e.value <= most)]:
        value = wrong[0].value
        hint = "; it looks like percent" if is_number(value) and 1 < value <= 100 else ""
        more = f" ({len(wrong)} such events)" if len(wrong) > 1 else ""
        message = f"eval_accuracy is {short(value)}, not a number from {lowest:g} to {most:g}{hint}{more}"
        level: Level = "warning" if own and all(is_number(event.value) for event in wrong) else "error"
        yield run.finding(level, "quality-range", message, wrong[0])
    perfect = [event for event in evaluations if event.value == most]
    if perfect and not run.record.is_demonstration:
        message = f"eval_accuracy is {short(perfect[0].value)}, a perfect score that no model of this benchmark has"
        yield run.finding("warning", "quality-range", message, perfect[0])


def evaluation_pairs(run: CheckedRun) -> Iterator[Finding]:
    """Report values without an eval_start of their own in logs that have any eval_start."""
    if run.record.first(keys.EVAL_START) is None:
        return
    begun, last = False, None
    unmarked = []
    for event in run.record.timed:
        if event.key == keys.EVAL_START:
            begun = True
        elif event.key == keys.EVAL_ACCURACY:
            at = progress_of(event, run.benchmark)
            if not begun and (last is None or at != progress_of(last, run.benchmark)):
                unmarked.append(event)
            begun, last = False, event
    if unmarked:
        message = f"{len(unmarked)} of {len(run.evaluations())} eval_accuracy lack an eval_start of their own"
        yield run.finding("warning", "evaluation-pairs", message, unmarked[0])
