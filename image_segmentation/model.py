"""The residual 2-D U-Net of NVIDIA's nnU-Net example, as MosaicML trained it on BraTS in 2021, its loss and quality."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.01
"""Of the leaky ReLUs."""
SMOOTHING = 1e-5
"""MONAI's smooth_nr and smooth_dr."""


class Block(nn.Module):
    """Two 3x3 convolutions, each with batch norm and leaky ReLU. `residual`: the input is added before the last one."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, *, residual: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.activation = nn.LeakyReLU(SLOPE, inplace=True)
        self.shortcut: nn.Module | None = None
        if residual:  # 3x3, as in NVIDIA's example of the time; MONAI's DynUNet has 1x1
            convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm2(self.conv2(self.activation(self.norm1(self.conv1(x)))))
        if self.shortcut is not None:
            out = out + self.shortcut(x)
        activated: Tensor = self.activation(out)
        return activated


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015, arXiv 1505.04597): residual blocks, all but the first with a strided convolution;
    on the way back, 2x2 transposed convolutions, and blocks on their output beside that of the same level's block.

    Args:
        classes: with the background, class 0.
        widths: filters of each level, the full resolution first; each further level halves the sides.
    """

    def __init__(self, channels: int, classes: int, widths: Sequence[int]) -> None:
        super().__init__()
        levels = list(zip(widths, widths[1:], strict=False))
        self.first = Block(channels, widths[0], residual=True)
        self.down = nn.ModuleList(Block(wide, deep, 2, residual=True) for wide, deep in levels)
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, wide, 2, 2) for wide, deep in reversed(levels))
        self.merge = nn.ModuleList(Block(2 * wide, wide) for wide, _ in reversed(levels))
        self.head = nn.Conv2d(widths[0], classes, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, a=SLOPE)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]  # it has one

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, channels, H, W) of any size to logits (N, classes, H, W)."""
        levels = [self.first(images)]
        for block in self.down:
            levels.append(block(levels[-1]))
        x = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            same = levels.pop()
            larger = up(x)[:, :, : same.shape[2], : same.shape[3]]  # an odd side was rounded up on the way down
            x = merge(torch.cat([larger, same], dim=1))
        logits: Tensor = self.head(x)
        return logits


def dice_cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean soft Dice loss of the classes but the background, over all pixels of the batch together, plus the
    mean cross-entropy of all pixels, in float32, of logits (N, classes, H, W) and class numbers (N, H, W), int64.

    Source: MONAI's DiceCELoss(include_background=False, softmax=True, to_onehot_y=True, batch=True), NVIDIA's setting.
    """
    logits = logits.float()
    probabilities = logits.softmax(1)[:, 1:]
    truth = F.one_hot(masks, logits.shape[1]).movedim(-1, 1)[:, 1:].to(probabilities)
    overlap = (probabilities * truth).sum((0, 2, 3))
    sizes = probabilities.sum((0, 2, 3)) + truth.sum((0, 2, 3))
    dice_loss = 1 - (2 * overlap + SMOOTHING) / (sizes + SMOOTHING)
    return dice_loss.mean() + F.cross_entropy(logits, masks)


def overlaps(predicted: Tensor, masks: Tensor, classes: int) -> Tensor:
    """Return, for each image and each class but the background, the pixels in both masks, and the sum of the pixels in
    each: (N, classes - 1, 2), int64, of class numbers (N, H, W)."""
    numbers = torch.arange(1, classes, device=masks.device)[:, None]
    ours, theirs = (mask.flatten(1)[:, None] == numbers for mask in (predicted, masks))
    return torch.stack([(ours & theirs).sum(-1), ours.sum(-1) + theirs.sum(-1)], dim=-1)


def mean_dice(counts: Tensor) -> float:
    """Return the mean Dice coefficient over cases and classes, of `overlaps` summed over the images of each case
    (cases, classes - 1, 2). A class that a case has in neither mask counts as 1, as in NVIDIA's and MosaicML's metric.
    """
    both, sizes = counts.double().unbind(-1)
    return float(torch.where(sizes > 0, 2 * both / sizes.clamp(min=1), 1.0).mean())
