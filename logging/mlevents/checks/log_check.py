"""Run the strict checks of one log; MLCommons' checker covers few of the rules that they enforce."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mlevents import keys
from mlevents.checks import metadata_checks, plausibility, quality, sequence_checks, timed_region
from mlevents.checks.check_context import CheckedRun
from mlevents.checks.required_keys import check_required
from mlevents.event import Finding, Level, is_number, short
from mlevents.machine_load import disturbances
from mlevents.record import RunRecord, read
from mlevents.rounds import KNOWN_ROUNDS, MLPERF_RULESETS, NO_RULES, Ruleset, is_older, named_round, own_rules
from mlevents.summary import SUBMISSION, RunSummary, summarize


@dataclass(frozen=True)
class CheckReport:
    """Findings about one log, and the ruleset it was checked against."""

    path: Path
    ruleset: str
    summary: RunSummary
    findings: list[Finding] = field(default_factory=list)

    @property
    def demonstration(self) -> bool:
        """True if the run used other data than its benchmark's."""
        return self.summary.is_demonstration

    @property
    def passed(self) -> bool:
        """True if no finding is an error."""
        return all(finding.level != "error" for finding in self.findings)


def check(path: Path, ruleset: str | None = None) -> CheckReport:
    """Read and check the log at `path`, by default against the ruleset of `usual_ruleset`. Raises FileNotFoundError, or
    ValueError for an unknown ruleset."""
    record = read(path)
    summary = summarize(record)
    ruleset = usual_ruleset(summary) if ruleset is None else ruleset
    return CheckReport(path, ruleset, summary, check_record(record, ruleset))


def usual_ruleset(log: RunSummary) -> str:
    """Return the default ruleset of a log: the one that it names, else that of the round whose folder contains it, else
    that of its benchmark and date; `NO_RULES` for a round or benchmark without rules, and the newest for a log that
    names no benchmark."""
    if log.ruleset:
        return log.ruleset
    if of_folder := named_round(log.path.absolute()):
        return of_folder if of_folder in MLPERF_RULESETS else NO_RULES.name
    if usual := own_rules.usual_ruleset_of(log.benchmark or "", log.own_rules, log.started_ms):
        return usual
    if dict(log.shared)[keys.BENCHMARK_RULES] is not None:  # malformed
        return own_rules.BEYOND_MLPERF
    return NO_RULES.name if log.benchmark else list(MLPERF_RULESETS)[-1]


def check_record(record: RunRecord, ruleset: str | Ruleset) -> list[Finding]:
    """Return all findings about `record`: those of reading it first, then those of the rules in a fixed order. Raises
    ValueError for an unknown ruleset, and nothing on the log's content."""
    rules = own_rules.in_force(ruleset, record.own_rules)
    if not record.events:
        return list(record.problems)
    run = CheckedRun(record, rules)
    findings = [*record.problems, *check_required(run)]
    for rule in _RULES:
        if rules.name != NO_RULES.name or rule in _OF_ANY_ROUND:
            findings.extend(rule(run))
    return findings


def _demonstration(run: CheckedRun) -> Iterator[Finding]:
    if run.record.is_demonstration:
        own = f"the benchmark's {run.benchmark.dataset}" if run.benchmark else "that of a known benchmark"
        message = f"dataset {short(run.record.dataset)[1:-1]} is not {own}; a demonstration cannot be a submission"
        yield run.finding("note", "demonstration", message, run.record.last(keys.DATASET))


def _resumed(run: CheckedRun) -> Iterator[Finding]:
    """Report interruptions. The rules time "a contiguous period" whose clock "may not be paused" (training_rules.adoc,
    "Run Results"), so a closed result may not be resumed."""
    for event in run.record.all(keys.RESUMED):
        message = f"the run was interrupted and resumed after {short(event.value)} steps; its time includes the gap"
        gap = event.metadata.get("gap_seconds")
        if is_number(gap) and gap < 0:
            message = f"the run was resumed {-gap:.3f} s before its interruption: the clock was set back during the gap"
            yield run.finding("error", "resumed", f"{message}, so its time is invalid", event)
        elif run.record.division == keys.CLOSED:
            yield run.finding("error", "resumed", f"{message}; the closed division does not allow resumed runs", event)
        elif event.metadata.get("clock_compared") is False:
            message += ", measured by the wall clock alone, since the machine was rebooted or is another one"
            yield run.finding("warning", "resumed", message, event)
        else:
            yield run.finding("note", "resumed", message, event)


def _machine_load(run: CheckedRun) -> Iterator[Finding]:
    """Report interference from other load on the machine, which this project's runs log."""
    if loads := disturbances(run.record):
        message = f"the machine had other load: {'; '.join(loads)}; the time may be wrong: run it again"
        yield run.finding("warning", "machine-load", message, run.record.last(keys.MACHINE_LOAD))


def _known_benchmark(run: CheckedRun) -> Iterator[Finding]:
    if run.rules.name == NO_RULES.name:
        record = run.record
        of_round = record.text(keys.RULESET) or named_round(record.path.absolute())
        what = f"round {of_round}" if of_round else f"benchmark {short(record.benchmark)}"
        if not of_round and record.started and is_older(record.benchmark, record.started.time_ms):
            of_round = what = "a round as old as the run, by its date,"
        message = (
            f"there are no rules for {what} here, but for {KNOWN_ROUNDS}: only clock, status and seed were checked, "
        )
        # A name that no round has may be a mistake of this log.
        level: Level = "warning" if of_round else "error"
        rule = "no-rules" if of_round else "benchmark-known"
        yield run.finding(level, rule, f"{message}and MLCommons' checker was not run")
    elif run.record.benchmark is not None and run.benchmark is None:
        known = ", ".join(run.rules.benchmarks)
        message = f"ruleset {run.rules.name} has no benchmark {short(run.record.benchmark)} (known: {known})"
        event = run.record.last(keys.SUBMISSION_BENCHMARK)
        yield run.finding("error", "benchmark-known", f"{message}; its target was not checked", event)


def _benchmark_rules(run: CheckedRun) -> Iterator[Finding]:
    """Report recorded rules that are malformed, or of a benchmark whose rules no log can set."""
    event = run.record.last(keys.BENCHMARK_RULES)
    if event is not None:
        try:
            own_rules.parse(run.record.benchmark, event.value)
        except ValueError as error:
            yield run.finding("error", "benchmark-rules", f"{error}; the rules in the log were ignored", event)


def _submission_order(run: CheckedRun) -> Iterator[Finding]:
    stop = run.record.first(keys.INIT_STOP)
    for event in filter(None, map(run.record.first, SUBMISSION)):
        if stop is not None and run.position[id(event)] > run.position[id(stop)]:
            where = f"{event.key} is logged after init_stop (line {stop.line})"
            if event.key == keys.SUBMISSION_DIVISION:
                message = f"{where}; MLCommons' checker needs the division earlier to select the initialization limit"
                yield run.finding("error", "submission-order", message, event)
            else:
                yield run.finding("note", "submission-order", f"{where}; log it before", event)


def _seed(run: CheckedRun) -> Iterator[Finding]:
    seeds = run.record.all(keys.SEED)
    if not seeds:
        yield run.finding("warning", "seed", "no seed is logged, so repeated runs cannot be distinguished from copies")
    elif any(isinstance(event.value, bool) or not isinstance(event.value, int) for event in seeds):
        yield run.finding("error", "seed", "a logged seed is not an integer", seeds[0])
    elif len({event.value for event in seeds}) > 1:
        values = ", ".join(str(event.value) for event in seeds[:8])
        yield run.finding("warning", "seed", f"several seeds are logged ({values}); a run has one", seeds[1])


_RULES: Final[tuple[Callable[[CheckedRun], Iterable[Finding]], ...]] = (
    *(_demonstration, _resumed, _machine_load, _known_benchmark, _benchmark_rules, _submission_order),
    *(metadata_checks.counts, metadata_checks.sizes, metadata_checks.closed_values, metadata_checks.batch),
    *(metadata_checks.micro_batch, metadata_checks.names, metadata_checks.one_value, metadata_checks.look_alikes),
    *(timed_region.order, timed_region.outside, timed_region.stopped_at_checkpoint, timed_region.set_back),
    *(timed_region.duration, timed_region.status, timed_region.stop_counts),
    *(quality.target, quality.value_range, quality.evaluation_pairs),
    *(sequence_checks.time_digits, sequence_checks.time_steps),
    timed_region.cache_clear,
    *(sequence_checks.event_types, sequence_checks.numbering, sequence_checks.pairs, sequence_checks.nesting),
    *(timed_region.initialization, _seed, timed_region.clock_agreement, timed_region.clock_set),
    sequence_checks.evaluation_interval,
    *(plausibility.single_evaluation, plausibility.instant_evaluations, plausibility.schedule),
    *(plausibility.throughput, plausibility.record_time, plausibility.date, plausibility.durations),
)
# What needs no fact about the benchmark, such as whether checkpoints are evaluated after the clock.
_OF_ANY_ROUND: Final = (
    *(_resumed, _machine_load, _known_benchmark, _benchmark_rules, _seed),
    *(metadata_checks.one_value, metadata_checks.look_alikes, sequence_checks.time_digits, timed_region.order),
    *(timed_region.duration, timed_region.status, timed_region.clock_agreement, timed_region.clock_set),
)
