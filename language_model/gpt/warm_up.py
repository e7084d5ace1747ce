"""Synthetic batches of every shape of a run, for the warm-up before the clock."""

from collections.abc import Iterator

import torch

from language_model.gpt.batches import TokenBatch
from language_model.gpt.configs import GptRunConfig
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
