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
    """Return (1 - weight) * x + weight * x[partners] of the inputs and of the dense targets.

    Args:
        inputs: floating point, [N, ...]. targets: dense, [N, K]. partners: a permutation of N.
        hard_partner: the partner's target is 1 for its most probable class, whatever smoothing it had.
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
    """One weight min(l, 1 - l), l ~ Beta(`alpha`, `alpha`), and one permutation for each batch of a rank.

    Mixing targets equals interpolating the losses of both, since cross-entropies are linear in the targets. MosaicML
    Composer's recipes smooth labels before the mixing and only those of the main image: `hard_partner`.
    """

    moves_pixels = False
    alpha: Finite = 0.2
    hard_partner: bool = False
    """Mix in the partner's class without label smoothing, as in the published ResNet-50 recipes."""
