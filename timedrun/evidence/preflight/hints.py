"""Hints: the option of a config that resolves a finding about its log, and what the methods' cards say of a stack."""

from collections.abc import Iterable
from itertools import combinations
from typing import Final

from mlevents import keys
from mlevents.event import Finding
from mlevents.rounds import RULESETS, Ruleset
from timedrun.methods import Method
from timedrun.runner.config import RunConfig
from timedrun.runner.storage.method_cards import cards

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


def method_hints(methods: Iterable[Method], epochs: int | None, dataset: str) -> list[str]:
    """Return a hint for each pair of methods that act on the same part of a step, and for each regularizer in a run
    that is shorter than those in which it helped.

    epochs: of the run; None: it counts samples.
    """
    known = [card for method in methods if (card := cards().get(method.name))]  # a user's own method has none
    hints = []
    for first, other in combinations(known, 2):
        if shared := [part for part in first.parts if part in other.parts]:
            how = first.interactions.get(other.name) or other.interactions.get(first.name)
            words = f"{first.name} and {other.name} both act on the {' and the '.join(shared)}"
            hints.append(f"{words}: {how}" if how else words)
    for card in known:
        if epochs is not None and epochs < card.least_epochs:
            hints.append(
                f"{card.name} is a regularizer, which cost accuracy on ImageNet below about {card.least_epochs} "
                f"epochs; this run has {epochs} of {dataset}: compare it with a run without it"
            )
    return hints
