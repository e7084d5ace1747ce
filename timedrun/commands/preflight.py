"""`timedrun preflight`: a config's settings, this machine, and a rehearsed set and package through every checker."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mlevents import keys
from mlevents.checks.finding import Finding, Level
from mlevents.rounds import RULESETS, Ruleset
from mlevents.terminal_escape import printable
from timedrun.benchmark import Benchmark, BenchmarkSpec
from timedrun.commands.run import settings_of
from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup, choose_device
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.preflight import checks, dry_run_report
from timedrun.preflight.dry_run import Plan
from timedrun.preflight.dry_run_report import Rehearsed
from timedrun.preflight.hints import remedy
from timedrun.provenance.system_answers import Answers, open_keys, read_answers
from timedrun.run import page_cache
from timedrun.storage import result_files
from timedrun.submission.verdicts import worst_first
from timedrun.training.batch_plan import BatchPlan

NOT_HERE = "not checked here"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """All that a pre-flight found, and what it looked at."""

    benchmark: str
    config: RunConfig
    rules: Ruleset
    runs: int
    demonstration: bool
    rehearsed: Rehearsed | None
    findings: list[Finding]
    changes: dict[Finding, str]

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return any(one.level == "error" for one in self.findings)


def preflight(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Examine the config and print everything found; exit code 1 where anything is an error."""
    benchmark, config = settings_of(arguments, rest)
    answers = read_answers(Path(arguments.answers)) if arguments.answers else None
    examined = examine(
        benchmark,
        config,
        ranks=arguments.ranks,
        data_folder=Path(arguments.data_folder) if arguments.data_folder else None,
        ruleset=arguments.ruleset,
        answers=answers,
        folder=Path("runs") / benchmark.name / config.name,
    )
    print(json.dumps([plain(examined)], indent=2) if arguments.json else text(examined))
    return ExitCode.ERROR if examined.failed else ExitCode.OK


def examine(
    benchmark: Benchmark,
    config: RunConfig,
    *,
    ranks: int,
    data_folder: Path | None,
    ruleset: str | None,
    answers: Answers | None,
    folder: Path,
) -> Examined:
    """Every check there is of `config` before a run of it; `folder` is where the results would go.

    Raises:
        UsageError: no such ruleset.
    """
    spec = benchmark.spec_of(config)
    rules, runs = rules_of(spec, ruleset)
    findings = made("error", "settings", checks.settings_problems(benchmark, config, ranks))
    findings += device_findings(config, ranks)
    planned, missing, rehearsed = ranks_of(config, ranks), "", None
    try:
        plan = plan_of(benchmark, config, planned, data_folder)
        missing = plan.missing
        told = course(config, plan, rules, spec.mlperf_benchmark)
        rehearsed = dry_run_report.examine(benchmark, config, plan, rules, runs, planned, answers)
        findings += [*told, *(one for one in rehearsed.findings if not same_cause(one, told))]
    except (TimedrunError, ValueError, RuntimeError, OSError) as error:
        findings += made("error", "rehearsal", [f"the run cannot be rehearsed: {error}"])
    findings += data_findings(benchmark, config, ranks, data_folder, missing)
    findings += machine_findings(config, folder, runs)
    if rehearsed is not None and not any(one.rule == "system-answers" for one in findings):
        findings += unanswered(rehearsed, answers)
    return Examined(
        benchmark=benchmark.name,
        config=config,
        rules=rules,
        runs=runs,
        demonstration=config.dataset != spec.dataset,
        rehearsed=rehearsed,
        findings=worst_first(findings),
        changes={one: remedy(one, config, spec.mlperf_benchmark, rules) for one in findings},
    )


def made(level: Level, rule: str, messages: Iterable[str]) -> list[Finding]:
    """A finding of each message."""
    return [Finding(level=level, rule=rule, message=message) for message in messages]


def rules_of(spec: BenchmarkSpec, ruleset: str | None) -> tuple[Ruleset, int]:
    """The ruleset to check by, and the runs of a set: by the card's own round where `ruleset` lacks its benchmark.

    Raises:
        UsageError: no such ruleset, or nobody knows rules for the benchmark.
    """
    result_files.require_ruleset(ruleset)
    result_files.require_ruleset(spec.ruleset)
    rules, own = RULESETS[ruleset or spec.ruleset], RULESETS[spec.ruleset]
    benchmark = rules.benchmarks.get(spec.mlperf_benchmark) or own.benchmarks.get(spec.mlperf_benchmark)
    if benchmark is None:
        raise UsageError(f"no rules are known for {spec.mlperf_benchmark}, so no log of it can be checked.")
    return rules, benchmark.runs


def plan_of(benchmark: Benchmark, config: RunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """What the benchmark's `rehearse` says.

    Raises:
        UsageError: it has none.
    """
    rehearse: Callable[..., Plan] | None = getattr(benchmark.module("train"), "rehearse", None)
    if rehearse is None:
        raise UsageError(f"{benchmark.name}.train has no rehearse(config, ranks, data_folder).")
    return rehearse(config, ranks, data_folder)


def meant_for_here(config: RunConfig) -> bool:
    """Whether this machine can be the one to run on: without a CUDA device only where none is asked for."""
    return config.device == "cpu" or torch.cuda.is_available()


def device_findings(config: RunConfig, ranks: int) -> list[Finding]:
    """What is wrong with the devices; where none is here, that nothing is known of them."""
    problems = checks.device_problems(config, ranks)
    if meant_for_here(config):
        return made("error", "device", problems)
    if not problems and ranks == 1:
        return []  # it can run on this CPU
    words = f"{NOT_HERE}: torch sees no CUDA device, so it is not known whether each rank (--ranks {ranks}) has one"
    return made("note", "device", [f"{words} that can do {config.precision}"])


def data_findings(
    benchmark: Benchmark, config: RunConfig, ranks: int, data_folder: Path | None, missing: str
) -> list[Finding]:
    """What the benchmark says of the config and its data. What it can only say where data and devices are is a note."""
    own: Callable[[RunConfig], list[str]] | None = getattr(benchmark.module("datasets"), "unavailable", None)
    elsewhere = {missing, *(own(config) if own and not meant_for_here(config) else ())}
    problems = checks.data_problems(benchmark, config, ranks, data_folder)
    return [
        *made("note", "data", [f"{NOT_HERE}: {problem}" for problem in problems if problem in elsewhere]),
        *made("error", "data", [problem for problem in problems if problem not in elsewhere]),
    ]


def machine_findings(config: RunConfig, folder: Path, runs: int) -> list[Finding]:
    """What is wrong with the results folder, the clock and the page cache."""
    paths = result_files.ResultPaths(folder, result_files.next_number(folder))
    found = made("error", "results", checks.result_problems(paths, False, runs))
    found += made("warning", "results", checks.set_problems(folder, runs))
    found += made("warning", "clock-source", checks.clock_problems())
    if config.clear_cache and (obstacle := page_cache.obstacle()):
        level: Level = "error" if meant_for_here(config) else "note"
        found += made(level, "page-cache", [f"caches cannot be cleared here: {obstacle}"])
    return found


def unanswered(rehearsed: Rehearsed, answers: Answers | None) -> list[Finding]:
    """What the system description still lacks, where no package was made that tells."""
    try:
        needed, _ = open_keys(answers.applied(rehearsed.system) if answers else rehearsed.system)
    except UsageError as error:
        return made("error", "system-answers", [str(error)])
    return made("warning", "system-answers", [f"no answer yet: {', '.join(needed)}"] if needed else [])


def ranks_of(config: RunConfig, ranks: int) -> ProcessGroup:
    """The ranks a run would have; one where they cannot share the batch, and on the CPU where there is no device."""
    try:
        BatchPlan.of(config.global_batch, config.micro_batch, ranks)
    except UsageError:
        ranks = 1
    try:
        device = choose_device(config.device)
    except UsageError:
        device = torch.device("cpu")
    return ProcessGroup(0, ranks, 0, device)


def course(config: RunConfig, plan: Plan, rules: Ruleset, benchmark: str) -> list[Finding]:
    """What is odd about when the run would be evaluated, and what of its division's limits cannot be known before."""
    every, first, found = config.evaluation.every, config.evaluation.first, []
    if first > plan.total:
        message = f"evaluation.first {first} lies beyond the end of the run, {plan.total}: use --evaluation.first"
        found.append(Finding(level="error", rule="evaluation-end", message=message))
    elif every >= 1 and (plan.total - first) % every:
        message = f"evaluations every {every} from {first} do not fall on the end, {plan.total}, which is evaluated too"
        found.append(Finding(level="note", rule="evaluation-interval", message=message))
    if config.submission.division == keys.CLOSED:
        own = rules.benchmarks.get(benchmark)
        asked = own.evaluation_interval.at(config.global_batch) if own and own.evaluation_interval else None
        slack = config.global_batch if own and own.unit == "samples" else 0
        if asked is not None and abs(asked - every) > slack:
            message = f"evaluation.every is {every}; the closed division asks {asked}: use --evaluation.every {asked}"
            found.append(Finding(level="error", rule="evaluation-interval", message=message))
        limit = rules.init_minutes[keys.CLOSED]
        message = f"{NOT_HERE}: whether init_start to init_stop takes less than the closed division's {limit:g} minutes"
        found.append(Finding(level="note", rule="init-limit", message=message))
    return found


def same_cause(one: Finding, told: Iterable[Finding]) -> bool:
    """Whether `told`, which knows the config, has said of the same rule already what a log only shows."""
    levels = {other.level for other in told if other.rule == one.rule}
    return bool(levels) and (one.level != "error" or "error" in levels)


def plain(examined: Examined) -> dict[str, object]:
    """In the form of `timedrun check --json`, each finding with the change that it asks for."""
    rehearsed = examined.rehearsed
    return {
        "path": examined.config.name,
        "benchmark": examined.benchmark,
        "strict": rehearsed.strict if rehearsed else "not run",
        "official": rehearsed.official if rehearsed else "not run",
        "ruleset": examined.rules.name,
        "checker": rehearsed.checker if rehearsed else "",
        "runs": examined.runs,
        "demonstration": examined.demonstration,
        "findings": [asdict(one) | {"change": examined.changes.get(one, "")} for one in examined.findings],
    }


def text(examined: Examined) -> str:
    """The report in words."""
    rehearsed, kind = examined.rehearsed, " (demonstration, no submission)" if examined.demonstration else ""
    if rehearsed is None:
        verdicts = "not rehearsed"
    else:
        by = f" by {rehearsed.checker}" if rehearsed.checker else ""
        verdicts = f"{examined.runs} runs rehearsed: strict {rehearsed.strict}, official {rehearsed.official}{by}"
    lines = [f"{examined.config.name}: {verdicts}, ruleset {examined.rules.name}{kind}"]
    for one in examined.findings:
        change = examined.changes.get(one)
        lines.append(f"    {one.level} [{one.rule}] {one.message}{': ' + change if change else ''}")
    errors = sum(one.level == "error" for one in examined.findings)
    lines.append(f"{errors or 'no'} error{'' if errors == 1 else 's'}; nothing was run and nothing is kept")
    return "\n".join(map(printable, lines))
