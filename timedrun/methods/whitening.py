"""Patch whitening: a frozen first convolution whose outputs are decorrelated over the training images' patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CHUNK = 1024  # images at a time: the patches of a whole data set would not fit


@torch.no_grad()
def whitening_weights(images: Tensor, kernel_size: int = 2, eps: float = 5e-4) -> Tensor:
    """Return filters [2D, C, k, k], D = C * k * k, that whiten every k x k patch of `images` [N, C, H, W].

    The first D are the eigenvectors of the patches' second moment (images are taken as normalised already), largest
    first, each over the square root of its eigenvalue + `eps`; the second D are the same with the other sign, so a
    rectifier after them loses nothing. Needs data, so call it inside the timed region. Source: the CIFAR-10 speed runs
    of Page (2019), Balsam (hlb-CIFAR10) and Jordan (airbench, arXiv 2404.00498). Raises ValueError for too few patches.
    """
    channels, height, width = images.shape[1:]
    dimensions = channels * kernel_size**2
    patches = len(images) * (height - kernel_size + 1) * (width - kernel_size + 1)
    if min(height, width) < kernel_size or patches < dimensions:
        raise ValueError(
            f"whitening needs at least {dimensions} patches of {kernel_size} x {kernel_size}, "
            f"and images {list(images.shape)} have fewer; use more or larger images"
        )
    moment = torch.zeros(dimensions, dimensions, dtype=torch.float64, device=images.device)
    for chunk in torch.split(images, _CHUNK):
        columns = F.unfold(chunk.float(), kernel_size).transpose(1, 2).reshape(-1, dimensions)
        moment += (columns.T @ columns).double()
    eigenvalues, eigenvectors = torch.linalg.eigh(moment / patches)
    filters = (eigenvectors / (eigenvalues.clamp(min=0) + eps).sqrt()).T.flip(0)
    filters = filters.reshape(dimensions, channels, kernel_size, kernel_size).float()
    return torch.cat((filters, -filters))


@torch.no_grad()
def whiten(convolution: nn.Conv2d, images: Tensor, eps: float = 5e-4) -> None:
    """Give `convolution` whitening weights for `images` and freeze them; its bias keeps training.

    Raises ValueError if the layer's shape does not fit 2 * C * k * k filters.
    """
    if convolution.kernel_size[0] != convolution.kernel_size[1] or convolution.groups != 1:
        raise ValueError("whitening needs a square kernel and one group; nothing was changed")
    weights = whitening_weights(images, convolution.kernel_size[0], eps)
    if weights.shape != convolution.weight.shape:
        raise ValueError(
            f"whitening computes weights {list(weights.shape)} for these images, but the convolution holds "
            f"{list(convolution.weight.shape)}; nothing was changed; set {len(weights)} output channels"
        )
    convolution.weight.copy_(weights)
    convolution.weight.requires_grad_(False)
