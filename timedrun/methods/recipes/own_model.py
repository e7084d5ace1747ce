"""A recipe applied to one's own model."""

import copy
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from judging.ground.errors import nearest
from timedrun.methods import Method, NoEffect, Stack, stack
from timedrun.methods.recipes.published import RECIPES, Recipe, budget_problem
from timedrun.methods.training import initialisation
from timedrun.methods.training.loss import LOSSES
from timedrun.methods.training.optim import OptimizerConfig, build_optimizer
from timedrun.methods.training.schedule import Schedule

PLAIN_LOOP = ("before_step", "batch", "backward", "gradients", "after_step", "evaluation")
"""Calls of the loop in docs/recipes.md."""


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
    schedule: Schedule
    """`schedule.factor(epochs done)` is the factor of the optimizer's rate; it may be a fraction of an epoch."""
    methods: Stack
    loss: Callable[[Tensor, Tensor], Tensor]
    """Mean loss of logits for class indices or dense targets."""


def recipe(
    name: str,
    model: nn.Module,
    *,
    epochs: int,
    batch: int = 0,
    optimizer: OptimizerConfig | None = None,
    without: Collection[str] = (),
    initialize: bool = False,
    seed: int = 0,
    rank: int = 0,
    places: Collection[str] = PLAIN_LOOP,
) -> Training:
    """Apply the methods of the recipe `name` to `model` and return them with its optimizer, schedule and loss.

    Call it with the model on its device, before `torch.compile` and DistributedDataParallel.

    Args:
        epochs: length of the run, within the recipe's range of budgets.
        batch: samples of an optimizer step over all ranks; 0: the recipe's. For another, the rate and a decoupled decay
            scale with it (Goyal et al. 2017, arXiv 1706.02677); numbers of steps, such as a moving average's half-life,
            do not.
        optimizer: in place of the recipe's, which is that of a convolutional network; it is not scaled.
        without: names of methods to leave out.
        initialize: draw new weights as the recipe does; by default the model keeps its own.
        seed: of `timedrun.methods.stack`.
        rank: of `timedrun.methods.stack`.
        places: calls that the loop makes; RandAugment, in the recipe hot, needs "augment" as well.

    Raises ValueError, before the model is changed, for a budget out of range, for methods that need a call which the
    loop does not make, and for methods that do not fit the model: each is named with the reason.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        >>> training = recipe("mild", net, epochs=30, batch=256, without=["blurpool"])
        >>> [method.name for method in training.methods.methods]
        ['log_bias', 'channels_last', 'progressive_resizing', 'label_smoothing', 'ema']
        >>> training.optimizer.param_groups[0]["lr"]
        0.256
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}.{nearest(name, RECIPES)} Recipes: {', '.join(RECIPES)}")
    if problem := budget_problem(name, epochs):
        raise ValueError(problem)
    chosen = RECIPES[name]
    if unknown := set(without).difference(method.name for method in chosen.methods):
        has = ", ".join(method.name for method in chosen.methods)
        raise ValueError(f"recipe {name} has no {', '.join(sorted(unknown))} to leave out; it has {has}")
    scale = batch / chosen.global_batch if batch else 1.0
    used = [method for method in chosen.methods if method.name not in without]
    try:
        methods = stack(*used, seed=seed, rank=rank, places=places)
    except ValueError as error:
        raise ValueError(
            f"recipe {name}: {error} (without=...), or add the call to the loop and to places={tuple(places)}"
        ) from None
    _require_fit(chosen, used, model)
    if initialize:
        initialisation.initialize(model, chosen.initialisation)
    model = methods.model(model)
    own = chosen.optimizer
    decay = own.weight_decay * (scale if own.kind.startswith("decoupled") else 1)  # else the rate scales it
    scaled = replace(own, peak_lr=own.peak_lr * scale, weight_decay=decay)
    warmup = chosen.schedule.warmup_epochs * (epochs / chosen.schedule.epochs if chosen.schedule.scale_warmup else 1)
    schedule = replace(chosen.schedule, epochs=epochs, scale=1.0, warmup_epochs=warmup, scale_warmup=False)
    return Training(model, build_optimizer(optimizer or scaled, model), schedule, methods, LOSSES[chosen.loss])


def _require_fit(chosen: Recipe, methods: Collection[Method], model: nn.Module) -> None:
    """Raise ValueError with every method that cannot change `model`, by trying them on a copy."""
    tried, failed = copy.deepcopy(model), {}
    for method in methods:
        try:
            tried = stack(method).model(tried)
        except (NoEffect, ValueError) as error:
            failed[method.name] = f"    {method.name}: {error}"
    if failed:
        reasons = "\n".join(failed.values())
        raise ValueError(
            f"recipe {chosen.name} does not fit this {type(model).__name__}, which was not changed:\n{reasons}\n"
            f"To train with the rest of it, pass without={tuple(failed)}."
        )
