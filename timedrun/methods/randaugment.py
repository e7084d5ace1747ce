"""RandAugment: a few random operations on each training image (Cubuk et al. 2019, arXiv 1909.13719)."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import torch
from torch import Tensor

from timedrun.methods.image_operations import SEVERITY, OperationSet, names_of, operate
from timedrun.methods.method import LATER, Hooks, Method, Part, Rule, Stage
from timedrun.methods.training.sampling import Indices, random_uniform


class _RandAugmentHooks(Hooks):
    _method: RandAugment
    saved = ("acted",)
    acted = False  # not a count: loaders are ahead of the step at which a run stops

    def augment(self, images: Tensor, samples: Indices, epoch: int, seed: int) -> Tensor:
        method = self._method
        draws = random_uniform(seed, epoch, samples, method.name, 3 * method.depth).reshape(-1, method.depth, 3)
        chances = random_uniform(seed, epoch, samples, f"{method.name}_chance", method.depth)
        for number in range(method.depth):
            changed = operate(images, method.operations, method.severity, draws[:, number], method.spread)
            if method.probability < 1:
                chosen = torch.from_numpy(chances[:, number] < method.probability)
                changed = torch.where(chosen.to(images.device, non_blocking=True).view(-1, 1, 1, 1), changed, images)
            images = changed
        self.acted = True
        return images

    def effect(self) -> str | None:
        method, number = self._method, len(names_of(self._method.operations))
        level = f"0.1 to {method.severity:g}"
        if method.operations == "timm":
            level = f"{method.severity:g} +- {method.spread:g}"
        effect = f"{method.depth} of {number} operations on each image, level {level}"
        return effect if self.acted else None


class RandAugment(Method, name="randaugment", stage=Stage.SAMPLES, hooks=_RandAugmentHooks):
    """Apply `depth` random operations to each image, drawn for each epoch with levels of 0.1 to `severity`.

    Operations are drawn with replacement from AugMix's, as in MosaicML Composer; the paper (arXiv 1909.13719) has one
    level for all and a few other operations. Batches are changed on the training device, where Composer changes single
    images in its loader. timm's `rand-m7-mstd0.5-inc1` is RandAugment(severity=7, operations="timm", spread=0.5,
    probability=0.5), but for the pixels around a moved image: black here, the mean colour there.

    Examples:
        >>> import numpy as np
        >>> from timedrun.methods import stack
        >>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> stack(RandAugment(severity=9, depth=2)).augment(images, samples=np.array([0, 1]), epoch=0).shape
        torch.Size([2, 3, 32, 32])
    """

    severity: Annotated[float, SEVERITY] = 9.0
    depth: Annotated[int, Rule(lambda depth: depth >= 1, "1 operation or more")] = 2
    operations: Literal[OperationSet, "timm"] = "all"
    spread: Annotated[float, Rule(lambda spread: 0 <= spread <= 10, "0 to 10")] = field(default=0.0, metadata=LATER)
    """operations timm: standard deviation of the level around `severity`."""
    probability: Part = field(default=1.0, metadata=LATER)
    """Chance of each of the `depth` operations to be carried out."""

    def check(self) -> None:
        self.require("spread", not self.spread or self.operations == "timm", "0 unless operations is timm")
