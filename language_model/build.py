"""Construction of a BERT run: model, optimizer and everything else that the training step uses."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from judging.ground.errors import UsageError
from language_model.configs import PLACES, BertRunConfig
from language_model.datasets import CHECKPOINT, TextFacts
from language_model.encoder import Bert, build_bert, shapes
from language_model.initial_checkpoint import load_initial_checkpoint, weights_sha256
from language_model.model import ReferenceBert, build_reference
from timedrun.methods import Stack, stack
from timedrun.methods.ragged_attention import choose
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.initialisation import on_meta_device
from timedrun.methods.training.optim import build_muon, build_optimizer
from timedrun.methods.training.precision import Precision
from timedrun.methods.training.sampling import stream_seed
from timedrun.methods.training.train_state import seed_everything
from timedrun.runner.distributed.process_group import ProcessGroup


@dataclass(frozen=True)
class Parts:
    """Objects of a BERT run: what the training step uses and the log describes."""

    ranks: ProcessGroup
    facts: TextFacts
    model: Bert | ReferenceBert
    optimizer: torch.optim.Optimizer
    methods: Stack
    precision: Precision
    batch: BatchPlan
    attention: str
    """Name of the attention backend, "auto" resolved."""
    initial_weights: str
    """"random", or the SHA-256 of the initial checkpoint's weights."""


def build(config: BertRunConfig, ranks: ProcessGroup, facts: TextFacts, device: torch.device) -> Parts:
    """Build the parts of a run on `device`; on the meta device no memory is allocated and no checkpoint is read. Raises
    UsageError if the ranks do not divide the batch, or if the attention backend is unavailable on this machine;
    DataError if the initial checkpoint is missing, damaged or of another model."""
    dry_run = device.type == "meta"
    batch = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
    precision = Precision(config.precision, device)
    model = build_model(config, device)
    initial_weights: str = config.start if dry_run else "random"
    if config.start == "checkpoint" and not dry_run:
        weights = load_initial_checkpoint(facts.store / CHECKPOINT, shapes(config.architecture))
        model.load_weights(weights)
        initial_weights = weights_sha256(weights)
    methods = stack(*config.methods, seed=config.seed, rank=ranks.rank, places=PLACES)
    steps = math.ceil(config.max_samples / config.global_batch)
    methods.require_reach(1 - config.global_batch / config.max_samples, steps)
    seed_everything(stream_seed(config.seed, "methods"))  # layers that methods add draw from the global generator
    methods.model(model)
    model.to(device)
    settings = config.optimizer
    if settings.kind != "muon" or not isinstance(model, Bert):
        optimizer = build_optimizer(settings, model, fused=config.speed.fused_optimizer and not dry_run)
    else:
        beta1, bf16 = settings.other_momentum or settings.momentum, config.precision == "bf16"
        optimizer = build_muon(settings, model, model.hidden_matrices(), beta1=beta1, bf16=bf16)
    attention = config.speed.attention
    if isinstance(model, Bert):
        try:
            dtype, dropout = precision.dtype or torch.float32, config.architecture.dropout
            attention = model.attention = choose(attention, ranks.device, dtype, dropout)
        except UsageError:
            if not dry_run:  # preflight reports it
                raise
    return Parts(ranks, facts, model, optimizer, methods, precision, batch, attention, initial_weights)


def build_model(config: BertRunConfig, device: torch.device) -> Bert | ReferenceBert:
    """Build the model on the CPU, with the same initial weights in either implementation, or on the meta device."""
    if device.type == "meta":
        with on_meta_device():
            return untrained_model(config)
    if config.implementation == "timedrun":
        return build_bert(config.architecture, config.seed, config.speed)
    return build_reference(config.architecture, config.seed, _reference_attention(config))


def untrained_model(config: BertRunConfig) -> Bert | ReferenceBert:
    """Build the model without its initial weights, for its shapes."""
    if config.implementation == "timedrun":
        return Bert(config.architecture, config.speed)
    return ReferenceBert(config.architecture, _reference_attention(config))


def _reference_attention(config: BertRunConfig) -> Literal["eager", "sdpa"]:
    return "eager" if config.speed.attention == "eager" else "sdpa"
