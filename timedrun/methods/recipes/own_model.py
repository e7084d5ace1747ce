"""A recipe applied to one's own model."""

import copy
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from judging.ground.errors import nearest
from timedrun.methods import Method, NoEffect, Stack, stack
from timedrun.methods.recipes.language_models import LANGUAGE_RECIPES
from timedrun.methods.recipes.published import RECIPES, budget_problem
from timedrun.methods.training import initialisation
from timedrun.methods.training.loss import LOSSES
from timedrun.methods.training.optim import OptimizerConfig, build_optimizer
from timedrun.methods.training.schedule import Schedule, StepSchedule

PLAIN_LOOP = ("before_step", "batch", "backward", "gradients", "after_step", "evaluation")
"""Calls of the loop in docs/recipes.md."""
LANGUAGE_LOOP = ("before_step", "batch_dict", "backward", "gradients", "after_step", "evaluation")
"""Calls of a loop over the batches of transformers, and of MethodsTrainer."""


class Training(NamedTuple):
    """Hold the parts of a training run by a recipe, for a loop that calls them.

    Examples:
        >>> training = recipe("baseline_nvidia", nn.Sequential(nn.Conv2d(3, 8, 3)), epochs=90)
        >>> training.schedule.factor(0.0), training.schedule.factor(8.0)
        (0.0, 1.0)
    """

    model: nn.Module
    """The given model, changed in place."""
    optimizer: Optimizer
    schedule: Schedule | StepSchedule
    """`schedule.factor(epochs done)` is the factor of the optimizer's rate; it may be a fraction of an epoch. That of a
    language model takes the steps done."""
    methods: Stack
    loss: Callable[..., Tensor]
    """Mean loss of logits for class indices or dense targets; of a language model's output, the loss in it."""


def recipe(
    name: str,
    model: nn.Module,
    *,
    epochs: int = 0,
    steps: int = 0,
    batch: int = 0,
    optimizer: OptimizerConfig | None = None,
    without: Collection[str] = (),
    initialize: bool = False,
    seed: int = 0,
    rank: int = 0,
    places: Collection[str] | None = None,
) -> Training:
    """Apply the methods of the recipe `name` to `model` and return them with its optimizer, schedule and loss.

    Call it with the model on its device, before `torch.compile` and DistributedDataParallel.

    Args:
        epochs: length of the run, within the recipe's range of budgets.
        steps: length of the run in optimizer steps, in place of `epochs`, for the recipes bert and gpt.
        batch: samples of an optimizer step over all ranks; 0: the recipe's. For another, the rate and a decoupled decay
            scale with it (Goyal et al. 2017, arXiv 1706.02677); numbers of steps, such as a moving average's half-life,
            do not. Adam's rate of a language model scales with its root (Malladi et al. 2022, arXiv 2205.10287).
        optimizer: in place of the recipe's, which is that of a convolutional network, BERT-Large or GPT-125M; it is
            not scaled.
        without: names of methods to leave out.
        initialize: draw new weights as the recipe does; by default the model keeps its own.
        seed: of `timedrun.methods.stack`.
        rank: of `timedrun.methods.stack`.
        places: calls that the loop makes, by default PLAIN_LOOP or, of a language model, LANGUAGE_LOOP; RandAugment, in
            the recipe hot, needs "augment" as well.

    Raises ValueError, before the model is changed, for a budget out of range, for another kind of model, and, with the
    reason, for methods that need a call which the loop does not make or that do not fit the model.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        >>> training = recipe("mild", net, epochs=30, batch=256, without=["blurpool"])
        >>> [method.name for method in training.methods.methods]
        ['log_bias', 'channels_last', 'progressive_resizing', 'label_smoothing', 'ema']
        >>> training.optimizer.param_groups[0]["lr"]
        0.256
    """
    if name in LANGUAGE_RECIPES:
        if epochs or initialize or not steps:
            raise ValueError(
                f"recipe {name} takes steps=..., neither epochs nor initialize: its model keeps its weights"
            )
        language = LANGUAGE_RECIPES[name]
        parts: list[Any] = [part for part in model.modules() if type(part).__name__ in language.models]
        if not parts:
            kinds = ", ".join(language.models)
            raise ValueError(f"recipe {name} is meant for transformers' {kinds}, not for {type(model).__name__}")
        chosen = language.methods(parts[0].config, steps)
        methods = _fitting(name, chosen, model, without, places or LANGUAGE_LOOP, seed, rank)
        rate = language.optimizer.peak_lr * math.sqrt(batch / language.global_batch if batch else 1.0)
        own = optimizer or replace(language.optimizer, peak_lr=rate)
        curve = language.schedule.stretched(steps / language.schedule.steps)
        model = methods.model(model)
        return Training(
            model, build_optimizer(own, model, fused="adamw" in own.kind), curve, methods, attrgetter("loss")
        )
    if name not in RECIPES:
        every = [*RECIPES, *LANGUAGE_RECIPES]
        raise ValueError(f"there is no recipe {name!r}.{nearest(name, every)} Recipes: {', '.join(every)}")
    if steps or not epochs:
        raise ValueError(f"recipe {name} takes epochs=..., not steps")
    if problem := budget_problem(name, epochs):
        raise ValueError(problem)
    published = RECIPES[name]
    scale = batch / published.global_batch if batch else 1.0
    methods = _fitting(name, published.methods, model, without, places or PLAIN_LOOP, seed, rank)
    if initialize:
        initialisation.initialize(model, published.initialisation)
    model = methods.model(model)
    own = published.optimizer
    decay = own.weight_decay * (scale if own.kind.startswith("decoupled") else 1)  # else the rate scales it
    scaled = replace(own, peak_lr=own.peak_lr * scale, weight_decay=decay)
    planned = published.schedule
    warmup = planned.warmup_epochs * (epochs / planned.epochs if planned.scale_warmup else 1)
    schedule = replace(planned, epochs=epochs, scale=1.0, warmup_epochs=warmup, scale_warmup=False)
    return Training(model, build_optimizer(optimizer or scaled, model), schedule, methods, LOSSES[published.loss])


def _fitting(
    name: str,
    given: Collection[Method],
    model: nn.Module,
    without: Collection[str],
    places: Collection[str],
    seed: int,
    rank: int,
) -> Stack:
    """Stack the methods of the recipe `name` but for those `without`. Raises ValueError with every method that cannot
    change `model`, by trying them on a copy."""
    if unknown := set(without).difference(method.name for method in given):
        has = ", ".join(method.name for method in given)
        raise ValueError(f"recipe {name} has no {', '.join(sorted(unknown))} to leave out; it has {has}")
    used = [method for method in given if method.name not in without]
    try:
        methods = stack(*used, seed=seed, rank=rank, places=places)
    except ValueError as error:
        raise ValueError(
            f"recipe {name}: {error} (without=...), or add the call to the loop and to places={tuple(places)}"
        ) from None
    tried, failed = copy.deepcopy(model), {}
    for method in used:
        try:
            tried = stack(method).model(tried)
        except (NoEffect, ValueError) as error:
            failed[method.name] = f"    {method.name}: {error}"
    if failed:
        reasons = "\n".join(failed.values())
        raise ValueError(
            f"recipe {name} does not fit this {type(model).__name__}, which was not changed:\n{reasons}\n"
            f"To train with the rest of it, pass without={tuple(failed)}."
        )
    return methods
