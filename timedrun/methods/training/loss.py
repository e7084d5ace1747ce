"""Classification losses on class indices or dense targets, with the reductions MLPerf's reference runs used."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["mean", "none"]


def dense_targets(targets: Tensor, classes: int) -> Tensor:
    """Return targets as float probabilities [N, classes], from class indices [N] or already dense targets.

    Raises ValueError for any other shape or type.

    Examples:
        >>> dense_targets(torch.tensor([0, 2]), classes=3)
        tensor([[1., 0., 0.],
                [0., 0., 1.]])
    """
    if not isinstance(targets, Tensor):
        raise ValueError("methods that change targets need one tensor of classes, not others beside it; remove them")
    if targets.is_floating_point() and targets.dim() == 2 and targets.shape[1] == classes:
        return targets
    if not classes:
        raise ValueError("methods that change targets need the number of classes, not 0; pass tensors to `Stack.batch`")
    if not targets.is_floating_point() and targets.dim() == 1:
        try:
            return F.one_hot(targets.long(), classes).float()
        except RuntimeError as error:  # on a GPU an assertion of the kernel, which a check would have to wait for
            seen = f"{int(targets.min())} to {int(targets.max())}"
            raise ValueError(f"targets must be class indices from 0 to {classes - 1}, not {seen}: {error}") from None
    raise ValueError(
        f"targets must be class indices [batch] or floating-point targets [batch, {classes}], "
        f"not {targets.dtype} {list(targets.shape)}"
    )


def cross_entropy(logits: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return the softmax cross-entropy of `logits` [N, K] for class indices [N] or dense targets [N, K], in float32.

    For dense targets the mean is -sum(t * log p) / N, rescaled by N / sum(t), which changes nothing for targets that
    sum to 1. "none" is the loss of each sample [N].

    Examples:
        >>> logits, targets = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
        >>> cross_entropy(logits, targets)
        tensor(1.1269)
        >>> cross_entropy(logits, targets, reduction="none")
        tensor([0.1269, 2.1269])
    """
    if not targets.is_floating_point() and targets.dim() == 1:
        return F.cross_entropy(logits.float(), targets.long(), reduction=reduction)
    dense = dense_targets(targets, logits.shape[1])
    products = dense * F.log_softmax(logits.float(), dim=1)
    return -products.sum(dim=1) if reduction == "none" else -products.sum() / dense.sum()


def binary_cross_entropy(logits: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return the binary cross-entropy of `logits` [N, K], summed over the K classes, divided by N. In float32.

    It is K times PyTorch's mean reduction; N is the batch of this process. "none" is the sum over classes of each
    sample [N]. Targets are class indices [N] or dense [N, K].

    Examples:
        >>> binary_cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))  # 4 ln 2
        tensor(2.7726)
    """
    dense = dense_targets(targets, logits.shape[1]).float()
    if reduction == "none":
        return F.binary_cross_entropy_with_logits(logits.float(), dense, reduction="none").sum(dim=1)
    return F.binary_cross_entropy_with_logits(logits.float(), dense, reduction="sum") / len(logits)


def mean_binary_cross_entropy(
    logits: Tensor, targets: Tensor, *, reduction: Reduction = "mean", threshold: float | None = None
) -> Tensor:
    """Return the binary cross-entropy of `logits` [N, K], averaged over classes and samples, as timm's. In float32.

    With a `threshold`, targets above it count as 1 and others as 0: an image that is mixed of two is of both classes.
    "none" is the mean over classes of each sample [N].

    Examples:
        >>> mean_binary_cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))  # ln 2
        tensor(0.6931)
    """
    dense = dense_targets(targets, logits.shape[1])
    wanted = dense if threshold is None else (dense > threshold).float()
    return binary_cross_entropy(logits, wanted, reduction=reduction) / logits.shape[1]


LossName = Literal[
    "cross_entropy", "binary_cross_entropy", "mean_binary_cross_entropy", "multi_label_binary_cross_entropy"
]
LOSSES: dict[LossName, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "mean_binary_cross_entropy": mean_binary_cross_entropy,
    "multi_label_binary_cross_entropy": partial(mean_binary_cross_entropy, threshold=0.2),
}
"""Losses by the names that configs give them."""
