"""Hints: the option of a config that resolves a finding about its log."""

from typing import Final

from mlevents import keys
from mlevents.event import Finding
from mlevents.rounds import RULESETS, Ruleset
from timedrun.runner.config import RunConfig

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
VALUE_RULES: Final = frozenset({"vocabulary", "value-filled", "value-range", "constraint"})


def hint(finding: Finding, config: RunConfig, benchmark: str, rules: Ruleset) -> str:
    """Return the option or action that resolves the finding, as a clause; "" if no config setting does."""
    own = rules.benchmarks.get(benchmark)
    if finding.rule in ("target-reached", "quality-target") and own is not None:
        return f"use --evaluation.target {own.target}, or another --dataset name for a trial"
    if finding.rule == "quality-range":
        return "set --evaluation.target to a fraction"
    if finding.rule == "benchmark-known":
        offering = [name for name, value in RULESETS.items() if benchmark in value.benchmarks]
        return f"use --ruleset {' or '.join(offering)}" if offering else "no known ruleset has it"
    if finding.rule == "required-key":
        missing = "the benchmark's run_info.py must log it"
        if config.submission.division == keys.CLOSED:
            return f"{missing}, or use --submission.division open"
        return missing
    if finding.rule == "cache-clear" and not config.clear_cache:
        return "use --clear-cache"
    if finding.rule == "system-answers":
        return "complete the questions that `timedrun doctor --system --answers FILE` writes; pass --answers FILE"
    if finding.rule in VALUE_RULES:
        return next((f"use {option}" for key, option in OPTIONS.items() if finding.message.startswith(key)), "")
    return ""
