"""RandAugment: a few random operations on each training image (Cubuk et al. 2019, arXiv 1909.13719)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from timedrun.methods.image_operations import SEVERITY, OperationSet, names_of, operate
from timedrun.methods.method import Hooks, Method, Rule, Stage
from timedrun.methods.training.sampling import Indices, random_uniform


class _RandAugmentHooks(Hooks):
    _method: RandAugment
    saved = ("acted",)
    acted = False  # not a count: loaders are ahead of the step at which a run stops

    def augment(self, images: Tensor, samples: Indices, epoch: int, seed: int) -> Tensor:
        method = self._method
        draws = random_uniform(seed, epoch, samples, method.name, 3 * method.depth).reshape(-1, method.depth, 3)
        for number in range(method.depth):
            images = operate(images, method.operations, method.severity, draws[:, number])
        self.acted = True
        return images

    def effect(self) -> str | None:
        method, number = self._method, len(names_of(self._method.operations))
        effect = f"{method.depth} of {number} operations on each image, level 0.1 to {method.severity:g}"
        return effect if self.acted else None


class RandAugment(Method, name="randaugment", stage=Stage.SAMPLES, hooks=_RandAugmentHooks):
    """Apply `depth` random operations to each image, drawn for each epoch with levels of 0.1 to `severity`.

    Operations are drawn with replacement from AugMix's, as in MosaicML Composer; the paper (arXiv 1909.13719) has one
    level for all and a few other operations. Batches are changed on the training device, where Composer changes single
    images in its loader.

    Examples:
        >>> import numpy as np
        >>> from timedrun.methods import stack
        >>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> stack(RandAugment(severity=9, depth=2)).augment(images, samples=np.array([0, 1]), epoch=0).shape
        torch.Size([2, 3, 32, 32])
    """

    severity: Annotated[float, SEVERITY] = 9.0
    depth: Annotated[int, Rule(lambda depth: depth >= 1, "1 operation or more")] = 2
    operations: OperationSet = "all"
