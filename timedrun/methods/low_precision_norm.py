"""Layer norm and group norm in autocast's number format, which PyTorch computes in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, NoEffect, Stage, unwrapped


class _Lowered:
    """Part that both norms share."""

    lowered = False
    """True after a forward pass in the lower precision."""

    def _dtype(self, inputs: Tensor) -> torch.dtype | None:
        """Return autocast's type for `inputs`, None without autocast."""
        kind = inputs.device.type
        if inputs.is_meta or not torch.is_autocast_enabled(kind):  # autocast knows no meta device
            return None
        if not self.lowered:
            self.lowered = True
        return torch.get_autocast_dtype(kind)


class AutocastLayerNorm(_Lowered, nn.LayerNorm):
    """Layer norm in the type of autocast where it is enabled."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (..., *normalized_shape)."""
        dtype = self._dtype(input)
        if dtype is None:
            return super().forward(input)
        weight, bias = (None if one is None else one.to(dtype) for one in (self.weight, self.bias))
        with torch.autocast(input.device.type, enabled=False):
            if input.device.type != "cpu":
                return F.layer_norm(input.to(dtype), self.normalized_shape, weight, bias, self.eps)
            return _affine(F.layer_norm(input.to(dtype), self.normalized_shape, eps=self.eps), weight, bias)


class AutocastGroupNorm(_Lowered, nn.GroupNorm):
    """Group norm in the type of autocast where it is enabled."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, ...)."""
        dtype = self._dtype(input)
        if dtype is None:
            return super().forward(input)
        weight, bias = (None if one is None else one.to(dtype) for one in (self.weight, self.bias))
        with torch.autocast(input.device.type, enabled=False):
            if input.device.type != "cpu":
                return F.group_norm(input.to(dtype), self.num_groups, weight, bias, self.eps)
            shape = (-1, *[1] * (input.dim() - 2))
            weight, bias = (None if one is None else one.view(shape) for one in (weight, bias))
            return _affine(F.group_norm(input.to(dtype), self.num_groups, eps=self.eps), weight, bias)


def _affine(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift in separate operations: torch's fused backward pass on a CPU adds the gradients of bf16 scales in
    bf16, which is wrong by a fifth after some 30,000 rows."""
    scaled = normalized if weight is None else normalized * weight
    return scaled if bias is None else scaled + bias


class _LowPrecisionHooks(Hooks):
    saved = ("lowered",)

    def __init__(self, kind: type[_Lowered]) -> None:
        self._kind = kind
        self.lowered = 0

    def after_step(self, model: nn.Module, step: int) -> None:
        if not self.lowered:
            self.lowered = sum(layer.lowered for layer in unwrapped(model).modules() if isinstance(layer, self._kind))

    def effect(self) -> str | None:
        return f"{self.lowered} norms computed in autocast's type" if self.lowered else None


@dataclass(frozen=True, kw_only=True)
class LowPrecisionLayerNorm(Method):
    """Layer norm in autocast's type, as fast as a fused kernel; no effect without autocast (MosaicML Composer).

    apex's fused norm is not used: torch's own kernel runs in the same type and needs no package.
    """

    name: ClassVar[str] = "low_precision_layer_norm"
    stage: ClassVar[Stage] = Stage.FORMAT

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        _convert(model, nn.LayerNorm, AutocastLayerNorm, self.name)
        return model, ""

    def hooks(self) -> Hooks:
        return _LowPrecisionHooks(AutocastLayerNorm)


@dataclass(frozen=True, kw_only=True)
class LowPrecisionGroupNorm(Method):
    """Group norm in autocast's type; no effect without autocast (MosaicML Composer)."""

    name: ClassVar[str] = "low_precision_group_norm"
    stage: ClassVar[Stage] = Stage.FORMAT

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        _convert(model, nn.GroupNorm, AutocastGroupNorm, self.name)
        return model, ""

    def hooks(self) -> Hooks:
        return _LowPrecisionHooks(AutocastGroupNorm)


def _convert(model: nn.Module, kind: type[nn.Module], to: type[nn.Module], method: str) -> None:
    """Turn the layers of exactly the class `kind` into `to`, in place; raise NoEffect if there are none."""
    found = [layer for layer in model.modules() if type(layer) is kind]
    if not found:
        raise NoEffect(f"{method} found no {kind.__name__} in the model; remove it from the methods")
    for layer in found:
        layer.__class__ = to
