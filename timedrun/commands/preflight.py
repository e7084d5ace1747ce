"""`timedrun preflight`: check a config's settings, this machine, and the logs and package of a dry run."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from judging.checking.verdicts import worst_first
from judging.ground import result_files, stdio
from judging.ground.config_values import flatten
from judging.ground.cores import usable_memory
from judging.ground.errors import ExitCode, TimedrunError, UsageError, describe
from mlevents import keys
from mlevents.event import Finding, Level
from mlevents.mlcommons import CheckStatus
from mlevents.rounds import Ruleset
from mlevents.rounds.convergence_points import point_at
from mlevents.rounds.own_rules import BEYOND_MLPERF, in_force
from mlevents.terminal_escape import printable
from timedrun.benchmark import Benchmark
from timedrun.commands.chosen_config import settings_of
from timedrun.config import RunConfig, plain
from timedrun.distributed.process_group import ProcessGroup, choose_device
from timedrun.distributed.process_times import CpuReading
from timedrun.preflight import checks, dry_run_report, machine_checks, step_memory
from timedrun.preflight.dry_run_report import DryRunReport
from timedrun.preflight.hints import hint, method_hints
from timedrun.preflight.plan import Plan
from timedrun.provenance.system_answers import Answers, open_keys, read_answers
from timedrun.run import page_cache
from timedrun.run.result_set import other_config
from timedrun.training.batch_plan import BatchPlan

UNCHECKED = "not checked here"


@dataclass(frozen=True, kw_only=True)
class HintedFinding(Finding):
    """A finding with the change that resolves it; "" if no setting does."""

    change: str


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """Verdicts on the dry run of a config, and all findings of its pre-flight."""

    path: str
    """Name of the config."""
    benchmark: str
    strict: CheckStatus
    official: CheckStatus
    ruleset: str
    checker: str
    runs: int
    demonstration: bool
    findings: list[HintedFinding]


def preflight(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Examine the config and print every finding; exit code 1 if any is an error."""
    benchmark, config = settings_of(arguments, rest)
    stdio.stage(f"timedrun preflight: settings, devices, data and a dry run of {config.name}", terminal_only=False)
    report = examine(
        benchmark,
        config,
        ranks=arguments.ranks,
        threads=arguments.threads,
        emulation=arguments.emulated_precision,
        data_folder=arguments.data_folder,
        ruleset=arguments.ruleset,
        answers=read_answers(arguments.answers) if arguments.answers else None,
        throughput=arguments.throughput,
        folder=Path("runs") / benchmark.name / config.name,
        memory=None if arguments.memory is None else device_memory(arguments.memory),
    )
    stdio.stage("")
    if arguments.json:
        print(json.dumps([asdict(report)], indent=2))
    else:
        stdio.show(as_text(report))
    return ExitCode.ERROR if any(finding.level == "error" for finding in report.findings) else ExitCode.OK


def examine(
    benchmark: Benchmark,
    config: RunConfig,
    *,
    ranks: int,
    threads: int = 0,
    emulation: bool = False,
    data_folder: Path | None,
    ruleset: str | None,
    answers: Answers | None,
    folder: Path,
    memory: int | None = None,
    throughput: float = 0.0,
) -> PreflightReport:
    """Run every check of `config` that is possible before a run.

    emulation: the CPU may compute in a number format for which it has no instructions. folder: of the results. memory:
    bytes of a GPU to estimate a step for. throughput: samples per second over all ranks; 0: times are not estimated.
    """
    spec, before = benchmark.spec, CpuReading.now()
    result_files.require_ruleset(ruleset)
    rules = in_force(ruleset or spec.ruleset, spec.own_rules)
    runs = rules.benchmarks.get(spec.mlperf_benchmark, spec.rules).runs  # by its own round if this one lacks it
    findings = findings_of("error", "settings", checks.settings_problems(benchmark, config, ranks))
    findings += device_findings(config, ranks, emulation=emulation)
    planned, missing, dry_run = ranks_of(config, ranks), "", None
    try:
        plan = benchmark.plan(config, planned, data_folder)
        missing = plan.missing
        epochs = plan.total if spec.unit == "epoch" else None
        samples = plan.run_info["train_samples"]
        unused = samples - config.epoch_steps(samples) * config.global_batch if epochs else 0
        said = f"an epoch leaves out {unused:,} of {samples:,} samples; use a smaller --global-batch"
        findings += findings_of("warning", "batch", [said] * (unused > samples / 10))
        findings += findings_of("note", "methods", method_hints(config.methods, epochs, config.dataset))
        schedule = schedule_findings(config, plan, rules, spec.mlperf_benchmark)
        dry_run = dry_run_report.report(benchmark, config, plan, rules, runs, planned, answers)
        if throughput:
            findings += findings_of("note", "length", length_notes(benchmark, config, plan, rules, throughput))
        findings += [*schedule, *(finding for finding in dry_run.findings if not is_explained(finding, schedule))]
    except (TimedrunError, ArithmeticError, ValueError, RuntimeError, OSError) as error:
        _, why = describe(error) or (0, error)
        findings += findings_of("error", "dry-run", [f"no dry run of this config is possible: {why}"])
    findings += data_findings(benchmark, config, ranks, data_folder, missing)
    findings += machine_findings(config, folder, runs)
    if memory is not None and dry_run is not None:
        findings += memory_findings(benchmark, config, planned.world_size, memory)
    findings += findings_of("warning", "load", machine_checks.load_problems(before, threads, ranks))
    if dry_run is not None and not any(finding.rule == "system-answers" for finding in findings):
        findings += answer_findings(dry_run, answers)
    return PreflightReport(
        path=config.name,
        benchmark=benchmark.name,
        strict=dry_run.strict if dry_run else "not run",
        official=dry_run.official if dry_run else "not run",
        ruleset=rules.name,
        checker=dry_run.checker if dry_run else "",
        runs=runs,
        demonstration=config.dataset != spec.dataset,
        findings=[
            HintedFinding(**vars(finding), change=hint(finding, config, spec.mlperf_benchmark, rules))
            for finding in worst_first(findings)
        ],
    )


def findings_of(level: Level, rule: str, messages: Iterable[str]) -> list[Finding]:
    return [Finding(level=level, rule=rule, message=message) for message in messages]


def is_target_machine(config: RunConfig) -> bool:
    """Return True if `config` may be meant to run here: it uses the CPU, or there is a CUDA device."""
    return config.device == "cpu" or torch.cuda.is_available()


def device_findings(config: RunConfig, ranks: int, *, emulation: bool) -> list[Finding]:
    """Return the faults of the devices, or a note if this machine has none to check."""
    problems = checks.device_problems(config, ranks, emulation=emulation)
    if is_target_machine(config) or (config.device == "auto" and ranks == 1 and config.precision != "fp16"):
        return findings_of("error", "device", problems)  # such a run would be one on this CPU
    unknown = f"it is not known if each rank (--ranks {ranks}) has one that supports {config.precision}"
    return findings_of("note", "device", [f"{UNCHECKED}: torch sees no CUDA device, so {unknown}"])


def data_findings(
    benchmark: Benchmark, config: RunConfig, ranks: int, data_folder: Path | None, missing: str
) -> list[Finding]:
    """Return the faults of the config's data; those that need the data or the device of another machine are notes."""
    unavailable = None if is_target_machine(config) else benchmark.hook("datasets", "unavailable")
    elsewhere = {missing, *(unavailable(config) if unavailable else ())}
    problems = checks.data_problems(benchmark, config, ranks, data_folder)
    notes = [f"{UNCHECKED}: {problem}" for problem in problems if problem in elsewhere]
    errors = [problem for problem in problems if problem not in elsewhere]
    doubts = benchmark.hook("datasets", "data_notes")
    warnings = findings_of(
        "warning", "data", doubts(config, data_folder, whole=False) if doubts and not problems else ()
    )
    return findings_of("note", "data", notes) + warnings + findings_of("error", "data", errors)


def machine_findings(config: RunConfig, folder: Path, runs: int) -> list[Finding]:
    """Return the faults of the results folder, the clock and the page cache."""
    paths = result_files.ResultPaths(folder, result_files.next_number(folder))
    findings = findings_of("error", "results", machine_checks.result_problems(paths, False, runs))
    if other := other_config(config, folder):
        findings += findings_of("error", "results", [other])
    findings += findings_of("warning", "results", machine_checks.set_problems(folder, runs))
    findings += findings_of("warning", "clock-source", machine_checks.clock_problems())
    if config.clear_cache and (obstacle := page_cache.obstacle()):
        level: Level = "error" if is_target_machine(config) else "note"
        findings += findings_of(level, "page-cache", [f"the page cache cannot be cleared here: {obstacle}"])
    return findings


def device_memory(gib: float) -> int:
    """Return `gib` in bytes; 0: the memory of this machine's first GPU, or without one what this process may use."""
    if gib or not torch.cuda.is_available():
        return int(gib * step_memory.GIB) or usable_memory(psutil.virtual_memory().total)
    return int(torch.cuda.get_device_properties(0).total_memory)


def memory_findings(benchmark: Benchmark, config: RunConfig, ranks: int, memory: int) -> list[Finding]:
    """Return estimates of the memory of a step and of an evaluation, warnings if it does not fit in `memory` bytes."""
    build_step = benchmark.hook("warm_up", "build_step")
    if build_step is None:
        return findings_of("note", "memory", [f"{benchmark.name} has no warm_up.build_step(config)"])
    room = step_memory.room(memory)
    planned = step_memory.estimate(build_step, config, ranks, config.micro_batch)
    best = step_memory.largest(build_step, config, ranks, room)
    size = f"{memory / step_memory.GIB:.1f} GiB"
    advice = "no micro-batch fits" if best is None else f"the largest that fits is --micro-batch {best.micro}"
    if best is not None and "micro_batch" not in benchmark.spec.supports:
        advice = f"--global-batch {best.micro * ranks} fits"
    said = f"in forward passes of {planned.micro}, a step takes an estimated {planned} of {size}; {advice}"
    findings = findings_of("note" if planned.total <= room else "warning", "memory", [said])
    if isinstance(batch := flatten(plain(config)).get("data.eval_batch"), int):
        held = step_memory.estimate(build_step, config, ranks, max(1, batch // ranks), training=False)
        said = f"an evaluation in batches of {batch} takes an estimated {held} of {size}"
        fitting = int(held.micro * (room - held.total + held.activations) / held.activations) * ranks
        advice = f"; about --data.eval-batch {fitting} fits" if held.total > room and fitting > 0 else ""
        findings += findings_of("note" if held.total <= room else "warning", "memory", [said + advice])
    return findings


def answer_findings(dry_run: DryRunReport, answers: Answers | None) -> list[Finding]:
    """Return the open questions of the system description, for a dry run without a package."""
    try:
        needed, _ = open_keys(answers.applied(dry_run.system) if answers else dry_run.system)
    except UsageError as error:
        return findings_of("error", "system-answers", [str(error)])
    return findings_of("warning", "system-answers", [f"unanswered: {', '.join(needed)}"] if needed else [])


def ranks_of(config: RunConfig, ranks: int) -> ProcessGroup:
    """Return the process group to plan with: one rank if the ranks do not divide the batch, the CPU if the device is
    missing."""
    try:
        BatchPlan.of(config.global_batch, config.micro_batch, ranks)
    except UsageError:
        ranks = 1
    try:
        device = choose_device(config.device)
    except UsageError:
        device = torch.device("cpu")
    return ProcessGroup(0, ranks, 0, device)


def length_notes(benchmark: Benchmark, config: RunConfig, plan: Plan, rules: Ruleset, throughput: float) -> list[str]:
    """Return the samples and tokens of a run and its time on the clock at `throughput` samples per second over all
    ranks, without its evaluations: of the longest run and, on the benchmark's own data, of the reference's runs."""
    spec, info = benchmark.spec, plan.run_info
    unit = 1.0 if spec.unit == "samples" else float(info["train_samples"])
    length = info.get("hyperparameters", {}).get(keys.MAX_SEQUENCE_LENGTH)
    named = {"the longest run": plan.total * unit}
    point = point_at(rules, spec.mlperf_benchmark, config.global_batch)
    if point is not None and config.dataset == spec.dataset:
        named[f"the reference's runs at batch {point.batch_size}, on average"] = point.mean * unit
    notes = []
    for name, samples in reversed(named.items()):
        tokens, rate = "", ""
        if isinstance(length, int):
            tokens, rate = f", {samples * length:,.0f} tokens", f" ({throughput * length:,.0f} tokens per second)"
        hours = samples / throughput / 3600
        notes.append(f"{name}: {samples:,.0f} samples{tokens}; {hours:,.2f} h at {throughput:g} per second{rate}")
    return notes


def schedule_findings(config: RunConfig, plan: Plan, rules: Ruleset, benchmark: str) -> list[Finding]:
    """Return the faults of the evaluation schedule, and the limits of the division that only a run can check."""
    every, first, findings = config.evaluation.every, config.evaluation.first, list[Finding]()
    if first > plan.total:
        message = f"evaluation.first {first} is after the end of the run, {plan.total}: use --evaluation.first"
        findings += findings_of("error", "evaluation-end", [message])
    elif every >= 1 and (plan.total - first) % every:
        end = f"do not include the end, {plan.total}, which is evaluated as well"
        findings += findings_of("note", "evaluation-interval", [f"evaluations every {every} from {first} {end}"])
    if config.submission.division == keys.CLOSED:
        own = rules.benchmarks.get(benchmark)
        asked = own.evaluation_interval.at(config.global_batch) if own and own.evaluation_interval else None
        slack = config.global_batch if own and own.unit == "samples" else 0
        if asked is not None and abs(asked - every) > slack:
            said = f"evaluation.every is {every}; the closed division requires {asked}: use --evaluation.every {asked}"
            findings += findings_of("error", "evaluation-interval", [said])
        limit = f"limit of {rules.init_minutes[keys.CLOSED]:g} minutes from init_start to init_stop"
        findings += findings_of("note", "init-limit", [f"{UNCHECKED}: the closed division's {limit}"])
    return findings


def is_explained(finding: Finding, schedule: Iterable[Finding]) -> bool:
    """Return True if `schedule` has a finding of the same rule and at least the same level."""
    levels = {other.level for other in schedule if other.rule == finding.rule}
    return bool(levels) and (finding.level != "error" or "error" in levels)


def as_text(report: PreflightReport) -> str:
    kind = " (demonstration, not a submission)" if report.demonstration else ""
    by = f" by {report.checker}" if report.checker else ""
    official = "not applicable" if report.ruleset == BEYOND_MLPERF else f"{report.official}{by}"
    verdicts = f"dry run of {report.runs} runs: strict {report.strict}, official {official}"
    verdicts = "no dry run" if report.strict == "not run" else verdicts
    lines = [f"{report.path}: {verdicts}, ruleset {report.ruleset}{kind}"]
    for finding in report.findings:
        change = f": {finding.change}" if finding.change else ""
        lines.append(f"    {finding.level} [{finding.rule}] {finding.message}{change}")
    errors = sum(finding.level == "error" for finding in report.findings)
    lines.append(f"{errors or 'no'} error{'' if errors == 1 else 's'}; nothing was run and no files were written")
    return "\n".join(stdio.fitted(printable(line), 8) for line in lines)
