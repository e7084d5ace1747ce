"""AugMix: blend images with chains of random operations on it (Hendrycks et al. 2019, arXiv 1912.02781)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timedrun.methods.image_operations import SEVERITY, OperationSet, Values, operate
from timedrun.methods.method import Finite, Hooks, Method, Rule, Stage
from timedrun.methods.training.sampling import Indices, random_bits, random_uniform

LONGEST = 3
"""Operations in a chain of random length, at most."""


def chain_weights(width: int, alpha: float, bits: NDArray[np.uint64]) -> Values:
    """Return the weights [N, width + 1] of the original and of each chain, for each row of `bits` [N, 1].

    The chains share m ~ Beta(alpha, alpha) by Dirichlet(alpha, ..., alpha); the original keeps 1 - m.

    Examples:
        >>> weights = chain_weights(width=3, alpha=1.0, bits=np.array([[7]], dtype=np.uint64))
        >>> weights.shape, bool(np.isclose(weights.sum(), 1.0))
        ((1, 4), True)
    """
    parts = np.empty((len(bits), width + 1))
    for row, seed in zip(parts, bits.view(np.uint32), strict=True):
        random = np.random.RandomState(seed)  # NumPy promises never to change its numbers
        share = random.beta(alpha, alpha)
        row[0], row[1:] = 1 - share, share * random.dirichlet([alpha] * width)
    return parts


class _AugMixHooks(Hooks):
    _method: AugMix
    saved = ("acted",)
    acted = False  # not a count: loaders are ahead of the step at which a run stops

    def augment(self, images: Tensor, samples: Indices, epoch: int, seed: int) -> Tensor:
        method, longest = self._method, self._method.depth or LONGEST
        draws = random_uniform(seed, epoch, samples, method.name, method.width * (1 + 3 * longest))
        draws = draws.reshape(len(samples), method.width, 1 + 3 * longest)
        lengths = np.full(draws.shape[:2], longest) if method.depth else 1 + (draws[:, :, 0] * LONGEST).astype(np.int64)
        parts = chain_weights(method.width, method.alpha, random_bits(seed, epoch, samples, "augmix_weights", 1))
        weights = torch.from_numpy(parts).float().to(images.device, non_blocking=True)
        mixed = images * weights[:, 0].view(-1, 1, 1, 1)
        for chain in range(method.width):
            changed = images.clone()
            for number in range(longest):
                rows = np.flatnonzero(lengths[:, chain] > number)
                there = torch.from_numpy(rows).to(images.device, non_blocking=True)
                drawn = draws[rows, chain, 1 + 3 * number : 4 + 3 * number]
                changed[there] = operate(changed[there], method.operations, method.severity, drawn)
            mixed += changed * weights[:, chain + 1].view(-1, 1, 1, 1)
        self.acted = True
        return mixed.round_().clamp_(0, 255).byte()

    def effect(self) -> str | None:
        method = self._method
        depth = method.depth or f"1 to {LONGEST}"
        effect = f"{method.width} chains of {depth} operations on each image, level 0.1 to {method.severity:g}"
        return effect if self.acted else None


class AugMix(Method, name="augmix", stage=Stage.SAMPLES, hooks=_AugMixHooks):
    """Mix each image with `width` chains of random operations on it, by random weights.

    The paper's consistency loss is left out, as in MosaicML Composer. Mixed values are rounded, where Composer drops
    their fractions, which darkens images by half a level.

    Examples:
        >>> import numpy as np
        >>> from timedrun.methods import stack
        >>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> stack(AugMix(width=2, depth=1)).augment(images, samples=np.array([0, 1]), epoch=0).dtype
        torch.uint8
    """

    severity: Annotated[float, SEVERITY] = 3.0
    width: Annotated[int, Rule(lambda width: width >= 1, "1 chain or more")] = 3
    depth: Annotated[int, Rule(lambda depth: depth >= 0, "0 (random) or a number of operations")] = 0
    """Operations in each chain; 0: 1 to 3, drawn for each chain."""
    alpha: Finite = 1.0
    operations: OperationSet = "all"
