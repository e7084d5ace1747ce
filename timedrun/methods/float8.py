"""Float8: matrix products of linear layers with operands of 8 bits."""

import re
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods.method import Method, Stage, left_out

FEATURES = torch.float8_e4m3fn
GRADIENTS = torch.float8_e5m2
"""Fewer digits and a wider range: most gradients are far smaller than the largest."""
MULTIPLE = 16
"""Divides every dimension of a product: a requirement of cuBLAS."""


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return `x` divided by a scale, in `dtype`, and the 0-dimensional float32 scale.

    The scale maps the largest magnitude of `x` to the largest number of `dtype`; it is 1 / that number if `x` is zero.

    Examples:
        >>> quantized, scale = quantize(torch.tensor([1.0, -2.0]), torch.float8_e4m3fn)
        >>> quantized.float() * scale
        tensor([ 1., -2.])
    """
    largest = x.abs().amax().float()
    scale = torch.where(largest > 0, largest, 1.0) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


class _Float8Product(torch.autograd.Function):
    """(N, K), (M, K) -> (N, M) in bfloat16; MULTIPLE divides N, K and M."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (left, left_scale), (right, right_scale) = quantize(x, FEATURES), quantize(weight, FEATURES)
        ctx.save_for_backward(left, left_scale, right, right_scale)
        ctx.dtypes = x.dtype, weight.dtype
        return torch._scaled_mm(left, right.t(), left_scale, right_scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        left, left_scale, right, right_scale = ctx.saved_tensors
        outer, outer_scale = quantize(gradients[0], GRADIENTS)
        # The second operand has to be stored by columns.
        inputs = torch._scaled_mm(outer, right.t().contiguous().t(), outer_scale, right_scale, out_dtype=torch.bfloat16)
        weights = torch._scaled_mm(
            outer.t().contiguous(), left.t().contiguous().t(), outer_scale, left_scale, out_dtype=torch.float32
        )
        return inputs.to(ctx.dtypes[0]), weights.to(ctx.dtypes[1])


def float8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply `torch.nn.functional.linear` to x (..., K) with operands of 8 bits, forward and backward; 16 divides both
    dimensions of `weight` (M, K). The result is in autocast's type or that of `x`; products are rounded to bfloat16.

    Inputs and weights are in e4m3, gradients of the outputs in e5m2, each scaled by its largest magnitude (tensorwise
    dynamic scaling). Needs a GPU of compute capability 8.9 or above; a CPU emulates it. Formats: Micikevicius et al.
    2022, arXiv 2209.05433.

    Examples:
        >>> float8_linear(torch.ones(2, 16), torch.ones(32, 16)).shape
        torch.Size([2, 32])
    """
    rows = x.reshape(-1, x.shape[-1])
    # Always, even by 0 rows: a condition on the number of rows would be compiled twice. No rows become 16 as well.
    padded = F.pad(rows, (0, 0, 0, -len(rows) % MULTIPLE + MULTIPLE * (not len(rows))))
    product: Tensor = _Float8Product.apply(padded, weight)  # type: ignore[no-untyped-call]
    kind = x.device.type
    autocast = not x.is_meta and torch.is_autocast_enabled(kind)  # autocast knows no meta device
    dtype = torch.get_autocast_dtype(kind) if autocast else x.dtype
    product = product[: len(rows)].view(*x.shape[:-1], len(weight)).to(dtype)
    return product if bias is None else product + bias.to(product.dtype)


class Float8Linear(nn.Linear):
    """Apply a linear layer by `float8_linear`.

    Examples:
        >>> Float8Linear(16, 32)(torch.ones(2, 16)).shape
        torch.Size([2, 32])
    """

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return float8_linear(input, self.weight, self.bias)


class Float8(Method, name="float8", stage=Stage.FORMAT):
    """Multiply in 8 bits in linear layers whose sizes 16 divides. Parameters keep names and number format.

    Examples:
        >>> model, change = Float8().model(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)))
        >>> change
        '1 linear layers; left as they were: 1 torch.nn.modules.linear.Linear'
    """

    acting: ClassVar[tuple[type, ...]] = (Float8Linear,)
    layers: str = ".*"
    """Regular expression that the whole name of a layer's module matches, such as `head`."""

    def check(self) -> None:
        try:
            re.compile(self.layers)
        except re.error as error:
            raise ValueError(f"float8.layers is not a regular expression: {self.layers!r}: {error}") from error

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = [
            layer
            for name, layer in model.named_modules()
            if type(layer) is nn.Linear
            and re.fullmatch(self.layers, name)
            and not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE)
        ]
        if not layers:
            raise self.no_effect(
                f"found no linear layer named {self.layers!r} whose inputs and outputs {MULTIPLE} divides",
                "change float8.layers or remove it from the methods",
            )
        left = left_out(layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer not in layers)
        for layer in layers:
            layer.__class__ = Float8Linear
        return model, f"{len(layers)} linear layers{left}"
