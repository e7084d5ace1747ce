"""CutMix: replace a box of each image by that of another, and its area's share of the target (arXiv 1905.04899)."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from timedrun.methods.method import LATER, BatchHooks, Finite, Method, Position, Rule, Stage, require_images
from timedrun.methods.mixup import mixup
from timedrun.methods.training.loss import dense_targets

Box = tuple[int, int, int, int]
"""Top, bottom, left, right; the end is not inside."""


def random_box(random: np.random.RandomState, height: int, width: int, area: float) -> Box:
    """Return a box with the share `area` of the image, centred on a random pixel and clipped to the image.

    Examples:
        >>> random_box(np.random.RandomState(0), height=32, width=32, area=0.25)
        (4, 20, 7, 23)
    """
    y, x = int(random.randint(height)), int(random.randint(width))
    above, sideways = (int(side * math.sqrt(area)) // 2 for side in (height, width))
    return max(y - above, 0), min(y + above, height), max(x - sideways, 0), min(x + sideways, width)


def cutmix(images: Tensor, targets: Tensor, partners: Tensor, box: Box) -> tuple[Tensor, Tensor]:
    """Return images [N, C, H, W] with `box` of their `partners`, a permutation of N, and targets [N, K] of mixed areas.

    Examples:
        >>> images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
        >>> mixed, targets = cutmix(images, torch.eye(2), torch.tensor([1, 0]), (0, 2, 0, 2))
        >>> targets
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])
    """
    top, bottom, left, right = box
    share = (bottom - top) * (right - left) / (images.shape[2] * images.shape[3])
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images[:, :, top:bottom, left:right][partners]
    return mixed, targets.lerp(targets[partners], share)


class _CutMixHooks(BatchHooks):
    _method: CutMix
    done = "{hooks.batches} batches with boxes of other images{method.otherwise}"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        require_images(self._method.name, inputs)
        random, alpha, dense = at.random(self._method.name), self._method.alpha, dense_targets(targets, classes)
        if self._method.mixup_alpha and random.rand() < 0.5:
            share = float(random.beta(self._method.mixup_alpha, self._method.mixup_alpha))
            partners = torch.from_numpy(random.permutation(len(inputs))).to(inputs.device, non_blocking=True)
            return mixup(inputs, dense, partners, min(share, 1 - share))
        box = random_box(random, inputs.shape[2], inputs.shape[3], 1 - float(random.beta(alpha, alpha)))
        partners = torch.from_numpy(random.permutation(len(inputs))).to(inputs.device, non_blocking=True)
        self.batches += len(inputs) > 1 and box[0] < box[1] and box[2] < box[3]
        return cutmix(inputs, dense, partners, box)


class CutMix(Method, name="cutmix", stage=Stage.MIXING, hooks=_CutMixHooks):
    """Replace a box of each image by that of another one, and mix their targets by its area (arXiv 1905.04899).

    Each batch of a rank has one box and one permutation. The box has the share 1 - l of the image, l ~ Beta(`alpha`,
    `alpha`). The weights of the targets follow the area of the box inside the image. With `mixup_alpha`, half of the
    batches are mixed as by MixUp instead, as torchvision's and timm's recipes do.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(CutMix(alpha=1.0), seed=1)
        >>> speed.enter(step=0, progress=0.0)
        >>> images, targets = speed.batch(torch.rand(8, 3, 32, 32), torch.arange(8), classes=10)
        >>> targets.shape
        torch.Size([8, 10])
    """

    clashes: ClassVar[dict[str, str]] = {"mixup": "both mix each image with another one of its batch"}
    alpha: Finite = 1.0
    mixup_alpha: Annotated[float, Rule(lambda alpha: 0 <= alpha < float("inf"), "0 or more and finite")] = field(
        default=0.0, metadata=LATER
    )
    """Alpha of MixUp for half of the batches, drawn at random; 0: boxes in all."""

    @property
    def otherwise(self) -> str:
        """Return what happens to the other batches, in words."""
        return ", about as many mixed as by mixup" if self.mixup_alpha else ""
