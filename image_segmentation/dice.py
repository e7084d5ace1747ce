"""Dice coefficient: as a loss on probabilities, with cross-entropy, and as the quality of predicted masks."""

import torch
import torch.nn.functional as F
from torch import Tensor

SMOOTHING = 1e-5
"""MONAI's smooth_nr and smooth_dr."""


def dice_cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean soft Dice loss of the classes but the background, over all pixels of the batch together, plus the
    mean cross-entropy of all pixels, in float32.

    Source: MONAI's DiceCELoss(include_background=False, softmax=True, to_onehot_y=True, batch=True), NVIDIA's setting.

    Args:
        logits: (N, classes, H, W).
        masks: class numbers (N, H, W), int64.
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
    counts = []
    for number in range(1, classes):
        ours, theirs = (mask.flatten(1) == number for mask in (predicted, masks))
        counts.append(torch.stack([(ours & theirs).sum(1), ours.sum(1) + theirs.sum(1)], dim=1))
    return torch.stack(counts, dim=1)


def mean_dice(counts: Tensor) -> float:
    """Return the mean Dice coefficient over cases and classes, of `overlaps` summed over the images of each case
    (cases, classes - 1, 2). A class that a case has in neither mask counts as 1, as in NVIDIA's and MosaicML's metric.
    """
    both, sizes = counts.double().unbind(-1)
    return float(torch.where(sizes > 0, 2 * both / sizes.clamp(min=1), 1.0).mean())
