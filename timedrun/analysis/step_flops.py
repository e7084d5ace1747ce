"""Floating-point operations of an optimizer step, and the peak rates of accelerators to compare them with.

A multiply-add is two operations. Counted are those that torch.utils.flop_counter knows, of the step as it is computed:
matrix products, convolutions and attention, forward and backward, with those on padding, recomputed ones and those of
methods that run further passes. Element-wise operations, norms and the optimizer's update are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

import torch
import torch.nn.attention.varlen  # defines its operators
from torch.utils.flop_counter import FlopCounterMode, flop_registry

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
checker, mlevents.package_checker.throughput, has the peak at the lowest precision alone.)"""


def peak_flops(accelerator: str, precision: str) -> float | None:
    """Return the peak operations per second of an accelerator at "fp16", "bf16", "tf32" or "fp32"; None: unknown."""
    words = set(re.findall(r"[a-z0-9]+", accelerator.lower()))
    found = next((rates for name, rates in DENSE_TFLOPS.items() if words.issuperset(name.split())), {})
    return found[precision] * 1e12 if precision in found else None


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
    return FlopCounterMode(display=False)
