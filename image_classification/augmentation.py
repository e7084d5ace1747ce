"""Random crops and flips drawn per sample: from (seed, epoch, sample) alone, so the same for any number of ranks."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from timedrun.order import random_uniform


def pad_crop_flip(
    images: Tensor, indices: npt.NDArray[np.int64], *, seed: int, epoch: int, padding: int, flip: bool
) -> Tensor:
    """Pad with `padding` black pixels, crop back at a random place, mirror half of the images (He et al. 2015, 4.2).

    Args:
        images: (N, C, H, W) of any type, 0 for black. indices: (N,) the samples that they are.
    """
    count, channels, height, width = images.shape
    draws = random_uniform(seed, epoch, indices, stream="crop_flip", count=3)
    if padding:
        span = 2 * padding + 1
        top = torch.from_numpy((draws[:, 0] * span).astype(np.int64)).to(images.device)
        left = torch.from_numpy((draws[:, 1] * span).astype(np.int64)).to(images.device)
        padded = torch.nn.functional.pad(images, (padding,) * 4)
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = left[:, None] + torch.arange(width, device=images.device)
        flat = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).view(count, 1, -1).expand(-1, channels, -1)
        images = padded.flatten(2).gather(2, flat).view(count, channels, height, width)
    if flip:
        mirrored = torch.from_numpy(draws[:, 2] < 0.5).to(images.device)
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


def random_resized_crop_box(height: int, width: int, draws: npt.NDArray[np.float64]) -> tuple[int, int, int, int]:
    """(top, left, crop height, crop width) of a crop with area 8-100 % and aspect ratio 3/4-4/3, as torchvision's
    RandomResizedCrop draws it: ten tries, then the largest centred crop within the ratios.

    Args:
        draws: (10, 4) uniform numbers in [0, 1): area, log ratio, top, left of each try.
    """
    low, high = math.log(3 / 4), math.log(4 / 3)
    for area_draw, ratio_draw, top_draw, left_draw in draws:
        area = height * width * (0.08 + (1 - 0.08) * area_draw)
        ratio = math.exp(low + (high - low) * ratio_draw)
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top, left = int(top_draw * (height - crop_height + 1)), int(left_draw * (width - crop_width + 1))
            return top, left, crop_height, crop_width
    ratio = width / height
    if ratio < 3 / 4:
        crop_width, crop_height = width, round(width / (3 / 4))
    elif ratio > 4 / 3:
        crop_width, crop_height = round(height * (4 / 3)), height
    else:
        crop_width, crop_height = width, height
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width
