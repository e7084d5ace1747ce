"""Published recipes for language models of transformers, number for number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timedrun.methods import ALiBi, MaskedHead, Method, SequenceLengthWarmup, Unpadding
from timedrun.methods.masked_language_model import LAST_LAYER
from timedrun.methods.training.optim import OptimizerConfig
from timedrun.methods.training.schedule import StepSchedule


@dataclass(frozen=True, kw_only=True)
class LanguageRecipe:
    """Name methods and hyper-parameters of a run that counts optimizer steps; `source` says what is published.

    Examples:
        >>> BERT.models
        ('BertForMaskedLM', 'RobertaForMaskedLM', 'DistilBertForMaskedLM')
        >>> BERT.optimizer.peak_lr
        0.0001
    """

    name: str
    source: str
    models: tuple[str, ...]
    """Classes of transformers for which the recipe is meant."""
    methods: Callable[[Any, int], tuple[Method, ...]]
    """(config of the model, optimizer steps of the run) -> methods."""
    optimizer: OptimizerConfig
    schedule: StepSchedule
    """Of the usual length; another length stretches it."""
    global_batch: int


BERT = LanguageRecipe(
    name="bert",
    source="MosaicML's BERT-Large of MLPerf Training v2.1 (open): optimizer, batch, and the two methods that any model"
    " can have. Own choice: a linear decay over the whole run after 80 of 1,430 steps of warm-up, because v2.1's"
    " milestones belong to a run from MLPerf's checkpoint.",
    models=tuple(LAST_LAYER),
    methods=lambda config, steps: (Unpadding(), MaskedHead()),
    optimizer=OptimizerConfig(
        kind="decoupled_adamw", peak_lr=1e-4, momentum=0.9, beta2=0.98, epsilon=1e-6, weight_decay=1e-5
    ),
    schedule=StepSchedule(kind="linear", steps=1430, warmup_steps=80),
    global_batch=448,
)

GPT = LanguageRecipe(
    name="gpt",
    source="MosaicML's recipe of 2022 for GPT-125M (7.8 h to 4.5 h on 8 A100): ALiBi and sequence length warm-up at"
    " Composer's defaults, and the settings of its baseline. The order of the two is not published.",
    models=("GPT2LMHeadModel",),
    methods=lambda config, steps: (
        ALiBi(),
        SequenceLengthWarmup(steps=steps, max_length=config.n_positions, pacing="composer_2022"),
    ),
    optimizer=OptimizerConfig(kind="adamw", peak_lr=6e-4, momentum=0.9, beta2=0.999, epsilon=1e-8),
    schedule=StepSchedule(kind="cosine", steps=14_000, warmup_steps=140),
    global_batch=512,
)

LANGUAGE_RECIPES: dict[str, LanguageRecipe] = {recipe.name: recipe for recipe in (BERT, GPT)}
"""Every recipe for language models by its name."""
