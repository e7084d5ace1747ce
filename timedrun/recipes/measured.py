"""Recipes that our own sweeps and races found better than their tuned baselines, at the budgets that were measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from judging.ground.errors import UsageError
from timedrun.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A config of a benchmark as the recipe for its data."""

    benchmark: str
    dataset: str
    config: str
    unit: str
    """Of its budgets: epochs or steps."""
    own: int
    """Length of its schedule."""
    first: int
    """The shortest measured budget."""
    last: int
    found: str
    """What was measured, and where the logs are."""

    @property
    def budgets(self) -> str:
        lengths = f"{self.own}" if self.first == self.last else f"{self.first} to {self.last}"
        return f"{self.dataset}: {self.config}, {lengths} {self.unit}"

    def at(self, config: RunConfig, budget: int) -> RunConfig:
        """Return `config`, which is the recipe's, for a budget, 0: its own. Raises UsageError if none so long or so
        short was measured."""
        budget = budget or self.own
        if not self.first <= budget <= self.last:
            raise UsageError(f"no recipe was measured at {budget} {self.unit}; -O2 has one for {self.budgets}.")
        notes = f"{self.found} {config.notes}"
        if budget == self.own:
            return replace(config, notes=notes)
        return replace(config.stretched(budget / self.own), evaluation=config.evaluation, notes=notes)


TEXT: Final = "language_model"
MEASURED: Final = (
    Measured(
        benchmark="image_classification",
        dataset="cifar10",
        config="cifar10_methods",
        unit="epochs",
        own=4,
        first=3,
        last=6,
        found="89.6, 90.2 and 91.1 % after 3, 4 and 6 epochs (results/cifar10_methods_ablation), to 90 % in 1 / 2.96"
        " [2.76, 3.18] of the tuned baseline's time (results/cifar10).",
    ),
    Measured(
        benchmark=TEXT,
        dataset="topics",
        config="topics_methods",
        unit="steps",
        own=800,
        first=400,
        last=800,
        found="11.8 and 15.0 % after 400 and 800 steps, the baseline's in half of its time (results/bert_ablation).",
    ),
    Measured(
        benchmark=TEXT,
        dataset="topics_mixed",
        config="topics_mixed_methods",
        unit="steps",
        own=800,
        first=800,
        last=800,
        found="3.7 times as fast to its target as the baseline with fused attention (results/bert_topics_mixed).",
    ),
    Measured(
        benchmark=f"{TEXT}.fineweb",
        dataset="wikipedia",
        config="fineweb_small_methods",
        unit="steps",
        own=550,
        first=550,
        last=550,
        found="3.57 [3.05, 4.18] times as fast to its target as the baseline (results/gpt_wikipedia_small).",
    ),
    Measured(
        benchmark=f"{TEXT}.gpt",
        dataset="tinyshakespeare",
        config="shakespeare_modern",
        unit="steps",
        own=400,
        first=400,
        last=400,
        found="43 s to 1.89 nats, the baseline 133 s, one run each: no interval (results/gpt_shakespeare).",
    ),
)


def measured_recipe(benchmark: str, config: RunConfig) -> Measured | None:
    """Return the recipe for the data of `config`, None if none was measured."""
    return next((one for one in MEASURED if (one.benchmark, one.dataset) == (benchmark, config.dataset)), None)
