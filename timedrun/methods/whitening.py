"""Patch whitening: a frozen first convolution whose outputs are decorrelated over the training images' patches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from timedrun.methods.channels_last import refuse_crashes
from timedrun.methods.method import LATER, Hooks, Method, NoEffect, Position, Positive, Rule, unwrapped

_CHUNK = 1024  # images at a time: the patches of a whole data set would not fit


@torch.no_grad()
def whitening_weights(images: Tensor, kernel_size: int = 2, eps: float = 5e-4) -> Tensor:
    """Return filters [2D, C, k, k], D = C * k * k, that whiten every k x k patch of `images` [N, C, H, W].

    The first D are the eigenvectors of the patches' second moment, largest first, each over the square root of its
    eigenvalue + `eps`. Images count as normalised already. The second D are the same with the other sign, so a
    rectifier after them loses nothing. The function needs data, so call it inside the timed region. Source: the
    CIFAR-10 speed runs of Page (2019), Balsam (hlb-CIFAR10) and Jordan (airbench, arXiv 2404.00498). Raises ValueError
    for too few patches.

    Examples:
        >>> whitening_weights(torch.rand(16, 3, 8, 8), kernel_size=2).shape
        torch.Size([24, 3, 2, 2])
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
    if not moment.isfinite().all():
        raise ValueError("whitening found pixels that are no finite numbers; no step was taken; mend the images")
    eigenvalues, eigenvectors = torch.linalg.eigh(moment / patches)
    filters = (eigenvectors / (eigenvalues.clamp(min=0) + eps).sqrt()).T.flip(0)
    filters = filters.reshape(dimensions, channels, kernel_size, kernel_size).float()
    return torch.cat((filters, -filters))


@torch.no_grad()
def whiten(convolution: nn.Conv2d, images: Tensor, eps: float = 5e-4) -> None:
    """Give `convolution` whitening weights for `images` and freeze them; its bias keeps training.

    Raises ValueError if the layer's shape does not fit 2 * C * k * k filters.

    Examples:
        >>> convolution = nn.Conv2d(3, 24, 2)
        >>> whiten(convolution, torch.rand(16, 3, 8, 8))
        >>> convolution.weight.requires_grad
        False
    """
    if mismatch := _mismatch(convolution, images.shape[1]):
        raise ValueError(f"{mismatch}; nothing was changed")
    convolution.weight.copy_(whitening_weights(images, convolution.kernel_size[0], eps))
    convolution.weight.requires_grad_(False)


def _mismatch(convolution: nn.Conv2d, image_channels: int = 0) -> str:
    """Return the reason for which `convolution` cannot hold whitening weights; empty: it can."""
    side, channels = convolution.kernel_size[0], convolution.in_channels
    if image_channels not in (0, channels):
        return (
            f"whitening takes images, of {image_channels} channels here, and the convolution that is registered first, "
            f"{convolution}, has other inputs; register the one of the images before it, or remove whitening"
        )
    whole = convolution.groups == 1 and convolution.dilation == (1, 1)
    if convolution.kernel_size != (side, side) or not whole or "weight" not in convolution._parameters:
        return "whitening needs a convolution with a square kernel, one group, and no dilation or parametrization"
    if convolution.out_channels != (wanted := 2 * channels * side**2):
        return (
            f"whitening of {channels} x {side} x {side} patches has {wanted} filters, but the convolution has "
            f"{convolution.out_channels} output channels; set {wanted} output channels"
        )
    return ""


def first_convolution(model: nn.Module) -> nn.Conv2d | None:
    """Return the convolution that `Whitening.model` chose inside `model`, else its first Conv2d in the order of
    registration, which is the stem of every network known to us.

    Examples:
        >>> first_convolution(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)))
        Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    """
    layers = [layer for layer in unwrapped(model).modules() if isinstance(layer, nn.Conv2d)]
    return next((layer for layer in layers if hasattr(layer, "whitened")), layers[0] if layers else None)


class _WhiteningHooks(Hooks):
    _method: Whitening
    _convolution: nn.Conv2d | None = None
    _frozen = False  # the bias, here
    saved = ("whitened",)
    done = "first convolution whitens the patches of {hooks.whitened} images"
    whitened = 0
    """Images whose patches the weights whiten; 0 before the first batch."""
    _after: tuple[Callable[[], object], ...] = ()  # calls after the step

    def before_step(self, model: nn.Module, at: Position) -> None:
        self._convolution = first_convolution(model)

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if self._convolution is not None and not self.whitened:
            whiten(self._convolution, inputs, self._method.eps)
            if dist.is_available() and dist.is_initialized():
                dist.broadcast(self._convolution.weight.detach(), src=0)
            self.whitened = len(inputs)
        bias = getattr(self._convolution, "bias", None)
        if bias is not None and (bias.requires_grad or self._frozen) and self._method.bias_end < 1:
            # Not before LayerFreezing counted its layers in `before_step`: a run that resumes would freeze others.
            bias.requires_grad_(at.progress < self._method.bias_end)
            self._frozen = not bias.requires_grad
            bias.grad = None if self._frozen else bias.grad  # neither momentum nor decay moves it
        return inputs, targets

    def gradients(self, model: nn.Module, at: Position) -> None:
        self.after_step(model, at.step)  # of an optimizer step that was not taken
        bias, end = getattr(self._convolution, "bias", None), self._method.bias_end
        if end < 1 and bias is not None and bias.grad is not None:
            bias.grad.mul_(share := 1 - at.progress / end)
            shorten = partial(self._shorten, bias, share)
            self._after = (register_optimizer_step_pre_hook(shorten).remove,)

    def _shorten(self, bias: Tensor, share: float, optimizer: Optimizer, *given: Any) -> None:
        """Have an optimizer that divides by the size of gradients, as Adam, take `share` of its step for the bias."""
        group = next((group for group in optimizer.param_groups if any(bias is held for held in group["params"])), None)
        if group and ("dampening" not in group or group.get("rule") == "adamw"):  # else SGD, as of torch, or of Muon
            bias.grad.div_(share)  # type: ignore[union-attr]
            before = bias.detach().clone()
            self._after += (lambda: bias.detach().lerp_(before, 1 - share),)

    def after_step(self, model: nn.Module, step: int) -> None:
        for call in self._after:
            call()
        self._after = ()


class Whitening(Method, name="whitening", hooks=_WhiteningHooks):
    """Give the first convolution whitening weights (`whitening_weights`), frozen from the start.

    They are computed in the run, on the clock, from the first training batch (rank 0's): airbench takes 5,000 images.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed, net = stack(Whitening()), nn.Sequential(nn.Conv2d(3, 24, 2))
        >>> model = speed.model(net)
        >>> speed.before_step(model, 0, progress=0.0)
        >>> _ = speed.batch(torch.rand(16, 3, 8, 8), torch.arange(16), classes=16)
        >>> speed.report
        ['whitening: first convolution whitens the patches of 16 images']
    """

    moves_pixels = False
    clashes: ClassVar[dict[str, str]] = {"weight_standardization": "both set the weights of the first convolution"}
    eps: Positive = 5e-4
    """Added to the eigenvalues: the larger, the less are rare patterns amplified."""
    bias_end: Annotated[float, Rule(lambda share: 0 <= share <= 1, "from 0 to 1")] = field(default=1.0, metadata=LATER)
    """Elapsed fraction of the run up to which the layer's bias trains, by a gradient that falls to 0 linearly, as
    airbench94's rate of it does within 3 of 8 epochs, or by a step that does where the optimizer divides by the size of
    gradients, as Adam. It is frozen then, so the backward pass ends before it, and a compiled model is compiled again.
    1: to the end, by its whole gradient; 0: it is frozen from the start."""

    @property
    def skips_parameters(self) -> bool:
        return 0 < self.bias_end < 1

    recompiles = skips_parameters

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        convolution = first_convolution(model)
        if convolution is None:
            raise self.no_effect("needs a model whose first layer is a convolution; found none")
        if mismatch := _mismatch(convolution):
            raise NoEffect(mismatch)
        convolution.weight.requires_grad_(False)
        if convolution.bias is not None and not self.bias_end:
            convolution.bias.requires_grad_(False)
        convolution.whitened = True  # type: ignore[assignment]  # to be found where another network comes first
        refuse_crashes(model)
        return model, ""  # without weights, freezing alone is no whitening
