"""Recipes that our own sweeps and races found better than their tuned baselines, at the budgets that were measured."""

from dataclasses import replace
from typing import Final, NamedTuple

from judging.ground.errors import UsageError
from timedrun.runner.config import RunConfig


class Measured(NamedTuple):
    """A config of a benchmark as the recipe for its data. `own` is the length of its schedule, `first` and `last` are
    the shortest and the longest measured budgets, in `unit`; `found` says what was measured, and where the logs are."""

    benchmark: str
    dataset: str
    config: str
    unit: str
    own: int
    first: int
    last: int
    found: str

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
        long = config if budget == self.own else config.stretched(budget / self.own)
        return replace(long, evaluation=config.evaluation, notes=f"{self.found} {config.notes}")


IMAGES, TEXT = "image_classification", "language_model"
CIFAR10 = "90.4 % after 5 epochs (results/cifar10_freezing); by GELU after 3, 4, 6: results/cifar10_methods_ablation."
TOPICS = "11.8 and 15.0 % after 400 and 800 steps, the baseline's in half of its time (results/bert_ablation)."
MIXED = "2.9 times as fast to its target as the baseline with fused attention (results/bert_topics_mixed)."
FINEWEB = "5.60 [5.52, 5.69] times as fast to its target as the baseline (results/gpt_wikipedia_bigrams)."
SHAKESPEARE = "43 s to 1.89 nats, the baseline 133 s, one run each: no interval (results/gpt_shakespeare)."
MEASURED: Final = (
    Measured(IMAGES, "cifar10", "cifar10_methods", "epochs", 5, 3, 6, CIFAR10),
    Measured(TEXT, "topics", "topics_methods", "steps", 800, 400, 800, TOPICS),
    Measured(TEXT, "topics_mixed", "topics_mixed_methods", "steps", 800, 800, 800, MIXED),
    Measured(f"{TEXT}.fineweb", "wikipedia", "fineweb_small_methods", "steps", 375, 375, 375, FINEWEB),
    Measured(f"{TEXT}.gpt", "tinyshakespeare", "shakespeare_modern", "steps", 400, 400, 400, SHAKESPEARE),
)


def measured_recipe(benchmark: str, config: RunConfig) -> Measured | None:
    """Return the recipe for the data of `config`, None if none was measured."""
    wanted = (benchmark, config.dataset)
    return next((recipe for recipe in MEASURED if (recipe.benchmark, recipe.dataset) == wanted), None)
