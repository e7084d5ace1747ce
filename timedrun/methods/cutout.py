"""CutOut: set random squares of the training images to 0 (DeVries and Taylor 2017, arXiv 1708.04552)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from timedrun.methods.method import BatchHooks, Count, Method, Position, Rule, Stage, require_images


def cutout(images: Tensor, centres: Tensor, length: int) -> Tensor:
    """Return images [N, C, H, W] with squares of `length` px set to 0, where they are inside. `centres` has the row and
    the column of each square, [1 or N, squares, 2]: of all images, or of each.

    Examples:
        >>> cutout(torch.ones(1, 1, 4, 4), centres=torch.tensor([[[1, 1]]]), length=2)
        tensor([[[[0., 0., 1., 1.],
                  [0., 0., 1., 1.],
                  [1., 1., 1., 1.],
                  [1., 1., 1., 1.]]]])
    """
    inside = []
    for size, middle in zip(images.shape[2:], centres.unsqueeze(-1).unbind(2), strict=True):
        pixels = torch.arange(size, device=images.device)
        inside.append((pixels >= middle - length // 2) & (pixels < middle + length // 2))  # [1 or N, squares, size]
    rows, columns = inside
    holes = (rows.unsqueeze(3) & columns.unsqueeze(2)).any(1, keepdim=True)
    return images * ~holes  # masked_fill would lose the memory format


class _CutOutHooks(BatchHooks):
    _method: CutOut

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        method = self._method
        require_images(method.name, inputs)
        length = int(method.length * min(inputs.shape[2:]))
        shape = (len(inputs) if method.per_sample else 1, method.num_holes, 2)
        centres = torch.from_numpy(at.random(method.name).randint(inputs.shape[2:], size=shape))
        self.batches += length > 1
        return cutout(inputs, centres.to(inputs.device, non_blocking=True), length), targets

    def effect(self) -> str | None:
        holes, each = self._method.num_holes, "image" if self._method.per_sample else "batch"
        return f"{self.batches} batches, {holes} random squares for each {each} set to 0" if self.batches else None


class CutOut(Method, name="cutout", stage=Stage.REMOVAL, hooks=_CutOutHooks):
    """Set random squares of the images, with sides of `length` of the shorter side, to 0; the border clips them.

    In normalized images 0 is the mean colour. By default all images of a batch lose the same squares, as in MosaicML
    Composer. With `per_sample` each image loses others, as in the paper (arXiv 1708.04552).

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(CutOut(length=0.5))
        >>> speed.enter(step=0, progress=0.0)
        >>> images, labels = speed.batch(torch.ones(2, 3, 32, 32), torch.arange(2), classes=10)
        >>> bool((images == 0).any())
        True
    """

    moves_pixels = False
    num_holes: Count = 1
    length: Annotated[
        float, Rule(lambda length: 0 < length <= 1, "a share of the shorter side above 0 and at most 1")
    ] = 0.5
    """Share of the shorter side."""
    per_sample: bool = False
