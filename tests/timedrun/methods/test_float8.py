"""Float8 computes the products of its rounded operands, forward and backward, in the layers that it names."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from language_model.gpt.model import Decoder, NextTokenLoss, build_model
from language_model.gpt.settings import GPT2_DECODER
from timedrun.methods import NoEffect, float8_linear, stack
from timedrun.methods.float8 import Float8, Float8Linear, quantize

DECODER = replace(GPT2_DECODER, layers=1, hidden=32, heads=2, context=16, vocabulary=64, biases=False)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round `x` to `dtype` after a scaling to its range, in float64."""
    scale = x.abs().max().double() / torch.finfo(dtype).max
    return (x.double() / scale).float().to(dtype).double() * scale


@pytest.mark.parametrize("rows", [16, 5])
def test_outputs_and_gradients_are_products_of_rounded_operands(rows: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in ((2, rows, 32), (48, 32), (48,)))
    outer = (torch.randn(2, rows, 48) * torch.logspace(-4, 0, 48)).bfloat16()
    output = float8_linear(x, weight, bias)
    output.backward(outer.float())
    features, weights = (rounded(one.detach(), torch.float8_e4m3fn) for one in (x, weight))
    gradients = rounded(outer.float(), torch.float8_e5m2)
    assert x.grad is not None and weight.grad is not None and bias.grad is not None
    torch.testing.assert_close(output.double(), features @ weights.T + bias.double(), rtol=2**-8, atol=1e-2)
    torch.testing.assert_close(x.grad.double(), gradients @ weights, rtol=2**-7, atol=2e-2)
    expected = gradients.flatten(0, 1).T @ features.flatten(0, 1)
    torch.testing.assert_close(weight.grad.double(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(bias.grad, outer.float().sum((0, 1)))


def test_outputs_have_the_type_of_autocast_or_of_the_inputs() -> None:
    layer = stack(Float8()).model(nn.Sequential(nn.Linear(16, 32)))
    assert layer(torch.randn(3, 16)).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, 16)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("size", [1e-20, 1.0, 3e30])
def test_values_of_any_size_are_rounded_to_the_digits_of_the_type(dtype: torch.dtype, size: float) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(3)) * size
    values, scale = quantize(x, dtype)
    assert float(values.float().abs().max()) == torch.finfo(dtype).max
    half_digit = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}[dtype]
    difference = (values.double() * scale.double() - x.double()).abs()
    assert (difference <= half_digit * x.double().abs() + 1e-3 * size).all()  # the addend: of numbers near zero
    assert torch.equal(quantize(torch.zeros(4), dtype)[0].float(), torch.zeros(4))


def test_a_value_that_is_not_finite_is_not_hidden() -> None:
    assert float8_linear(torch.tensor([[float("nan")] + [1.0] * 15]), torch.ones(16, 16)).isnan().all()


def test_a_decoder_with_a_float8_head_has_nearly_the_loss_and_gradients_of_one_without() -> None:
    tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(0))
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for speed in (stack(), stack(Float8(layers="head"))):
        model = speed.model(build_model(DECODER, 1))
        assert isinstance(model, Decoder) and model.head.weight is model.embedding.weight
        assert [name for name, layer in model.named_modules() if isinstance(layer, Float8Linear)] == (
            ["head"] if speed.report else []
        )
        with torch.no_grad():  # a loss that depends on the weights
            model.embedding.weight.mul_(20)
        loss = NextTokenLoss(model)(tokens[:, :-1], tokens[:, 1:]) / 64
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        found.append((loss.detach(), gradients))
    (plain, expected), (ours, gradients) = found
    assert ours != plain and abs(ours - plain) < 0.02 * plain
    for name, wanted in expected.items():
        assert torch.nn.functional.cosine_similarity(gradients[name].flatten(), wanted.flatten(), dim=0) > 0.98, name


def test_layers_of_other_sizes_or_names_stay_as_they_are() -> None:
    model = stack(Float8(layers="[01]")).model(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 16)))
    assert [type(layer) is Float8Linear for layer in model.children()] == [True, False, False]
    with pytest.raises(NoEffect, match="no linear layer named 'nowhere'"):
        stack(Float8(layers="nowhere")).model(model)
    with pytest.raises(ValueError, match="not a regular expression"):
        Float8(layers="(")
