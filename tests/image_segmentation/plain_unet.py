"""The network, its loss and its quality computed by hand in float64, from the weights by their names."""

import numpy as np
import torch
from numpy.typing import NDArray

from image_segmentation.model import UNet

Array = NDArray[np.float64]


def convolve(x: Array, weight: Array, stride: int = 1) -> Array:
    """A convolution with padding (size of the kernel - 1) / 2 of (N, C, H, W)."""
    around, size = (weight.shape[2] - 1) // 2, weight.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (around, around), (around, around)))
    rows, columns = (-(-side // stride) for side in x.shape[2:])
    out = np.zeros((len(x), len(weight), rows, columns))
    for i in range(rows):
        for j in range(columns):
            patch = padded[:, :, i * stride : i * stride + size, j * stride : j * stride + size]
            out[:, :, i, j] = np.einsum("nchw,ochw->no", patch, weight)
    return out


def logits(model: UNet, images: Array) -> Array:
    """The logits of `model` in evaluation mode."""
    w = {name: value.double().numpy() for name, value in model.state_dict().items()}

    def norm(x: Array, at: str) -> Array:
        mean, variance, scale, shift = (
            w[f"{at}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift

    def leaky(x: Array) -> Array:
        return np.where(x > 0, x, 0.01 * x)

    def block(x: Array, at: str, stride: int = 1) -> Array:
        out = leaky(norm(convolve(x, w[f"{at}.conv1.weight"], stride), f"{at}.norm1"))
        out = norm(convolve(out, w[f"{at}.conv2.weight"]), f"{at}.norm2")
        if f"{at}.shortcut.0.weight" in w:
            out = out + norm(convolve(x, w[f"{at}.shortcut.0.weight"], stride), f"{at}.shortcut.1")
        return leaky(out)

    def up(x: Array, at: str) -> Array:
        out = np.einsum("nchw,copq->nohpwq", x, w[f"{at}.weight"])
        n, o, h, _, width, _ = out.shape
        return out.reshape(n, o, 2 * h, 2 * width) + w[f"{at}.bias"][:, None, None]

    levels = [block(images, "first")]
    for number in range(len(model.down)):
        levels.append(block(levels[-1], f"down.{number}", 2))
    x = levels.pop()
    for number in range(len(model.up)):
        same = levels.pop()
        larger = up(x, f"up.{number}")[:, :, : same.shape[2], : same.shape[3]]
        x = block(np.concatenate([larger, same], axis=1), f"merge.{number}")
    return convolve(x, w["head.weight"]) + w["head.bias"][:, None, None]


def loss(values: Array, masks: NDArray[np.int64]) -> float:
    """Soft Dice loss of the classes from 1 on over the whole batch, plus cross-entropy."""
    shares = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    dice, entropies = [], []
    for number in range(values.shape[1]):
        share, truth = shares[:, number], masks == number
        entropies += [-np.log(share[truth])]
        dice += [1 - (2 * share[truth].sum() + 1e-5) / (share.sum() + truth.sum() + 1e-5)]
    return float(np.mean(dice[1:]) + np.concatenate(entropies).mean())


def random_statistics(model: UNet) -> None:
    """Give every batch norm other statistics and weights than those it begins with, in place."""
    generator = torch.Generator().manual_seed(5)
    for name, value in model.state_dict().items():
        if ".norm" in name or "shortcut.1" in name:
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
