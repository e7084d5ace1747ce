"""The float8 head computes the products of its rounded operands, forward and backward."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from language_model.gpt.float8 import Float8Linear, quantize
from language_model.gpt.model import Decoder, NextTokenLoss, build_model
from language_model.gpt.settings import GPT2_DECODER, GptConfig

SMALL = replace(
    GPT2_DECODER, layers=1, hidden=32, heads=2, context=16, vocabulary=60, vocabulary_multiple=16, biases=False
)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round `x` to `dtype` after a scaling to its range, in float64."""
    scale = x.abs().max().double() / torch.finfo(dtype).max
    return (x.double() / scale).float().to(dtype).double() * scale


def test_outputs_and_gradients_are_products_of_rounded_operands() -> None:
    torch.manual_seed(0)
    layer, x = Float8Linear(32, 48), torch.randn(2, 16, 32, requires_grad=True)
    outer = torch.randn(2, 16, 48) * torch.logspace(-4, 0, 48)
    layer(x).backward(outer.bfloat16())
    features, weights = rounded(x.detach(), torch.float8_e4m3fn), rounded(layer.weight.detach(), torch.float8_e4m3fn)
    gradients = rounded(outer.bfloat16().float(), torch.float8_e5m2)
    assert x.grad is not None and layer.weight.grad is not None
    torch.testing.assert_close(layer(x).double(), features @ weights.T, rtol=2**-8, atol=1e-2)
    torch.testing.assert_close(x.grad.double(), gradients @ weights, rtol=2**-7, atol=2e-2)
    expected = gradients.flatten(0, 1).T @ features.flatten(0, 1)
    torch.testing.assert_close(layer.weight.grad.double(), expected, rtol=1e-3, atol=1e-3)
    assert layer.weight.grad.dtype == x.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("size", [1e-20, 1.0, 3e30])
def test_values_of_any_size_are_rounded_by_at_most_half_a_digit_of_the_largest(dtype: torch.dtype, size: float) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(3)) * size
    values, scale = quantize(x, dtype)
    assert float(values.float().abs().max()) == torch.finfo(dtype).max
    # 3 and 2 binary digits after the first
    digit = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}[dtype]
    assert ((values.double() * scale.double() - x.double()).abs() <= digit * x.double().abs() + 1e-3 * size).all()
    assert torch.equal(quantize(torch.zeros(4), dtype)[0].float(), torch.zeros(4))


def test_a_value_that_is_not_finite_is_not_hidden() -> None:
    layer = Float8Linear(16, 16)
    assert layer(torch.tensor([[float("nan")] + [1.0] * 15])).isnan().all()


def test_a_decoder_with_the_head_has_nearly_the_loss_and_gradients_of_one_without() -> None:
    tokens = torch.randint(60, (4, 17), generator=torch.Generator().manual_seed(0))
    found: dict[bool, tuple[Tensor, dict[str, Tensor]]] = {}
    for float8 in (False, True):
        model = build_model(replace(SMALL, float8_head=float8), 1)
        assert isinstance(model, Decoder) and isinstance(model.head, Float8Linear) is float8
        with torch.no_grad():  # from a loss that depends on the weights
            model.embedding.weight.mul_(20)
        loss = NextTokenLoss(model)(tokens[:, :-1], tokens[:, 1:]) / 64
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        found[float8] = loss.detach(), gradients
    (plain, expected), (ours, gradients) = found[False], found[True]
    assert ours != plain and abs(ours - plain) < 0.02 * plain
    for name, wanted in expected.items():
        assert torch.nn.functional.cosine_similarity(gradients[name].flatten(), wanted.flatten(), dim=0) > 0.98, name


@pytest.mark.parametrize("change", [{"vocabulary_multiple": 1}, {"context": 17}, {"hidden": 40}])
def test_sizes_that_16_does_not_divide_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="float8_head needs sizes that 16 divides"):
        GptConfig(**{**vars(replace(SMALL, float8_head=True)), **change})
