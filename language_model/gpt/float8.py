"""Linear layer with 8-bit floating-point matrix products, for the head of a language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FEATURES = torch.float8_e4m3fn
GRADIENTS = torch.float8_e5m2
"""Fewer digits and a wider range: most gradients of the logits are far smaller than the largest."""


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return `x` divided by a scale, in `dtype`, and the 0-dimensional float32 scale, with which the largest magnitude
    of `x` becomes the largest number of `dtype`; 1 / that number if `x` is zero."""
    largest = x.abs().amax().float()
    scale = torch.where(largest > 0, largest, 1.0) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


class _Float8Product(torch.autograd.Function):
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


class Float8Linear(nn.Linear):
    """Linear layer without bias whose products take operands of 8 bits: inputs and weights in e4m3, gradients of the
    outputs in e5m2, each with one scale for the whole tensor from its largest magnitude. Outputs are in bfloat16.

    Source: the head of the modded-nanogpt speed runs since January 2025, which has constant scales, and torchao's
    tensorwise recipe. A CPU emulates the products.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        product: Tensor = _Float8Product.apply(x.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        return product.unflatten(0, x.shape[:-1])
