"""Layer norm and group norm in autocast's number format, which PyTorch computes in float32."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods.method import Method, Stage, left_out

Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""(inputs, weight, bias) -> the normalized inputs."""


def norm_in_type(inputs: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm, last: int = 0) -> Tensor:
    """Return `norm` of all three tensors, of one type; `inputs` have `last` dimensions after that of `weight`, `bias`.

    Examples:
        >>> inputs, weight, bias = torch.rand(2, 8).bfloat16(), torch.ones(8).bfloat16(), torch.zeros(8).bfloat16()
        >>> norm_in_type(inputs, weight, bias, lambda x, w, b: F.layer_norm(x, (8,), w, b)).dtype
        torch.bfloat16
    """
    if inputs.device.type != "cpu":
        return norm(inputs, weight, bias)
    # Scaled and shifted apart: torch's fused backward pass on a CPU adds the gradients of bf16 scales in bf16, which is
    # wrong by a fifth after some 30,000 rows.
    shape = (*(weight.shape if weight is not None else ()), *[1] * last)
    weight, bias = (None if factor is None else factor.view(shape) for factor in (weight, bias))
    normalized = norm(inputs, None, None)
    scaled = normalized if weight is None else normalized * weight
    return scaled if bias is None else scaled + bias


class _Autocast(nn.Module):
    """Norm in the type of autocast where it is enabled."""

    weight: Any
    bias: Any
    normalized: Norm
    channels_first: ClassVar[bool] = False
    acted = False
    """True after a forward pass in the lower precision."""

    def forward(self, input: Tensor) -> Tensor:
        kind = input.device.type
        if input.is_meta or not torch.is_autocast_enabled(kind):  # autocast knows no meta device
            return super().forward(input)  # type: ignore[no-any-return]  # torch's norm, the other base
        if not self.acted:
            self.acted = True
        dtype = torch.get_autocast_dtype(kind)
        weight, bias = (None if factor is None else factor.to(dtype) for factor in (self.weight, self.bias))
        last = input.dim() - 2 if self.channels_first else 0
        with torch.autocast(kind, enabled=False):
            return norm_in_type(input.to(dtype), weight, bias, self.normalized, last)


class AutocastLayerNorm(_Autocast, nn.LayerNorm):
    """Apply layer norm to (..., *normalized_shape) in autocast's type.

    Examples:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     AutocastLayerNorm(8)(torch.rand(2, 8)).dtype
        torch.bfloat16
    """

    def normalized(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class AutocastGroupNorm(_Autocast, nn.GroupNorm):
    """Apply group norm to (N, C, ...) in autocast's type.

    Examples:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     AutocastGroupNorm(2, 8)(torch.rand(2, 8, 4, 4)).dtype
        torch.bfloat16
    """

    channels_first: ClassVar[bool] = True

    def normalized(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.group_norm(x, self.num_groups, weight, bias, self.eps)


class _LowPrecision(Method):
    kind: ClassVar[type[nn.Module]]

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        every = [layer for layer in model.modules() if isinstance(layer, self.kind)]
        norms = [layer for layer in every if type(layer) is self.kind]
        left = left_out(set(every).difference(norms))
        if not norms:
            raise self.no_effect(f"found no {self.kind.__name__} that is torch's own{left}")
        for layer in norms:
            layer.__class__ = self.acting[0]
        return model, f"{len(norms)} norms computed in autocast's type{left}"


class LowPrecisionLayerNorm(_LowPrecision, name="low_precision_layer_norm", stage=Stage.FORMAT):
    """Compute layer norm in autocast's type, as fast as a fused kernel; no effect without autocast (MosaicML Composer).

    The method does not use apex's fused norm: torch's own kernel runs in the same type and needs no package.

    Examples:
        >>> model, change = LowPrecisionLayerNorm().model(nn.Sequential(nn.LayerNorm(8)))
        >>> change
        "1 norms computed in autocast's type"
    """

    kind: ClassVar[type[nn.Module]] = nn.LayerNorm
    acting: ClassVar[tuple[type, ...]] = (AutocastLayerNorm,)


class LowPrecisionGroupNorm(_LowPrecision, name="low_precision_group_norm", stage=Stage.FORMAT):
    """Compute group norm in autocast's type; no effect without autocast (MosaicML Composer).

    Examples:
        >>> model, change = LowPrecisionGroupNorm().model(nn.Sequential(nn.GroupNorm(2, 8)))
        >>> change
        "1 norms computed in autocast's type"
    """

    kind: ClassVar[type[nn.Module]] = nn.GroupNorm
    acting: ClassVar[tuple[type, ...]] = (AutocastGroupNorm,)
