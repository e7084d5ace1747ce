"""Synthetic batches for the warm-up of a GPT run."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from language_model.gpt.batches import TokenBatch
from language_model.gpt.configs import GptRunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.methods import stack
from timedrun.training.batch_plan import BatchPlan


def synthetic_batches(config: GptRunConfig, ranks: ProcessGroup, batch: BatchPlan) -> Iterator[tuple[int, TokenBatch]]:
    """Yield (step, random tokens): one evaluation batch with step -1, then `config.warm_up_steps` training batches for
    every shape that the methods make of one, largest first, each with a step of that shape. Yields nothing if there
    are no warm-up steps."""
    context, generator = config.model.context, torch.Generator().manual_seed(0)

    def random_batch(count: int) -> TokenBatch:
        tokens = torch.randint(config.model.vocabulary, (count, context + 1), generator=generator).to(ranks.device)
        return TokenBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), count * ranks.world_size)

    if not config.warm_up_steps:
        return
    yield -1, random_batch(max(1, config.data.eval_batch // ranks.world_size))
    methods, whole = stack(*config.methods), torch.zeros(batch.local, context, dtype=torch.uint8)
    shapes: dict[torch.Size, int] = {}
    for step in range(config.schedule.steps if config.methods else 1):
        inputs, _ = methods.batch(whole, whole, step / config.schedule.steps, config.model.vocabulary)
        shapes.setdefault(inputs.shape, step)
    for shape in sorted(shapes, key=lambda shape: (shape.numel(), shape), reverse=True):
        for _ in range(config.warm_up_steps):
            yield shapes[shape], random_batch(batch.local)
