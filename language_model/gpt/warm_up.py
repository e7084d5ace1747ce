"""Synthetic batches: of every shape of a run, for the warm-up before the clock, and without values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from language_model.gpt.batches import TokenBatch
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.model import Decoder, NextTokenLoss, build_model
from timedrun.methods import stack
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.runner.distributed.process_group import ProcessGroup


def train_batches(config: GptRunConfig, ranks: ProcessGroup, batch: BatchPlan) -> Iterator[tuple[int, TokenBatch]]:
    """Yield `config.warm_up_steps` batches for every shape that the methods make of one, largest first, each with the
    number of a step of that shape."""
    if not config.warm_up_steps:
        return
    methods = stack(*config.methods)
    whole = torch.zeros(batch.local, config.model.context, dtype=torch.uint8)
    shapes: dict[torch.Size, int] = {}
    for step in range(config.schedule.steps if config.methods else 1):
        methods.enter(step, step / config.schedule.steps)
        inputs, _ = methods.batch(whole, whole, config.model.vocabulary)
        shapes.setdefault(inputs.shape, step)
    for shape in sorted(shapes, key=lambda shape: (shape.numel(), shape), reverse=True):
        for _ in range(config.warm_up_steps):
            yield shapes[shape], _random_batch(config, ranks, batch.local)


def evaluation_batches(config: GptRunConfig, ranks: ProcessGroup) -> Iterator[TokenBatch]:
    """Yield one evaluation batch if there are warm-up steps."""
    if config.warm_up_steps:
        yield _random_batch(config, ranks, config.evaluation_batch(ranks.world_size))


def _random_batch(config: GptRunConfig, ranks: ProcessGroup, count: int) -> TokenBatch:
    tokens = torch.randint(config.model.vocabulary, (count, config.model.context + 1)).to(ranks.device)
    return TokenBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def build_step(config: GptRunConfig) -> tuple[nn.Module, Callable[[int], Tensor], Sequence[nn.Module]]:
    """Return the model of a run, without dropout, a function of a number of whole sequences that returns their loss,
    and the layers that several ranks shard."""
    # A CPU's attention with dropout, unlike a GPU's, saves all scores; the masks of the rest are small.
    model = stack(*config.methods).model(build_model(replace(config.model, dropout=0.0), config.seed))
    summed = NextTokenLoss(model)

    def loss(count: int) -> Tensor:
        tokens = torch.zeros(count, config.model.context, dtype=torch.int64)
        total: Tensor = summed(tokens, tokens) / tokens.numel()
        return total

    return model, loss, [*model.blocks] if config.sharding == "full" and isinstance(model, Decoder) else ()
