"""Operations of a step against formulas of its layers, and peaks by an accelerator's name."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from timedrun.analysis.profiled_run import StepPlan, profiled
from timedrun.analysis.step_flops import flop_counter, peak_flops
from timedrun.benchmark import find


def test_a_linear_layer_has_two_operations_a_weight_forward_and_two_for_each_gradient() -> None:
    layer, inputs = nn.Linear(30, 50), torch.randn(7, 30, requires_grad=True)
    with flop_counter() as counted:
        layer(inputs).sum().backward()
    assert counted.get_total_flops() == 3 * 2 * 7 * 30 * 50


def test_attention_on_a_cpu_is_counted_with_the_scores_that_its_backward_pass_recomputes() -> None:
    count, heads, length, width = 2, 3, 8, 16
    query, key, value = (torch.randn(count, heads, length, width, requires_grad=True) for _ in range(3))
    mask = torch.ones(count, 1, 1, length, dtype=torch.bool)
    with flop_counter() as counted:
        functional.scaled_dot_product_attention(query, key, value, mask).sum().backward()
    product = 2 * count * heads * length * length * width
    assert counted.get_total_flops() == (2 + 5) * product


def test_attention_under_a_block_mask_is_counted_as_attention_to_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)  # no CPU's gradients
    query, key, value = (torch.randn(2, 3, 128, 16, requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    with torch.compiler.set_stance("force_eager"), flop_counter() as counted:
        mixed = torch.compile(flex_attention)(query, key, value, block_mask=mask)
        mixed.sum().backward()  # as a run on CUDA is counted
    assert counted.get_total_flops() == (2 + 5) * 2 * 2 * 3 * 128 * 128 * 16
    assert all(one.grad is not None and one.grad.norm() > 0 for one in (query, key, value))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_attention_over_rows_is_counted_by_the_lengths_of_the_sequences(precision: str) -> None:
    formula = flop_counter().flop_registry[torch.ops.torch_attn._varlen_attn]
    rows = torch.zeros(12, 4, 16, dtype=getattr(torch, {"fp16": "float16", "bf16": "bfloat16"}[precision]))
    cuts = torch.tensor([0, 9, 12], dtype=torch.int32)
    assert formula(rows, rows, rows, cuts, cuts, 512, 512) == 2 * 2 * 4 * 16 * (9**2 + 3**2)


def test_a_step_of_the_small_bert_has_the_operations_of_its_matrices() -> None:
    benchmark = find("language_model")
    config = benchmark.config("baseline")
    plan = StepPlan(positions=(0.5,), chunks=0, skip=1, counted=2, evaluate=False)
    (at,) = profiled(benchmark, config, plan).found
    tokens, hidden, layers, vocabulary = 16 * 128, 64, 2, config.architecture.vocabulary  # type: ignore[attr-defined]
    forward = 2 * tokens * (layers * 12 * hidden**2 + hidden**2 + hidden * vocabulary)
    forward += 2 * layers * 2 * tokens * 128 * hidden  # scores, weighted sums
    assert at.operations is not None and not at.plain
    assert at.operations.get_total_flops() == 2 * 3 * forward


def test_peaks_are_of_the_precision_and_of_the_variant() -> None:
    assert peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops("NVIDIA H100 80GB HBM3", "tf32") == 495e12
    assert peak_flops("Tesla V100-SXM2-16GB", "bf16") is None
    assert peak_flops("an unknown accelerator", "bf16") is None
