"""Floating-point operations of an optimizer step, and the peak rates of accelerators to compare them with.

A multiply-add is two operations. Counted are those that torch.utils.flop_counter knows, of the step as it is computed:
matrix products, convolutions and attention, forward and backward, with those on padding, recomputed ones and those of
methods that run further passes. Attention under a mask counts as attention to all places. Element-wise operations,
norms and the optimizer's update are not counted.
"""

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

import torch
import torch.nn.attention.varlen  # defines its operators
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.utils.flop_counter import (
    FlopCounterMode,
    _FlopCounterMode,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

DENSE_TFLOPS: Final[Mapping[str, Mapping[str, float]]] = {
    "v100": {"fp16": 125, "fp32": 15.7},
    "a100": {"fp16": 312, "bf16": 312, "tf32": 156, "fp32": 19.5},
    "l40s": {"fp16": 362, "bf16": 362, "tf32": 183, "fp32": 91.6},
    "h100 pcie": {"fp16": 756, "bf16": 756, "tf32": 378, "fp32": 51},
    "h100": {"fp16": 989, "bf16": 989, "tf32": 495, "fp32": 67},
    "h200": {"fp16": 989, "bf16": 989, "tf32": 495, "fp32": 67},
    "b200": {"fp16": 2250, "bf16": 2250, "tf32": 1125, "fp32": 75},
}
"""Peak TFLOP/s of matrix products by words of an accelerator's name and by precision, without sparsity: the figures of
NVIDIA's data sheets for SXM modules if not said otherwise, those with sparsity halved. (The table of the package
checker, mlevents.package_checker.log_agreement, has the peak at the lowest precision alone.)"""


def peak_flops(accelerator: str, precision: str) -> float | None:
    """Return the peak operations per second of an accelerator at "fp16", "bf16", "tf32" or "fp32"; None: unknown."""
    words = set(re.findall(r"[a-z0-9]+", accelerator.lower()))
    peaks = next((rates for name, rates in DENSE_TFLOPS.items() if words.issuperset(name.split())), {})
    return peaks[precision] * 1e12 if precision in peaks else None


SAME_FORMULA: Final = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": "aten._scaled_dot_product_flash_attention_backward",
    "torch_attn._varlen_attn": "aten._flash_attention_forward",
    "torch_attn._varlen_attn_backward": "aten._flash_attention_backward",
}
"""Operators that the table of some versions of torch lacks, and those with the same leading arguments in it."""


def flop_counter() -> FlopCounterMode:
    """Return a context manager that counts the operations of what runs eagerly within it."""
    for operator, known in SAME_FORMULA.items():
        flop_registry.setdefault(attrgetter(operator)(torch.ops), flop_registry[attrgetter(known)(torch.ops)])
    if _FlopCounterMode not in flex_attention.python_key_table:
        flex_attention.py_impl(_FlopCounterMode)(_flex_attention)
        flex_attention_backward.py_impl(_FlopCounterMode)(_flex_attention_backward)
    return FlopCounterMode(display=False)


def _flex_attention(mode: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
    """Count and compute a higher-order operator, which torch's counter refuses even where it knows a formula."""
    operations = sdpa_flop_count(query.shape, key.shape, value.shape)  # type: ignore[no-untyped-call]
    mode.counter.flop_counts["Global"][flex_attention] += operations
    return flex_attention(query, key, value, *rest)


def _flex_attention_backward(
    mode: Any, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, gradient: Tensor, *rest: Any
) -> Any:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    operations = sdpa_backward_flop_count(*shapes)  # type: ignore[no-untyped-call]
    mode.counter.flop_counts["Global"][flex_attention_backward] += operations
    return flex_attention_backward(query, key, value, out, logsumexp, gradient, *rest)
