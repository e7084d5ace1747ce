"""Examination of a config before a run: its settings, this machine, and the logs and package of a dry run."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import torch

from judging.checking.verdicts import worst_first
from judging.ground import result_files, stdio
from judging.ground.errors import TimedrunError, UsageError, describe
from mlevents import keys
from mlevents.event import Finding, Level
from mlevents.mlcommons import CheckStatus
from mlevents.rounds import Ruleset
from mlevents.rounds.own_rules import BEYOND_MLPERF, in_force
from mlevents.terminal_escape import printable
from timedrun.evidence.preflight import checks, dry_run_report, machine_checks
from timedrun.evidence.preflight.dry_run_report import DryRunReport
from timedrun.evidence.preflight.hints import hint
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup, choose_device
from timedrun.runner.plan import Plan
from timedrun.runner.process.process_times import CpuReading
from timedrun.runner.provenance.system_answers import Answers
from timedrun.runner.run import page_cache
from timedrun.runner.run.result_set import other_config
from timedrun.runner.run.worker import LaunchOptions

UNCHECKED = "not checked here"


@dataclass(frozen=True, kw_only=True)
class HintedFinding(Finding):
    """A finding with the change that resolves it; "" if no setting does."""

    change: str


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """Verdicts on the dry run of a config, and all findings of its pre-flight."""

    path: str  # name of the config
    benchmark: str
    strict: CheckStatus
    official: CheckStatus
    ruleset: str
    checker: str
    runs: int
    demonstration: bool
    findings: list[HintedFinding]

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    @property
    def text(self) -> str:
        kind = " (demonstration, not a submission)" if self.demonstration else ""
        by = f" by {self.checker}" if self.checker else ""
        official = "not applicable" if self.ruleset == BEYOND_MLPERF else f"{self.official}{by}"
        verdicts = f"dry run of {self.runs} runs: strict {self.strict}, official {official}"
        verdicts = "no dry run" if self.strict == "not run" else verdicts
        lines = [f"{self.path}: {verdicts}, ruleset {self.ruleset}{kind}"]
        for finding in self.findings:
            change = f": {finding.change}" if finding.change else ""
            lines.append(f"    {finding.level} [{finding.rule}] {finding.message}{change}")
        counted = f"{self.errors or 'no'} error{'' if self.errors == 1 else 's'}"
        lines.append(f"{counted}; nothing was run and no files were written")
        return "\n".join(stdio.fitted(printable(line), 8) for line in lines)


@dataclass(frozen=True)
class Examination:
    """Every check of a config that is possible before a run."""

    benchmark: Benchmark
    config: RunConfig
    options: LaunchOptions  # of the next run in its folder
    _: KW_ONLY
    ranks: int = 1
    ruleset: str | None = None
    answers: Answers | None = None

    @cached_property
    def rules(self) -> Ruleset:
        return in_force(self.ruleset or self.benchmark.spec.ruleset, self.benchmark.spec.own_rules)

    @cached_property
    def planned(self) -> ProcessGroup:
        """Process group to plan with: one rank if they do not divide the batch, the CPU if the device is missing."""
        ranks, device = self.ranks, torch.device("cpu")
        try:
            BatchPlan.of(self.config.global_batch, self.config.micro_batch, ranks)
        except UsageError:
            ranks = 1
        with suppress(UsageError):
            device = choose_device(self.config.device)
        return ProcessGroup(0, ranks, 0, device)

    @property
    def is_target_machine(self) -> bool:
        """True if the config may be meant to run here: it uses the CPU, or there is a CUDA device."""
        return self.config.device == "cpu" or torch.cuda.is_available()

    def report(self) -> PreflightReport:
        """Run the checks."""
        benchmark, config, spec, before = self.benchmark, self.config, self.benchmark.spec, CpuReading.now()
        result_files.require_ruleset(self.ruleset)
        runs = self.rules.benchmarks.get(spec.mlperf_benchmark, spec.rules).runs  # by its own round if this lacks it
        findings = [*found("error", "settings", *checks.settings_problems(benchmark, config, self.ranks))]
        findings += self.device_findings()
        missing, dry_run = "", DryRunReport()
        try:
            plan = benchmark.plan(config, self.planned, self.options.data_folder)
            missing = plan.missing
            epochs = plan.total if spec.rules.unit == "epoch" else None
            samples = plan.run_info["train_samples"]
            unused = samples - config.epoch_steps(samples) * config.global_batch if epochs else 0
            said = f"an epoch leaves out {unused:,} of {samples:,} samples; use a smaller --global-batch"
            findings += found("warning", "batch", *[said] * (unused > samples / 10))
            schedule = [*self.schedule_findings(plan)]
            dry_run = dry_run_report.report(benchmark, config, plan, self.rules, runs, self.planned, self.answers)
            findings += [*schedule, *(finding for finding in dry_run.findings if not is_explained(finding, schedule))]
        except (TimedrunError, ArithmeticError, ValueError, RuntimeError, OSError) as error:
            _, why = describe(error) or (0, error)
            findings += found("error", "dry-run", f"no dry run of this config is possible: {why}")
        findings += self.data_findings(missing)
        findings += self.machine_findings(runs)
        load = machine_checks.load_problems(before, self.options.threads, self.ranks)
        findings += found("warning", "load", *load)
        return PreflightReport(
            path=config.name,
            benchmark=benchmark.name,
            strict=dry_run.strict,
            official=dry_run.official,
            ruleset=self.rules.name,
            checker=dry_run.checker,
            runs=runs,
            demonstration=config.dataset != spec.rules.dataset,
            findings=[
                HintedFinding(**vars(finding), change=hint(finding, config, spec.mlperf_benchmark, self.rules))
                for finding in worst_first(findings)
            ],
        )

    def device_findings(self) -> Iterator[Finding]:
        """Yield the faults of the devices, or a note if this machine has none to check."""
        config, ranks = self.config, self.ranks
        problems = checks.device_problems(config, ranks)
        if self.is_target_machine or (config.device == "auto" and ranks == 1 and config.precision != "fp16"):
            return found("error", "device", *problems)  # such a run would be one on this CPU
        unknown = f"it is not known if each rank (--ranks {ranks}) has one that supports {config.precision}"
        return found("note", "device", f"{UNCHECKED}: torch sees no CUDA device, so {unknown}")

    def schedule_findings(self, plan: Plan) -> Iterator[Finding]:
        """Yield the faults of the evaluation schedule, and the limits of the division that only a run can check."""
        config, every, first = self.config, self.config.evaluation.every, self.config.evaluation.first
        if first > plan.total:
            said = f"evaluation.first {first} is after the end of the run, {plan.total}: use --evaluation.first"
            yield from found("error", "evaluation-end", said)
        elif every >= 1 and (plan.total - first) % every:
            end = f"do not include the end, {plan.total}, which is evaluated as well"
            yield from found("note", "evaluation-interval", f"evaluations every {every} from {first} {end}")
        if config.submission.division == keys.CLOSED:
            own = self.rules.benchmarks.get(self.benchmark.spec.mlperf_benchmark)
            asked = own.evaluation_interval.at(config.global_batch) if own and own.evaluation_interval else None
            slack = config.global_batch if own and own.unit == "samples" else 0
            if asked is not None and abs(asked - every) > slack:
                said = f"the closed division requires {asked}: use --evaluation.every {asked}"
                yield from found("error", "evaluation-interval", f"evaluation.every is {every}; {said}")
            limit = f"limit of {self.rules.init_minutes[keys.CLOSED]:g} minutes from init_start to init_stop"
            yield from found("note", "init-limit", f"{UNCHECKED}: the closed division's {limit}")

    def data_findings(self, missing: str) -> Iterator[Finding]:
        """Yield the faults of the config's data; those that need the data or the device of another machine are notes.

        missing: the error of a missing data folder."""
        config, folder, hook = self.config, self.options.data_folder, self.benchmark.hook
        unavailable = None if self.is_target_machine else hook("datasets", "unavailable")
        elsewhere = {missing, *(unavailable(config) if unavailable else ())}
        problems = checks.data_problems(self.benchmark, config, self.ranks, folder)
        yield from found("note", "data", *(f"{UNCHECKED}: {problem}" for problem in problems if problem in elsewhere))
        yield from found("error", "data", *(problem for problem in problems if problem not in elsewhere))
        if not problems and (doubts := hook("datasets", "data_notes")):
            yield from found("warning", "data", *doubts(config, folder, whole=False))

    def machine_findings(self, runs: int) -> Iterator[Finding]:
        """Yield the faults of the results folder, the clock and the page cache."""
        other = other_config(self.config, self.options.paths.folder)
        yield from found("error", "results", *machine_checks.result_problems(self.options.paths, False, runs))
        yield from found("error", "results", *filter(None, [other]))
        yield from found("warning", "clock-source", *machine_checks.clock_problems())
        if self.config.clear_cache and (obstacle := page_cache.obstacle()):
            level: Level = "error" if self.is_target_machine else "note"
            yield from found(level, "page-cache", f"the page cache cannot be cleared here: {obstacle}")


def found(level: Level, rule: str, *messages: str) -> Iterator[Finding]:
    return (Finding(level=level, rule=rule, message=message) for message in messages)


def is_explained(finding: Finding, schedule: Iterable[Finding]) -> bool:
    """Return True if `schedule` has a finding of the same rule and at least the same level."""
    levels = {other.level for other in schedule if other.rule == finding.rule}
    return bool(levels) and (finding.level != "error" or "error" in levels)
