"""Layer norm and group norm in autocast's number format, which PyTorch computes in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Stage, unwrapped

Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""(inputs, weight, bias) -> the normalized inputs."""


class _Autocast:
    """Part that both norms share."""

    lowered = False
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
        if not self.lowered:
            self.lowered = True
        dtype = torch.get_autocast_dtype(kind)
        weight, bias = (None if factor is None else factor.to(dtype) for factor in (weight, bias))
        with torch.autocast(kind, enabled=False):
            if kind != "cpu":
                return norm(inputs.to(dtype), weight, bias)
            # Scaled and shifted apart: torch's fused backward pass on a CPU adds the gradients of bf16 scales in bf16,
            # which is wrong by a fifth after some 30,000 rows.
            shape = (*(weight.shape if weight is not None else ()), *[1] * last)
            weight, bias = (None if factor is None else factor.view(shape) for factor in (weight, bias))
            normalized = norm(inputs.to(dtype), None, None)
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


class _LowPrecisionHooks(Hooks):
    _method: _LowPrecision
    saved = ("lowered",)
    lowered = 0

    def after_step(self, model: nn.Module, step: int) -> None:
        if not self.lowered:
            norms = [layer for layer in unwrapped(model).modules() if isinstance(layer, self._method.lowered)]
            self.lowered = sum(layer.lowered for layer in norms)

    def effect(self) -> str | None:
        return f"{self.lowered} norms computed in autocast's type" if self.lowered else None


class _LowPrecision(Method, hooks=_LowPrecisionHooks):
    kind: ClassVar[type[nn.Module]]
    lowered: ClassVar[type[_Autocast]]

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        norms = [layer for layer in model.modules() if type(layer) is self.kind]
        if not norms:
            raise self.no_effect(f"found no {self.kind.__name__} in the model")
        for layer in norms:
            layer.__class__ = self.lowered  # type: ignore[assignment]
        return model, ""  # without autocast nothing has changed


class LowPrecisionLayerNorm(_LowPrecision, name="low_precision_layer_norm", stage=Stage.FORMAT):
    """Layer norm in autocast's type, as fast as a fused kernel; no effect without autocast (MosaicML Composer).

    apex's fused norm is not used: torch's own kernel runs in the same type and needs no package.
    """

    kind: ClassVar[type[nn.Module]] = nn.LayerNorm
    lowered: ClassVar[type[_Autocast]] = AutocastLayerNorm


class LowPrecisionGroupNorm(_LowPrecision, name="low_precision_group_norm", stage=Stage.FORMAT):
    """Group norm in autocast's type; no effect without autocast (MosaicML Composer)."""

    kind: ClassVar[type[nn.Module]] = nn.GroupNorm
    lowered: ClassVar[type[_Autocast]] = AutocastGroupNorm
