"""Progressive resizing: train on small images first and grow them to full size as the run goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from timedrun.methods.method import Fraction, Hooks, Method, Position, Rule, SizeHooks, Stage, require_images

Interpolation = Literal["nearest", "bilinear", "crop"]
Where = Literal["batch", "loader"]


def resize(inputs: Tensor, scale: float, interpolation: Interpolation) -> Tensor:
    """Scale the images `inputs` [N, C, H, W] to H * scale x W * scale pixels.

    "nearest" steps by exactly 1 / scale and rounds sizes down (the published behaviour). The others round to the
    nearest size, so that a batch has the nominal one: "bilinear" filters against aliasing, "crop" keeps the middle.

    Examples:
        >>> images = torch.rand(2, 3, 30, 30)
        >>> resize(images, 0.55, "nearest").shape, resize(images, 0.55, "bilinear").shape
        (torch.Size([2, 3, 16, 16]), torch.Size([2, 3, 16, 16]))
    """
    if interpolation == "nearest":
        return F.interpolate(inputs, scale_factor=scale, mode="nearest")
    size = [round(float(side) * scale) for side in inputs.shape[2:]]
    if interpolation == "crop":
        top, left = ((whole - side) // 2 for whole, side in zip(inputs.shape[2:], size, strict=True))
        return inputs[..., top : top + size[0], left : left + size[1]].clone()  # dense, in the layout of `inputs`
    return F.interpolate(inputs, size=size, mode="bilinear", antialias=True, align_corners=False)


def resize_maps(maps: Tensor, scale: float, interpolation: Interpolation = "nearest") -> Tensor:
    """Scale `maps` [N, ..., H, W] as `resize` scales their images.

    Values that are no floating-point numbers, as those of classes, are never mixed: "bilinear" takes the nearest.

    Examples:
        >>> resize_maps(torch.tensor([[[1, 1, 2, 2], [1, 1, 2, 2]]]), 0.5)
        tensor([[[1, 2]]])
    """
    if interpolation == "bilinear" and maps.is_floating_point():
        resized = resize(maps.flatten(0, -3)[None], scale, interpolation)
        return resized.view(*maps.shape[:-2], *resized.shape[2:])
    sides = [torch.arange(side, dtype=torch.float32, device=maps.device) for side in maps.shape[-2:]]
    places = torch.stack(torch.meshgrid(*sides, indexing="ij"))[None]  # torch resizes no integers
    picked = resize(places, scale, interpolation)
    if interpolation == "bilinear":
        picked = F.interpolate(places, size=picked.shape[2:], mode="nearest-exact")
    rows, columns = picked[0].long()
    return maps[..., rows, columns]


class _ProgressiveResizingHooks(SizeHooks):
    _method: ProgressiveResizing
    done = "resized to {least}..{most} px"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        require_images(self._method.name, inputs)
        method, width = self._method, inputs.shape[3]
        if (scale := method.width(width, at.progress) / width) == 1:
            return inputs, targets
        small = resize(inputs, scale, method.interpolation)
        self.count(small.shape[3])
        return small, targets

    def move(self, maps: Tensor, at: Position) -> Tensor:
        method, width = self._method, maps.shape[-1]
        scale = method.width(width, at.progress) / width
        return maps if scale == 1 else resize_maps(maps, scale, method.interpolation)


class _LoaderHooks(SizeHooks):
    _method: ProgressiveResizing
    done = "loaded at {least}..{most} px"
    _whole = 0  # pixels, as last requested by a loader

    def input_size(self, size: int, progress: float) -> int:
        self._whole = size
        return self._method.sizes(size, [progress])[0]

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        require_images(self._method.name, inputs)
        if inputs.shape[3] < self._whole:  # a loop that never asks for `input_size` leaves this at 0: no effect
            self.count(inputs.shape[3])
        return inputs, targets

    def move(self, maps: Tensor, at: Position) -> Tensor:
        return maps


class ProgressiveResizing(Method, name="progressive_resizing", stage=Stage.SIZE, hooks=_ProgressiveResizingHooks):
    """Grow the images from `start` of their size, from `delay` of the run on, to the whole for the last `finetune`.

    MLPerf v2.0's ResNet-50 methods run used start 0.5, delay 0.4, finetune 0.2, increment 4.

    Examples:
        >>> method = ProgressiveResizing(start=0.5, delay=0.4, finetune=0.2, increment=4)
        >>> [method.width(224, progress) for progress in (0.0, 0.6, 0.9)]
        [112, 168, 224]
        >>> method.sizes(176, progress=[0.0, 0.6, 0.9])
        [88, 132, 176]
    """

    start: Fraction = 0.5
    delay: Fraction = 0.5
    finetune: Fraction = 0.2
    increment: Annotated[int, Rule(lambda pixels: pixels >= 1, "1 px or more")] = 4
    interpolation: Interpolation = "nearest"
    """Interpolation of a batch; loaders always antialias. bilinear, crop: sizes are whole multiples of `increment`.
    crop: objects keep their size, and the middle of each image is left (random, if the loader's crops are)."""
    where: Where = "batch"
    """batch: whole images are loaded, and resized on the device (published). loader: images are decoded and cropped at
    the size of their epoch, for less work; images held in memory are not."""

    def check(self) -> None:
        self.require("start", self.start > 0, "above 0: an image of 0 px cannot be trained on")
        crops = self.interpolation == "crop" and self.where == "loader"
        self.require("interpolation", not crops, "nearest or bilinear with where=loader, which scales images")
        self.require("delay", self.delay + self.finetune <= 1, f"at most the rest of the run before {self.finetune}")

    def hooks(self) -> Hooks:
        return _LoaderHooks(self) if self.where == "loader" else super().hooks()

    def width(self, size: int, progress: float) -> int:
        """Return the nominal width at `progress`: round(s * size / increment) * increment, ties to even, at most
        `size`; s is `start` before `delay`, then rises linearly to 1 at 1 - `finetune`. Raises ValueError for 0 px."""
        rising = 1 - self.finetune - self.delay
        fraction = 0.0 if progress < self.delay else min((progress - self.delay) / rising, 1.0) if rising > 0 else 1.0
        scale = self.start + (1 - self.start) * fraction
        width = round(scale * size / self.increment) * self.increment
        if width < 1:
            raise ValueError(
                f"progressive resizing takes {size} px images to {scale:.3f} of their size, which rounds to 0 px in "
                f"steps of {self.increment}; use a smaller increment or a larger start"
            )
        return min(width, size)

    def sizes(self, size: int, progress: Iterable[float]) -> list[int]:
        """Return the side in pixels at each value of `progress`: the shapes to compile for before the clock starts.

        With "nearest" it is floor(size * (width / size)) in floating point, as in MosaicML Composer: 176 px at a
        nominal 120 give 119.
        """
        widths = [self.width(size, at) for at in progress]
        exact = self.interpolation != "nearest"
        return [width if exact or width >= size else int(float(size) * (width / size)) for width in widths]
