"""Random erasing: set a random rectangle of some training images to 0 (Zhong et al. 2017, arXiv 1708.04896)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from timedrun.methods.image_operations import Values
from timedrun.methods.method import BatchHooks, Method, Part, Position, Stage, require_images
from timedrun.methods.training.sampling import Indices

AREA, RATIO, TRIES = (0.02, 0.33), (0.3, 3.3), 10


def erased_boxes(draws: Values, height: int, width: int) -> Indices:
    """Return (n, 4) top, left, height and width of the rectangle of each image, all 0 if none of the tries fits.

    The area is 2 to 33 % of the image and the ratio of height to width 0.3 to 3.3, uniform in its logarithm; a
    rectangle has to be lower and narrower than the image, as in torchvision's RandomErasing. `draws` are (n, tries, 4)
    numbers uniform in [0, 1): area, log ratio, top, left.

    Examples:
        >>> erased_boxes(np.array([[[0.5, 0.5, 0.0, 0.999]]]), height=100, width=100).tolist()
        [[0, 58, 42, 42]]
    """
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draws[:, :, 0])
    low, high = map(math.log, RATIO)
    ratio = np.exp(low + (high - low) * draws[:, :, 1])
    sides = np.rint(np.sqrt(np.stack([area * ratio, area / ratio], axis=2))).astype(np.int64)
    fits = np.all(sides < np.array([height, width]), axis=2)
    rows, first = np.arange(len(draws)), fits.argmax(axis=1)
    chosen = sides[rows, first]
    corners = ((np.array([height, width]) - chosen + 1) * draws[rows, first, 2:]).astype(np.int64)
    boxes = np.concatenate([corners, chosen], axis=1)
    boxes[~fits[rows, first]] = 0
    return boxes


def erase(images: Tensor, boxes: Tensor) -> Tensor:
    """Return images [N, C, H, W] with 0 inside the rectangle of each: `boxes` [N, 4] of top, left, height, width.

    Examples:
        >>> erase(torch.ones(1, 1, 3, 3), boxes=torch.tensor([[0, 1, 2, 1]]))
        tensor([[[[1., 0., 1.],
                  [1., 0., 1.],
                  [1., 1., 1.]]]])
    """
    inside = []
    for size, start, length in zip(images.shape[2:], boxes[:, :2].T, boxes[:, 2:].T, strict=True):
        pixels = torch.arange(size, device=images.device)
        inside.append((pixels >= start[:, None]) & (pixels < (start + length)[:, None]))  # [N, size]
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    erased: Tensor = images * ~hole  # masked_fill would lose the memory format
    return erased


class _RandomErasingHooks(BatchHooks):
    _method: RandomErasing
    done = "{hooks.batches} batches, each image erased in part with probability {method.probability:g}"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        require_images(self._method.name, inputs)
        random, count = at.random(self._method.name), len(inputs)
        applied = random.rand(count) < self._method.probability
        boxes = erased_boxes(random.rand(count, TRIES, 4), inputs.shape[2], inputs.shape[3]) * applied[:, None]
        self.batches += bool(boxes[:, 2:].all(axis=1).any())
        return erase(inputs, torch.from_numpy(boxes).to(inputs.device, non_blocking=True)), targets


class RandomErasing(Method, name="random_erasing", stage=Stage.REMOVAL, hooks=_RandomErasingHooks):
    """Set a random rectangle of an image to 0 with `probability`, each image for itself (arXiv 1708.04896).

    In normalized images 0 is the mean colour. Areas, ratios and tries are the defaults of torchvision's RandomErasing.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(RandomErasing(probability=1.0))
        >>> speed.enter(step=0, progress=0.0)
        >>> images, labels = speed.batch(torch.ones(2, 3, 32, 32), torch.arange(2), classes=10)
        >>> bool((images == 0).flatten(1).any(1).all())
        True
    """

    moves_pixels = False
    probability: Part = 0.5
