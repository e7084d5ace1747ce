"""What to change in a config so that a finding about its log goes away."""

from __future__ import annotations

from typing import Final

from mlevents import keys
from mlevents.checks.finding import Finding
from mlevents.rounds import RULESETS, Ruleset
from timedrun.config import RunConfig

OPTIONS: Final = {  # logged key -> the option that sets it
    keys.SUBMISSION_STATUS: "--submission.status",
    keys.SUBMISSION_DIVISION: "--submission.division",
    keys.SUBMISSION_ORG: "--submission.organization",
    keys.SUBMISSION_PLATFORM: "--submission.platform",
    keys.GLOBAL_BATCH_SIZE: "--global-batch",
    keys.OPT_NAME: "--optimizer.kind",
    keys.OPT_BASE_LR: "--optimizer.peak-lr",
    keys.OPT_WEIGHT_DECAY: "--optimizer.weight-decay",
}
OF_VALUES: Final = frozenset({"vocabulary", "value-filled", "value-range", "constraint"})


def remedy(finding: Finding, config: RunConfig, benchmark: str, rules: Ruleset) -> str:
    """The option to use, or what else to do, as half a sentence; "" where a config has nothing to do with it."""
    own = rules.benchmarks.get(benchmark)
    if finding.rule in ("target-reached", "quality-target") and own is not None:
        return f"use --evaluation.target {own.target}, or for a trial a --dataset name of its own"
    if finding.rule == "quality-range":
        return "give --evaluation.target as a fraction"
    if finding.rule == "benchmark-known":
        having = [name for name, one in RULESETS.items() if benchmark in one.benchmarks]
        return f"use --ruleset {' or '.join(having)}" if having else "no ruleset here has it"
    if finding.rule == "required-key":
        missing = "the benchmark's announcement (its train.py) has to log it"
        if config.submission.division == keys.CLOSED:
            return f"{missing}, or use --submission.division open"
        return missing
    if finding.rule == "cache-clear" and not config.clear_cache:
        return "use --clear-cache"
    if finding.rule == "system-answers":
        return "`timedrun system --out FILE` asks for them, --answers FILE takes them"
    if finding.rule in OF_VALUES:
        return next((f"use {option}" for key, option in OPTIONS.items() if finding.message.startswith(key)), "")
    return ""


def with_remedy(finding: Finding, config: RunConfig, benchmark: str, rules: Ruleset) -> str:
    """The finding's message and what to do about it."""
    change = remedy(finding, config, benchmark, rules)
    return f"{finding.message}: {change}" if change else finding.message
