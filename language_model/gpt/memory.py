"""Memory of a rank that trains GPT, with and without sharding."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.model import Decoder, NextTokenLoss, build_model
from timedrun.methods import stack
from timedrun.preflight.checks import OPTIMIZER_COPIES
from timedrun.preflight.memory import RankMemory, saved_bytes
from timedrun.training.batch_plan import BatchPlan
from timedrun.training.precision import AUTOCAST


def memory(config: GptRunConfig, ranks: int) -> dict[str, RankMemory]:
    """Return the memory of one of `ranks` for each kind of sharding, without dropout's masks; nothing is allocated."""
    micro, dtype = BatchPlan.of(config.global_batch, config.micro_batch, ranks).micro, AUTOCAST[config.precision]

    # A CPU's attention with dropout, unlike a GPU's, saves all scores.
    architecture = replace(config.model, dropout=0.0)

    def tokens() -> tuple[Tensor, Tensor]:
        shape = (micro, config.model.context)
        return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)

    def model() -> NextTokenLoss:
        return NextTokenLoss(stack(*config.methods, seed=config.seed).model(build_model(architecture, config.seed)))

    def sharded_model() -> NextTokenLoss:
        whole = model()  # gathered in the precision's type, so that autocast saves no copies
        for module in whole.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(parameter.to(dtype)))
        return whole

    with torch.device("meta"):
        decoder = model().model
    count, copies = (
        sum(parameter.numel() for parameter in decoder.parameters()),
        OPTIMIZER_COPIES[config.optimizer.kind],
    )
    found = {
        "none": RankMemory(
            parameters=4 * count,
            gathered=0,
            gradients=4 * count,
            optimizer=4 * count * copies,
            activations=saved_bytes(model, tokens, dtype),
        )
    }
    if isinstance(decoder, Decoder):
        block = sum(parameter.numel() for parameter in decoder.blocks[0].parameters())
        root, own = count - block * len(decoder.blocks), -(-count // ranks)
        # Embedding and head stay whole in a step; of the blocks one is at work and the next is being gathered, with the
        # gradients of one.
        whole = (root + 3 * block) * (dtype or torch.float32).itemsize if ranks > 1 else 0
        found["full"] = RankMemory(
            parameters=4 * own,
            gathered=whole,
            gradients=4 * own,
            optimizer=4 * own * copies,
            activations=saved_bytes(sharded_model, tokens, dtype),
        )
    return found
