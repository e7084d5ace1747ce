"""Random crops and flips as pure functions of (seed, epoch, sample), equal for any number of ranks."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from timedrun.methods.training.sampling import Indices, random_uniform

Flip = Literal["none", "random", "alternating"]
"""Mirroring of training images: never; half of them, drawn in each epoch; half of them in the first epoch and from then
on the other half in every epoch, so that two epochs show both sides of each image (Jordan 2024, arXiv 2404.00498)."""

PaddingMode = Literal["black", "reflect"]
"""Pixels around an image before a random crop: 0, or its own, mirrored at the edge."""


def flips(flip: Flip, seed: int, epoch: int, indices: Indices, drawn: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return (n,) True for each sample to mirror left to right in `epoch`, from 1.

    Args:
        drawn: (n,) uniform in [0, 1), of this epoch: those below 1/2 are mirrored if `flip` is "random".
    """
    if flip == "alternating":
        first = random_uniform(seed, 1, indices, stream="flip", count=1)[:, 0] < 0.5
        return first ^ (epoch % 2 == 0)
    return (drawn < 0.5) & (flip == "random")


def crops_and_flips(indices: Indices, *, seed: int, epoch: int, padding: int, flip: Flip) -> npt.NDArray[np.int64]:
    """Draw a crop of each padded image at a random position (He et al. 2015, 4.2), and its `flips`.

    Args:
        indices: (n,) samples.

    Returns:
        (n, 3): top, left, 1 for each sample to mirror.
    """
    draws = random_uniform(seed, epoch, indices, stream="crop_flip", count=3)
    corners = (draws[:, :2] * (2 * padding + 1)).astype(np.int64)
    return np.column_stack([corners, flips(flip, seed, epoch, indices, draws[:, 2])])


def crop_and_flip(images: Tensor, drawn: Tensor, *, padding: int, flip: Flip, padding_mode: PaddingMode) -> Tensor:
    """Pad with `padding` pixels, crop and mirror as drawn, on the images' device.

    Args:
        images: (N, C, H, W) of any dtype, 0 for black. drawn: (N, 3), of `crops_and_flips`, on the same device.
    """
    count, channels, height, width = images.shape
    if padding:
        if padding_mode == "reflect":
            mirror = torch.arange(-padding, height + padding, device=images.device).abs()
            mirror = torch.minimum(mirror, 2 * (height - 1) - mirror)
            padded = images.index_select(2, mirror).index_select(3, mirror)
        else:
            padded = torch.nn.functional.pad(images, (padding,) * 4)
        rows = drawn[:, 0, None] + torch.arange(height, device=images.device)
        columns = drawn[:, 1, None] + torch.arange(width, device=images.device)
        flat = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).flatten(1)[:, None].expand(-1, channels, -1)
        images = padded.flatten(2).gather(2, flat).view(count, channels, height, width)
    if flip != "none":
        images = torch.where(drawn[:, 2, None, None, None].bool(), images.flip(3), images)
    return images


def train_crops(
    seed: int, epoch: int, indices: Indices, sizes: npt.NDArray[np.integer], *, flip: Flip
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Draw the random resized crop of each sample: boxes (n, 4) in pixels of the original, and `flips` (n,).

    Args:
        indices: (n,) samples. sizes: (n, 2) height and width of the original images.
    """
    draws = random_uniform(seed, epoch, indices, stream="random_resized_crop", count=41)
    boxes = random_resized_crop_boxes(sizes, draws[:, :40].reshape(-1, 10, 4))
    return boxes, flips(flip, seed, epoch, indices, draws[:, 40])


def random_resized_crop_boxes(sizes: npt.NDArray[np.integer], draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return boxes (n, 4) of top, left, height, width with area 8-100 % and aspect ratio 3/4-4/3, as torchvision's
    RandomResizedCrop draws them: ten tries, then the largest centred crop within the ratios.

    Args:
        sizes: (n, 2) height and width. draws: (n, 10, 4) uniform in [0, 1): area, log ratio, top, left of each try.
    """
    low, high = math.log(3 / 4), math.log(4 / 3)
    sizes = np.asarray(sizes, dtype=np.int64)
    area = (sizes[:, 0] * sizes[:, 1])[:, None] * (0.08 + (1 - 0.08) * draws[:, :, 0])
    ratio = np.exp(low + (high - low) * draws[:, :, 1])
    tried = np.rint(np.sqrt(np.stack([area / ratio, area * ratio], axis=2))).astype(np.int64)
    fits = np.all((tried > 0) & (tried <= sizes[:, None, :]), axis=2)
    first, rows = fits.argmax(axis=1), np.arange(len(sizes))
    crop = tried[rows, first]
    corner = (draws[rows, first, 2:] * (sizes - crop + 1)).astype(np.int64)
    boxes = np.concatenate([corner, crop], axis=1)
    for row in np.flatnonzero(~fits[rows, first]):
        tall, wide = sizes[row].tolist()
        height, width = min(tall, round(wide / (3 / 4))), min(wide, round(tall * (4 / 3)))
        boxes[row] = (tall - height) // 2, (wide - width) // 2, height, width
    return boxes


def scaled_boxes(
    boxes: npt.NDArray[np.int64], original_sizes: npt.NDArray[np.integer], stored_sizes: npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """Map boxes (n, 4) of the originals to resized copies: edges at the nearest pixel, at least one pixel a side.

    Args:
        original_sizes, stored_sizes: (n, 2) or (2,) height and width.
    """
    original, stored = np.asarray(original_sizes, dtype=np.int64), np.asarray(stored_sizes, dtype=np.int64)
    begin = np.rint(boxes[:, :2] * stored / original).astype(np.int64)
    end = np.rint((boxes[:, :2] + boxes[:, 2:]) * stored / original).astype(np.int64)
    begin = np.minimum(begin, stored - 1)
    return np.concatenate([begin, np.maximum(end - begin, 1)], axis=1)
