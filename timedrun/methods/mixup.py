"""MixUp: train on weighted sums of two images and of their targets (Zhang et al. 2017, arXiv 1710.09412)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from timedrun.methods.method import BatchHooks, Finite, Method, Position, Stage
from timedrun.methods.training.loss import dense_targets


def mixup(
    inputs: Tensor, targets: Tensor, partners: Tensor, weight: float, *, hard_partner: bool = False
) -> tuple[Tensor, Tensor]:
    """Return (1 - weight) * x + weight * x[partners] of floating-point inputs [N, ...] and of dense targets [N, K], for
    a permutation `partners` of N. With `hard_partner` the partner's target is 1 for its most probable class, whatever
    smoothing it had.

    Examples:
        >>> inputs, targets = torch.tensor([[0.0], [1.0]]), torch.eye(2)
        >>> mixup(inputs, targets, partners=torch.tensor([1, 0]), weight=0.25)
        (tensor([[0.2500],
                [0.7500]]), tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]]))
    """
    partner = targets[partners]
    if hard_partner:
        partner = F.one_hot(partner.argmax(1), targets.shape[1]).to(targets.dtype)
    return inputs.lerp(inputs[partners], weight), targets.lerp(partner, weight)


class _MixUpHooks(BatchHooks):
    _method: MixUp
    done = "{hooks.batches} batches each mixed with a permutation of itself"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if not inputs.is_floating_point():
            raise ValueError(
                f"mixup needs inputs of floating point, got {inputs.dtype}; normalize images first, or remove it from "
                "the methods of this model"
            )
        method, random = self._method, at.random(self._method.name)
        share = float(random.beta(method.alpha, method.alpha))
        partners = torch.from_numpy(random.permutation(len(inputs))).to(inputs.device, non_blocking=True)
        self.batches += len(inputs) > 1
        dense = dense_targets(targets, classes)
        return mixup(inputs, dense, partners, min(share, 1 - share), hard_partner=method.hard_partner)


class MixUp(Method, name="mixup", stage=Stage.MIXING, hooks=_MixUpHooks):
    """Mix each image and its target with another one of its batch (Zhang et al. 2017, arXiv 1710.09412).

    Each batch of a rank has one permutation and one weight min(l, 1 - l), l ~ Beta(`alpha`, `alpha`). Mixing targets
    equals interpolating the losses of both, since cross-entropies are linear in the targets. MosaicML Composer's
    recipes smooth labels before the mixing and only those of the main image: `hard_partner`.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(MixUp(alpha=0.2))
        >>> speed.enter(step=0, progress=0.0)
        >>> images, targets = speed.batch(torch.rand(8, 3, 32, 32), torch.arange(8), classes=10)
        >>> targets.shape
        torch.Size([8, 10])
    """

    moves_pixels = False
    alpha: Finite = 0.2
    hard_partner: bool = False
    """Mix in the partner's class without label smoothing, as in the published ResNet-50 recipes."""
