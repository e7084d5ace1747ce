"""Muon for the hidden matrices of a decoder with AdamW for everything else, as in the modded-nanogpt speed runs."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from language_model.gpt.model import Decoder
from timedrun.config import OptimizerConfig
from timedrun.errors import UsageError
from timedrun.training.optim import Muon, build_optimizer


def build_gpt_optimizer(config: OptimizerConfig, model: nn.Module, *, adam_beta1: float) -> Optimizer:
    """The optimizer that `config` names, over the trainable parameters.

    muon: momentum `config.momentum` for the blocks' matrices; embeddings, head and gains on AdamW at the rate
    `config.other_lr` with betas (`adam_beta1`, `config.beta2`), without decay. The weights are on their device.

    Raises:
        UsageError: muon for transformers' GPT-2, whose fused matrices are three in one.
    """
    if config.kind != "muon":
        return build_optimizer(config, model)
    if not isinstance(model, Decoder):
        raise UsageError(
            "optimizer muon is for --model.implementation modern; GPT-2's fused matrices are three in one."
        )
    hidden = model.hidden_matrices()
    chosen = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in chosen]
    adamw: dict[str, Any] = {
        "rule": "adamw",
        "lr": config.other_lr,
        "betas": (adam_beta1, config.beta2),
        "eps": config.epsilon,
    }
    return Muon(
        [{"params": hidden}, {"params": rest, "weight_decay": 0.0, **adamw}],
        config.peak_lr,
        config.momentum,
        weight_decay=config.weight_decay,
        iterations=config.newton_schulz_iterations,
    )
