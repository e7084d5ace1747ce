"""A step of GPT for the estimate of its memory: the model, and micro-batches as shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.model import Decoder, NextTokenLoss, build_model
from timedrun.methods import stack


def build_step(config: GptRunConfig) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """Return the model of a run, without dropout, and a function of a number of whole sequences that returns their
    loss."""
    # A CPU's attention with dropout, unlike a GPU's, saves all scores; the masks of the rest are small.
    model = stack(*config.methods).model(build_model(replace(config.model, dropout=0.0), config.seed))
    summed = NextTokenLoss(model)

    def loss(count: int) -> Tensor:
        tokens = torch.zeros(count, config.model.context, dtype=torch.int64)
        total: Tensor = summed(tokens, tokens) / tokens.numel()
        return total

    return model, loss


def sharded_layers(config: GptRunConfig, model: nn.Module) -> Iterable[nn.Module]:
    """Return the layers that several ranks shard."""
    return model.blocks if config.sharding == "full" and isinstance(model, Decoder) else ()
