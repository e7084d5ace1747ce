"""Construction of a GPT run: model, optimizer and everything else that the training step uses."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from judging.ground.errors import UsageError
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import TokenFacts
from language_model.gpt.model import Decoder, build_model
from timedrun.methods import Stack, stack
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.initialisation import on_meta_device
from timedrun.methods.training.optim import build_muon, build_optimizer
from timedrun.methods.training.precision import Precision
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.sharding import shard

PLACES = ("before_step", "batch", "backward", "gradients", "after_step", "evaluation")
"""Places of methods that train.py calls."""


@dataclass(frozen=True)
class Parts:
    """Objects of a GPT run: what the training step uses and the log describes."""

    facts: TokenFacts
    model: nn.Module
    optimizer: Optimizer
    methods: Stack
    precision: Precision
    batch: BatchPlan
    sharded: bool
    """Each of several ranks stores a part of every parameter."""


def build(config: GptRunConfig, ranks: ProcessGroup, facts: TokenFacts, device: torch.device) -> Parts:
    """Build the parts of a run on `device`; on the meta device no memory is allocated. Raises UsageError if the ranks
    do not divide the batch, or if the optimizer does not fit the model; NoEffect if a method finds nothing to change,
    or acts only after the last step."""
    batch = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
    methods = stack(*config.methods, seed=config.seed, rank=ranks.rank, places=PLACES)
    steps = math.ceil(config.total_samples / config.global_batch)
    methods.require_reach(min(1.0, (steps - 1) / config.schedule.steps), steps)
    with on_meta_device() if device.type == "meta" else torch.device("cpu"):  # weights are the same on every device
        model = methods.model(build_model(config.model, config.seed))
    precision = Precision(config.precision, device)
    sharded = config.sharding == "full" and ranks.world_size > 1
    if sharded and isinstance(model, Decoder) and device.type != "meta":
        shard(model, model.blocks, ranks, precision.dtype)
    else:
        model.to(device)
    settings, beta1, bf16 = config.optimizer, config.adam_beta1, config.precision == "bf16"
    if settings.kind != "muon":
        optimizer = build_optimizer(settings, model)
    elif isinstance(model, Decoder):
        matrices = model.hidden_matrices()
        optimizer = build_muon(settings, model, matrices, beta1=beta1, every=config.adam_every, bf16=bf16)
    else:
        raise UsageError("optimizer muon needs --model.implementation modern: GPT-2 fuses three matrices into one.")
    return Parts(facts, model, optimizer, methods, precision, batch, sharded)
