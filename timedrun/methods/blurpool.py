"""BlurPool: a low-pass filter before every strided convolution and after every strided max-pool (Zhang 2019)."""

from __future__ import annotations

from dataclasses import asdict
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from timedrun.methods.method import Method, hooked, replace_layers

_Stride = int | tuple[int, ...]


def blur(inputs: Tensor, stride: _Stride = 1) -> Tensor:
    """Convolve each channel of `inputs` [N, C, H, W] with (1, 2, 1) x (1, 2, 1) / 16 under zero padding 1.

    The zeros count: a constant 1 becomes 0.75 along the edges and 0.5625 in the corners.

    Examples:
        >>> blur(torch.ones(1, 1, 4, 4), stride=2)
        tensor([[[[0.5625, 0.7500],
                  [0.7500, 1.0000]]]])
    """
    if inputs.is_cuda:  # cuDNN's depthwise convolutions are slow in 16 bits, and are not fused with their neighbours
        return blur_by_slices(inputs, stride) if torch.compiler.is_compiling() else blur_by_pools(inputs, stride)
    channels = inputs.shape[1]
    # No buffer, which a model on the meta device would lose.
    row = torch.tensor([0.25, 0.5, 0.25], dtype=inputs.dtype, device=inputs.device)
    weight = torch.outer(row, row).expand(channels, 1, 3, 3)
    return F.conv2d(inputs, weight, stride=stride, padding=1, groups=channels)


def blur_by_pools(inputs: Tensor, stride: _Stride) -> Tensor:
    """Compute `blur` as the mean of 2x2 means: two kernels, where eager slices are eighteen.

    Examples:
        >>> images = torch.rand(1, 3, 8, 8)
        >>> torch.allclose(blur_by_pools(images, stride=2), blur(images, stride=2))
        True
    """
    return F.avg_pool2d(F.avg_pool2d(inputs, 2, 1, padding=1), 2, stride)


def blur_by_slices(inputs: Tensor, stride: _Stride) -> Tensor:
    """Compute `blur` as a sum of nine shifted slices, which a compiler fuses into one kernel.

    Examples:
        >>> images = torch.rand(1, 3, 8, 8)
        >>> torch.allclose(blur_by_slices(images, stride=2), blur(images, stride=2))
        True
    """
    down, right = (stride, stride) if isinstance(stride, int) else stride
    padded = F.pad(inputs, (1, 1, 1, 1))
    height, width = inputs.shape[2:]
    terms = [
        padded[:, :, i : i + height : down, j : j + width : right] * ((1, 2, 1)[i] * (1, 2, 1)[j] / 16)
        for i in range(3)
        for j in range(3)
    ]
    return sum(terms[1:], terms[0])


class BlurConv2d(nn.Conv2d):
    """Apply a strided convolution with a blur. Parameter names are those of nn.Conv2d, so checkpoints fit both ways.

    Examples:
        >>> conv = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        >>> BlurConv2d.of(conv, blur_first=True)(torch.rand(1, 16, 8, 8)).shape
        torch.Size([1, 32, 4, 4])
    """

    blur_first: bool
    acted: bool

    @classmethod
    def of(cls, conv: nn.Conv2d, blur_first: bool) -> BlurConv2d:
        """Return a blurred `conv` that shares its parameters; `blur_first`: blur the inputs, not the outputs."""
        blurred = cls.__new__(cls)
        blurred.__dict__.update(conv.__dict__)
        blurred._buffers = dict(conv._buffers)
        blurred._non_persistent_buffers_set = set(conv._non_persistent_buffers_set)
        blurred.blur_first, blurred.acted = blur_first, False
        return blurred

    def forward(self, input: Tensor) -> Tensor:
        self.acted = True
        if not self.blur_first:
            return blur(self._convolved(input), self.stride)
        if self.kernel_size == (1, 1) and self.padding == (0, 0):
            # A 1x1 convolution reads only the positions it strides over: blurring just those is the same and 4x less.
            return self._convolved(blur(input, self.stride))
        output: Tensor = self._conv_forward(blur(input), self.weight, self.bias)
        return output

    def _convolved(self, inputs: Tensor) -> Tensor:
        return F.conv2d(inputs, self.weight, self.bias, 1, self.padding, self.dilation, self.groups)


class BlurMaxPool2d(nn.MaxPool2d):
    """Apply a max-pool at stride 1, then a blur with the pool's stride.

    Examples:
        >>> BlurMaxPool2d(3, stride=2, padding=1)(torch.rand(1, 16, 8, 8)).shape
        torch.Size([1, 16, 4, 4])
    """

    acted = False

    @classmethod
    def of(cls, pool: nn.MaxPool2d) -> BlurMaxPool2d:
        """Return a blurred max-pool with the settings of `pool`."""
        blurred = cls(pool.kernel_size, pool.stride, pool.padding, pool.dilation, ceil_mode=pool.ceil_mode)
        return blurred.train(pool.training)

    def forward(self, input: Tensor) -> Tensor:
        self.acted = True
        highest = F.max_pool2d(input, self.kernel_size, 1, self.padding, self.dilation, self.ceil_mode)
        return blur(highest, self.stride)


class BlurPoolCount(NamedTuple):
    """Count the layers that `blurpool` replaced, and the strided layers that it left unchanged.

    Examples:
        >>> BlurPoolCount(convolutions=6, max_pools=1, left=0).max_pools
        1
    """

    convolutions: int
    max_pools: int
    left: int


def blurpool(
    model: nn.Module,
    *,
    replace_convs: bool = True,
    replace_maxpools: bool = True,
    blur_first: bool = True,
    min_channels: int = 16,
) -> BlurPoolCount:
    """Replace, in place, strided convolutions with >= `min_channels` input channels and strided max-pools.

    The new layers share the parameters of those replaced. A layer is left unchanged and counted if it has a forward of
    its own, is parametrized, or pads with other values than zeros. So is a pool that returns indices or has hooks. A
    second call finds nothing. Source: Zhang 2019 (arXiv 1904.11486) in the form of MosaicML Composer's BlurPool.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2))
        >>> blurpool(model)
        BlurPoolCount(convolutions=1, max_pools=1, left=0)
    """
    replaced: dict[nn.Module, nn.Module] = {}
    left = 0
    _, *layers = model.modules()
    for layer in layers:
        if replace_convs and isinstance(layer, nn.Conv2d) and _is_strided(layer.stride):
            if layer.in_channels < min_channels or isinstance(layer, BlurConv2d):
                continue
            forwards = type(layer).forward, type(layer)._conv_forward
            plain = forwards == (nn.Conv2d.forward, nn.Conv2d._conv_forward) and layer.padding_mode == "zeros"
            if plain and not parametrize.is_parametrized(layer):
                replaced[layer] = BlurConv2d.of(layer, blur_first)
            left += layer not in replaced
        elif replace_maxpools and isinstance(layer, nn.MaxPool2d) and _is_strided(layer.stride):
            if isinstance(layer, BlurMaxPool2d):
                continue
            if type(layer).forward is nn.MaxPool2d.forward and not layer.return_indices and not hooked(layer):
                replaced[layer] = BlurMaxPool2d.of(layer)
            left += layer not in replaced
    replace_layers(model, replaced)
    convolutions = sum(isinstance(layer, BlurConv2d) for layer in replaced.values())
    return BlurPoolCount(convolutions, len(replaced) - convolutions, left)


def _is_strided(stride: _Stride) -> bool:
    return max(stride if isinstance(stride, tuple) else (stride,)) > 1


class BlurPool(Method, name="blurpool"):
    """Blur the inputs of strided layers: slightly more work a step, fewer epochs to the same accuracy.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2))
        >>> model, change = BlurPool().model(model)
        >>> change
        '1 convolution, 1 max-pool'
    """

    acting: ClassVar[tuple[type, ...]] = (BlurConv2d, BlurMaxPool2d)
    replace_convs: bool = True
    replace_maxpools: bool = True
    blur_first: bool = True
    min_channels: int = 16

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        count = blurpool(model, **asdict(self))
        if not count.convolutions and not count.max_pools:
            raise self.no_effect(
                f"found no strided convolution with {self.min_channels} or more input channels and no strided max-pool "
                f"that it can replace ({count.left} strided layers of other kinds)"
            )
        change = f"{_counted(count.convolutions, 'convolution')}, {_counted(count.max_pools, 'max-pool')}"
        return model, change + (f", {count.left} strided layers left as they were" if count.left else "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
