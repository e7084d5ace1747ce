"""ColOut: leave random rows and columns out of the images of each batch, for less work per step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Position, Stage, require_images
from timedrun.methods.progressive_resizing import require_any_size


def kept(size: int, share: float, random: np.random.RandomState) -> Tensor:
    """Return int((1 - share) * size) random numbers below `size`, ascending: the rows or columns that stay."""
    return torch.from_numpy(np.sort(random.permutation(size)[: int((1 - share) * size)]))


def colout(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return images [N, C, H, W] of `rows` and `columns` only, in the memory format that they have."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.permute(0, 2, 3, 1)[:, rows[:, None], columns].permute(0, 3, 1, 2)
    return images[:, :, rows[:, None], columns]


class _ColOutHooks(Hooks):
    _method: ColOut
    saved = ("batches",)
    batches = 0

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        method = self._method
        require_images(method.name, inputs)
        random, height, width = at.random(method.name), inputs.shape[2], inputs.shape[3]
        rows, columns = kept(height, method.p_row, random), kept(width, method.p_col, random)
        if not len(rows) or not len(columns):
            raise ValueError(
                f"colout leaves {len(rows)} x {len(columns)} px of images of {height} x {width}; use larger images, or "
                f"a smaller p_row than {method.p_row} and p_col than {method.p_col}"
            )
        if len(rows) == height and len(columns) == width:
            return inputs, targets
        self.batches += 1
        rows, columns = (line.to(inputs.device, non_blocking=True) for line in (rows, columns))
        return colout(inputs, rows, columns), targets

    def effect(self) -> str | None:
        method = self._method
        if not self.batches:
            return None
        return f"{self.batches} batches without {method.p_row:.0%} of the rows and {method.p_col:.0%} of the columns"


class ColOut(Method, name="colout", stage=Stage.REMOVAL, hooks=_ColOutHooks):
    """int((1 - p) * size) rows and columns of every image stay in order, the same ones for a whole batch of a rank.

    It acts after progressive resizing, as in MosaicML's first published recipes: 104 px become 98 at p 0.05. In their
    later ones it acts before, and images are resized from 167 px. One draw for the batch is Composer's default.
    """

    p_row: float = 0.15
    p_col: float = 0.15

    def check(self) -> None:
        for field in ("p_row", "p_col"):
            self.require(field, 0 <= getattr(self, field) < 1, "the share left out, from 0 to below 1")

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        require_any_size(self.name, model)
        return model, ""
