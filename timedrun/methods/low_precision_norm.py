"""Layer norm and group norm in autocast's number format, which PyTorch computes in float32."""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods.method import Method, Stage, left_out

Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""(inputs, weight, bias) -> the normalized inputs."""


class _Autocast:
    """Part that both norms share."""

    acted = False
    """True after a forward pass in the lower precision."""

    def in_autocast(
        self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm, last: int = 0
    ) -> Tensor | None:
        """Return `norm` of all three in the type of autocast; None where it is not enabled.

        last: dimensions of `inputs` after that of `weight` and `bias`.
        """
        kind = inputs.device.type
        if inputs.is_meta or not torch.is_autocast_enabled(kind):  # autocast knows no meta device
            return None
        if not self.acted:
            self.acted = True
        dtype = torch.get_autocast_dtype(kind)
        weight, bias = (None if factor is None else factor.to(dtype) for factor in (weight, bias))
        with torch.autocast(kind, enabled=False):
            return norm_in_type(inputs.to(dtype), weight, bias, norm, last)


def norm_in_type(inputs: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm, last: int = 0) -> Tensor:
    """Return `norm` of all three, which have one type; `last` as in `_Autocast.in_autocast`."""
    if inputs.device.type != "cpu":
        return norm(inputs, weight, bias)
    # Scaled and shifted apart: torch's fused backward pass on a CPU adds the gradients of bf16 scales in bf16, which is
    # wrong by a fifth after some 30,000 rows.
    shape = (*(weight.shape if weight is not None else ()), *[1] * last)
    weight, bias = (None if factor is None else factor.view(shape) for factor in (weight, bias))
    normalized = norm(inputs, None, None)
    scaled = normalized if weight is None else normalized * weight
    return scaled if bias is None else scaled + bias


class AutocastLayerNorm(_Autocast, nn.LayerNorm):
    """Layer norm in the type of autocast where it is enabled."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (..., *normalized_shape)."""
        norm: Norm = lambda x, weight, bias: F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)  # noqa: E731
        output = self.in_autocast(input, self.weight, self.bias, norm)
        return super().forward(input) if output is None else output


class AutocastGroupNorm(_Autocast, nn.GroupNorm):
    """Group norm in the type of autocast where it is enabled."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, ...)."""
        norm: Norm = lambda x, weight, bias: F.group_norm(x, self.num_groups, weight, bias, self.eps)  # noqa: E731
        output = self.in_autocast(input, self.weight, self.bias, norm, last=input.dim() - 2)
        return super().forward(input) if output is None else output


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
    """Layer norm in autocast's type, as fast as a fused kernel; no effect without autocast (MosaicML Composer).

    apex's fused norm is not used: torch's own kernel runs in the same type and needs no package.
    """

    kind: ClassVar[type[nn.Module]] = nn.LayerNorm
    acting: ClassVar[tuple[type, ...]] = (AutocastLayerNorm,)


class LowPrecisionGroupNorm(_LowPrecision, name="low_precision_group_norm", stage=Stage.FORMAT):
    """Group norm in autocast's type; no effect without autocast (MosaicML Composer)."""

    kind: ClassVar[type[nn.Module]] = nn.GroupNorm
    acting: ClassVar[tuple[type, ...]] = (AutocastGroupNorm,)
