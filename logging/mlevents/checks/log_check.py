"""The strict checks of one log: what the rules ask of a run, most of which MLCommons' checker never looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mlevents import keys
from mlevents.checks import metadata_checks, quality, sequence_checks, timed_region
from mlevents.checks.check_context import CheckedRun
from mlevents.checks.finding import Finding
from mlevents.checks.required_keys import check_required
from mlevents.checks.result_set import check_set
from mlevents.event import is_number, short
from mlevents.record import RunRecord, read
from mlevents.rounds import MLPERF_RULESETS, Ruleset, default_ruleset, round_of_path, rulesets_of
from mlevents.rounds import ruleset as find_ruleset
from mlevents.summary import RunSummary, summarize

__all__ = ["CheckReport", "check", "check_record", "check_set"]

SUBMISSION: Final = (
    keys.SUBMISSION_BENCHMARK,
    keys.SUBMISSION_DIVISION,
    keys.SUBMISSION_ORG,
    keys.SUBMISSION_PLATFORM,
    keys.SUBMISSION_STATUS,
)


@dataclass(frozen=True)
class CheckReport:
    """The findings about one log, and the rules it was checked against."""

    path: Path
    ruleset: str
    summary: RunSummary
    findings: list[Finding] = field(default_factory=list)

    @property
    def demonstration(self) -> bool:
        """Whether it ran on other data than its benchmark's."""
        return self.summary.is_demonstration

    @property
    def passed(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.level != "error" for finding in self.findings)


def check(path: Path, ruleset: str | None = None) -> CheckReport:
    """Read and check the log at `path`, by default against its benchmark's own round.

    Raises FileNotFoundError or IsADirectoryError for the path, ValueError for an unknown ruleset.
    """
    record = read(path)
    if ruleset is None:
        ruleset = usual_ruleset(record.benchmark, path)
    return CheckReport(path, ruleset, summarize(record), check_record(record, ruleset))


def usual_ruleset(benchmark: str | None, path: Path) -> str:
    """The ruleset for a log at `path` unless told otherwise: that of the round whose folder it lies in, else the
    benchmark's; for a benchmark that no round has the newest, which will say so.
    """
    if of_folder := round_of_path(path.absolute()):
        return of_folder
    return default_ruleset(benchmark) if benchmark and rulesets_of(benchmark) else list(MLPERF_RULESETS)[-1]


def check_record(record: RunRecord, ruleset: str | Ruleset) -> list[Finding]:
    """All findings about `record`: those of its reading first, then the rules' in a fixed order.

    Raises ValueError for an unknown ruleset name, nothing on the log's content.
    """
    rules = find_ruleset(ruleset) if isinstance(ruleset, str) else ruleset
    if not record.events:
        return list(record.problems)
    run = CheckedRun(record, rules)
    findings = [*record.problems, *check_required(run)]
    for rule in _RULES:
        findings.extend(rule(run))
    return findings


def _demonstration(run: CheckedRun) -> Iterator[Finding]:
    if run.record.is_demonstration:
        own = f"the benchmark's {run.benchmark.dataset}" if run.benchmark else "that of a known benchmark"
        yield run.finding(
            "note",
            "demonstration",
            f"demonstration: dataset {short(run.record.dataset)[1:-1]} is not {own}; cannot be a submission",
            run.record.last(keys.DATASET),
        )


def _resumed(run: CheckedRun) -> Iterator[Finding]:
    """A run that was interrupted and went on. The rules time "a contiguous period" whose clock "may not be paused"
    (training_rules.adoc, "Run Results"): it is for finishing and for finding faults, not for a closed result."""
    for event in run.record.all(keys.RESUMED):
        message = (
            f"the run was stopped and went on after {short(event.value)} steps; its time includes the interruption"
        )
        gap = event.metadata.get("gap_seconds")
        if is_number(gap) and gap < 0:
            message = f"the run went on {-gap:.3f} s before it was stopped: the clock was set back while it stood still"
            yield run.finding("error", "resumed", f"{message}, and its time means nothing", event)
        elif run.record.division == keys.CLOSED:
            yield run.finding("error", "resumed", f"{message}, and the closed division allows no such run", event)
        elif event.metadata.get("clock_compared") is False:
            message += ", whose length the wall clock alone tells: the machine was another, or booted again"
            yield run.finding("warning", "resumed", message, event)
        else:
            yield run.finding("note", "resumed", message, event)


def _fault(run: CheckedRun) -> Iterator[Finding]:
    for event in run.record.all(keys.FAULT):
        message = f"a fault was asked for ({short(event.value)}): the run was a test of what follows, and no result"
        yield run.finding("error", "fault", message, event)


def _known_benchmark(run: CheckedRun) -> Iterator[Finding]:
    if run.record.benchmark is not None and run.benchmark is None:
        yield run.finding(
            "error",
            "benchmark-known",
            f"no rules for benchmark {short(run.record.benchmark)} in ruleset {run.rules.name} are known here "
            f"(known: {', '.join(run.rules.benchmarks)}), so its target was not checked",
            run.record.last(keys.SUBMISSION_BENCHMARK),
        )


def _submission_order(run: CheckedRun) -> Iterator[Finding]:
    stop = run.record.first(keys.INIT_STOP)
    if stop is None:
        return
    for key in SUBMISSION:
        event = run.record.first(key)
        if event is not None and run.position[id(event)] > run.position[id(stop)]:
            where = f"{key} stands after init_stop (line {stop.line})"
            if key == keys.SUBMISSION_DIVISION:
                message = f"{where}, where MLCommons' checker needs the division to know the limit of initialization"
                yield run.finding("error", "submission-order", message, event)
            else:
                yield run.finding("note", "submission-order", f"{where}; log what is submitted before it", event)


def _seed(run: CheckedRun) -> Iterator[Finding]:
    seeds = run.record.all(keys.SEED)
    if not seeds:
        yield run.finding("warning", "seed", "no seed is logged, so repeated runs cannot be told from copies")
    elif any(isinstance(event.value, bool) or not isinstance(event.value, int) for event in seeds):
        yield run.finding("error", "seed", "a seed is logged that is not an integer", seeds[0])
    elif len({event.value for event in seeds}) > 1:
        values = ", ".join(str(event.value) for event in seeds[:8])
        yield run.finding("warning", "seed", f"several seeds are logged ({values}); a run has one", seeds[1])


_RULES: Final[tuple[Callable[[CheckedRun], Iterable[Finding]], ...]] = (
    _demonstration,
    _resumed,
    _fault,
    _known_benchmark,
    _submission_order,
    metadata_checks.counts,
    metadata_checks.names,
    metadata_checks.one_value,
    metadata_checks.look_alikes,
    timed_region.order,
    timed_region.outside,
    timed_region.set_back,
    timed_region.duration,
    timed_region.status,
    quality.target,
    quality.value_range,
    quality.evaluation_pairs,
    sequence_checks.time_steps,
    timed_region.cache_clear,
    sequence_checks.numbering,
    sequence_checks.pairs,
    sequence_checks.nesting,
    timed_region.initialization,
    _seed,
    timed_region.clock_agreement,
    timed_region.clock_set,
    sequence_checks.evaluation_interval,
)
