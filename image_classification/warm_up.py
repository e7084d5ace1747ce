"""Synthetic batches of every shape of a run, for the warm-up before the clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor

from image_classification.batches import Batch
from image_classification.build import Parts
from image_classification.configs import ImageRunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.methods import stack


def train_batches(config: ImageRunConfig, parts: Parts, ranks: ProcessGroup) -> Iterator[tuple[int, int, Batch]]:
    """Yield `warm_up_steps` batches of noise for every input size of the run, and for every number of samples that
    methods select, each with an epoch that has them and a step in it. Consecutive steps, since methods act differently
    in every few."""
    local, size = parts.batch.local, config.data.train_size
    whole, labels = _noise(ranks, local, parts.facts.channels, size)
    seen: set[tuple[torch.Size, frozenset[int]]] = set()
    by_step = config.progress_unit == "step"
    batches = max(1, parts.facts.train_samples // config.global_batch)
    per_epoch = batches if by_step else 1
    methods = stack(*config.methods)
    for epoch, done in product(range(1, config.total_epochs + 1), range(per_epoch)):
        progress = config.progress(epoch, done / per_epoch)
        methods.enter(0, progress)
        loaded = methods.input_size(size, progress)
        images = whole if loaded == size else whole[:, :, :loaded, :loaded].contiguous()
        inputs, _ = methods.batch(images[:1], labels[:1], config.model.classes)
        first = done if by_step else 1
        steps = range(first, first + config.warm_up_steps)
        selected = set()
        for step in steps:
            methods.enter((epoch - 1) * batches + step, progress)
            selected.add(len(methods.select(images[:, :1, :4, :4], labels, lambda images, labels: labels)[0]))
        if (shapes := (inputs.shape[2:], frozenset(selected))) not in seen:
            seen.add(shapes)
            parts.methods.augment(images.abs().byte(), np.arange(local), epoch)  # a loader's thread does it in the run
            for step in steps:
                yield epoch, step, Batch(images, labels, local * ranks.world_size)


def evaluation_batches(config: ImageRunConfig, parts: Parts, ranks: ProcessGroup) -> Iterator[Batch]:
    """Yield one evaluation batch of noise if the run warms up."""
    if config.warm_up_steps:
        count = max(1, config.data.eval_batch // ranks.world_size)
        yield Batch(*_noise(ranks, count, parts.facts.channels, config.data.eval_size), count)


def _noise(ranks: ProcessGroup, count: int, channels: int, size: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))
    return images.to(ranks.device), torch.zeros(count, dtype=torch.int64, device=ranks.device)
