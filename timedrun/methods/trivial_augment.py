"""TrivialAugment: one random operation of random strength on each image (Müller and Hutter 2021, arXiv 2103.10158)."""

from __future__ import annotations

from torch import Tensor

from timedrun.methods.image_operations import names_of, operate
from timedrun.methods.method import Hooks, Method, Stage
from timedrun.methods.training.sampling import Indices, random_uniform


class _TrivialAugmentHooks(Hooks):
    saved = ("acted",)
    done = f"1 of {len(names_of('wide'))} operations on each image, 31 levels"
    acted = False  # not a count: loaders are ahead of the step at which a run stops

    def augment(self, images: Tensor, samples: Indices, epoch: int, seed: int) -> Tensor:
        self.acted = True
        return operate(images, "wide", 10, random_uniform(seed, epoch, samples, self._method.name, 3))


class TrivialAugment(Method, name="trivial_augment", stage=Stage.SAMPLES, hooks=_TrivialAugmentHooks):
    """Apply one random operation to each image, drawn for each epoch, at one of 31 levels of a wide range.

    Operations, ranges and levels are those of torchvision's TrivialAugmentWide, with bilinear interpolation and black
    around a moved image. There is nothing to tune. Batches are changed on the training device, where torchvision
    changes single images in its loader.

    Examples:
        >>> import numpy as np
        >>> from timedrun.methods import stack
        >>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> stack(TrivialAugment()).augment(images, samples=np.array([0, 1]), epoch=0).shape
        torch.Size([2, 3, 32, 32])
    """
