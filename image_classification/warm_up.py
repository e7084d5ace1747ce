"""Synthetic batches of every shape of a run, for the warm-up before the clock."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from image_classification.batches import Batch
from image_classification.build import Parts
from image_classification.configs import ImageRunConfig
from timedrun.methods import stack
from timedrun.methods.training import sampling
from timedrun.runner.distributed.process_group import ProcessGroup


def train_batches(config: ImageRunConfig, parts: Parts, ranks: ProcessGroup) -> Iterator[tuple[int, int, Batch]]:
    """Yield `warm_up_steps` batches of noise for every input size of the run, and for every number of samples that
    methods select, each with an epoch that has them and a step in it. Consecutive ones, as methods differ in these."""
    local, size = parts.batch.local, config.data.train_size
    whole, labels = _noise(ranks, local, parts.facts.channels, size)
    batches = config.epoch_steps(parts.facts.train_samples)
    methods, samples = stack(*config.methods), np.arange(local)

    def loaded(images: Tensor, epoch: int, step: int) -> Tensor:
        """Return `images` at the size that a step loads, and leave the methods at its place."""
        progress = config.progress(epoch, step / batches)
        methods.enter((epoch - 1) * batches + step, progress, samples)
        side = methods.input_size(size, progress)
        return images if side == size else images[:, :, :side, :side].contiguous()

    def shape(epoch: int, step: int) -> torch.Size:
        return methods.batch(loaded(whole[:1], epoch, step), labels[:1], config.model.classes)[0].shape[2:]

    def selected(epoch: int, step: int) -> int:
        """Return the number of samples that methods select."""
        images = loaded(whole[:, :1, :4, :4], epoch, step)
        return len(methods.select(images, labels, lambda images, labels: labels)[0])

    # A shape that a step has for the first time would be compiled, or its algorithm chosen, on the clock.
    seen: set[tuple[torch.Size, frozenset[int]]] = set()
    for epoch in range(1, config.total_epochs + 1):
        by_step = config.progress_unit == "step"
        for first in (0, *_changes(partial(shape, epoch), 0, batches - 1)) if by_step else (1,):
            steps = range(first, first + config.warm_up_steps)
            shapes = shape(epoch, first), frozenset(selected(epoch, step) for step in steps)
            if shapes not in seen:
                seen.add(shapes)
                images = loaded(whole, epoch, first)
                augmented = images.abs().byte()  # a loader's thread does it in the run
                parts.methods.augment(augmented, samples, epoch)
                for step in steps:
                    yield epoch, step, Batch(images, labels, config.global_batch, samples)


def _changes(shape: Callable[[int], torch.Size], first: int, last: int) -> Iterator[int]:
    """Yield the steps after `first`, up to `last`, whose shape is not that of the step before. Shapes only grow or only
    shrink in between, so that few are computed."""
    if shape(first) == shape(last):
        return
    if last - first == 1:
        yield last
        return
    middle = (first + last) // 2
    yield from _changes(shape, first, middle)
    yield from _changes(shape, middle, last)


def evaluation_batches(config: ImageRunConfig, parts: Parts, ranks: ProcessGroup) -> Iterator[Batch]:
    """Yield a batch of noise of every size of this rank's evaluation batches if the run warms up: the last one has the
    samples that are left."""
    if config.warm_up_steps:
        samples = len(sampling.evaluation_part(parts.facts.eval_samples, ranks.rank, ranks.world_size))
        whole = max(1, config.data.eval_batch // ranks.world_size)
        for count in {min(whole, samples), samples % whole} - {0}:
            yield Batch(*_noise(ranks, count, parts.facts.channels, config.data.eval_size), count)


def _noise(ranks: ProcessGroup, count: int, channels: int, size: int) -> tuple[Tensor, Tensor]:
    device = ranks.device  # where noise takes milliseconds; on the host, seconds for a batch of ImageNet's size
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randn(count, channels, size, size, generator=generator, device=device)
    return images, torch.zeros(count, dtype=torch.int64, device=device)
