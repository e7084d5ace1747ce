"""ColOut: leave random rows and columns out of the images of each batch, for less work per step."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from timedrun.methods.method import BatchHooks, Method, Position, Rule, Stage, require_images

SHARE = Rule(lambda share: 0 <= share < 1, "the share left out, from 0 to below 1")


def kept(size: int, share: float, random: np.random.RandomState) -> Tensor:
    """Return int((1 - share) * size) random numbers below `size`, ascending: the rows or columns that stay.

    Examples:
        >>> kept(8, share=0.5, random=np.random.RandomState(0))
        tensor([1, 2, 6, 7])
    """
    return torch.from_numpy(np.sort(random.permutation(size)[: int((1 - share) * size)]))


def colout(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return images or maps [N, ..., H, W] with only `rows` and `columns`, in their memory format.

    Examples:
        >>> images = torch.arange(16.0).view(1, 1, 4, 4)
        >>> colout(images, rows=torch.tensor([0, 3]), columns=torch.tensor([0, 1]))
        tensor([[[[ 0.,  1.],
                  [12., 13.]]]])
    """
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.permute(0, 2, 3, 1)[:, rows[:, None], columns].permute(0, 3, 1, 2)
    return images[..., rows[:, None], columns]


class _ColOutHooks(BatchHooks):
    _method: ColOut
    done = "{hooks.batches} batches without {method.p_row:.0%} of the rows and {method.p_col:.0%} of the columns"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        method = self._method
        require_images(method.name, inputs)
        smaller, (height, width) = self.move(inputs, at), inputs.shape[2:]
        if 0 in (left := smaller.shape[2:]):
            raise ValueError(
                f"colout leaves {left[0]} x {left[1]} px of images of {height} x {width}; use larger images, or "
                f"a smaller p_row than {method.p_row} and p_col than {method.p_col}"
            )
        if left == (height, width):
            return inputs, targets
        self.batches += 1
        return smaller, targets

    def move(self, maps: Tensor, at: Position) -> Tensor:
        method, random = self._method, at.random(self._method.name)
        rows, columns = kept(maps.shape[-2], method.p_row, random), kept(maps.shape[-1], method.p_col, random)
        return colout(maps, *(line.to(maps.device, non_blocking=True) for line in (rows, columns)))


class ColOut(Method, name="colout", stage=Stage.REMOVAL, hooks=_ColOutHooks):
    """Drop random rows and columns of images, the same for a rank's whole batch; int((1 - p) * size) stay, in order.

    The method acts after progressive resizing, as in MosaicML's first published recipes: 104 px become 98 at p 0.05. In
    their later ones it acts before, and images are resized from 167 px. One draw for the batch is Composer's default.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(ColOut(p_row=0.25, p_col=0.5))
        >>> speed.enter(step=0, progress=0.0)
        >>> images, labels = speed.batch(torch.rand(8, 3, 32, 32), torch.arange(8), classes=10)
        >>> images.shape
        torch.Size([8, 3, 24, 16])
    """

    p_row: Annotated[float, SHARE] = 0.15
    p_col: Annotated[float, SHARE] = 0.15
