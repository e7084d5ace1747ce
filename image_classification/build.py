"""Build the parts of a run from its config, on a training device or, for a dry run, on the meta device."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from image_classification.configs import ImageRunConfig
from image_classification.datasets import DataFacts
from image_classification.model import build_model
from timedrun.methods import Stack, stack
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.initialisation import on_meta_device
from timedrun.methods.training.optim import build_optimizer
from timedrun.runner.distributed.process_group import ProcessGroup


@dataclass(frozen=True)
class Parts:
    """Model with its methods, optimizer, batch plan and data facts of one run."""

    facts: DataFacts
    model: nn.Module
    optimizer: torch.optim.Optimizer
    methods: Stack
    batch: BatchPlan


def build(config: ImageRunConfig, ranks: ProcessGroup, facts: DataFacts, device: torch.device) -> Parts:
    """Build the model from `config.seed`, apply the methods, and build the optimizer.

    device: the rank's device; or meta, on which parameters take no memory.
    """
    methods = stack(*config.methods, seed=config.seed, rank=ranks.rank)
    steps = config.epoch_steps(facts.train_samples)
    last = config.progress(config.total_epochs, config.epoch_part(steps - 1, facts.train_samples))
    methods.require_reach(last, config.total_epochs * steps)
    with on_meta_device() if device.type == "meta" else nullcontext():
        model = methods.model(build_model(config.model, config.seed)).to(device)
    return Parts(
        facts=facts,
        model=model,
        optimizer=build_optimizer(config.optimizer, model),
        methods=methods,
        batch=BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size),
    )
