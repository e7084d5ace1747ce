"""Fused operations save less for the backward pass, keep dtypes, and drop as asked; test_encoder.py compares values."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from timedrun.methods.fused_layers import dense_gelu_dense, dropout_add_layer_norm


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def test_dense_gelu_dense_keeps_input_and_gelus_input_only():
    kept: list[Tensor] = []
    inputs = drawn((64, 16), (48, 16), (48,), (16, 48), (16,), dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        dense_gelu_dense(*inputs, "gelu")
    own = {tensor.data_ptr() for tensor in inputs}
    assert [tuple(tensor.shape) for tensor in kept if tensor.data_ptr() not in own] == [(64, 48)]


def test_gradients_of_dropout_add_layer_norm_are_the_numerical_ones():
    inputs = drawn((2, 3, 5), (2, 3, 5), (5,), (5,))

    def same_dropout(*x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return dropout_add_layer_norm(*x, 1e-12, 0.4, True)

    assert torch.autograd.gradcheck(same_dropout, inputs)


def test_dropout_drops_its_fraction_and_dropped_elements_have_no_gradient():
    torch.manual_seed(0)
    x, residual, weight, bias = drawn((500, 400), (500, 400), (400,), (400,))
    dropout_add_layer_norm(x, residual, weight, bias, 1e-12, 0.3, True).sin().sum().backward()
    assert x.grad is not None and residual.grad is not None
    kept = x.grad != 0
    assert abs(kept.double().mean() - 0.7) < 0.005  # sd 0.001
    torch.testing.assert_close(x.grad[kept], residual.grad[kept] / 0.7)
    none = dropout_add_layer_norm(x, residual, weight, bias, 1e-12, 1.0, True)
    torch.testing.assert_close(none, torch.nn.functional.layer_norm(residual, (400,), weight, bias, 1e-12))
    assert not torch.autograd.grad(none.sin().sum(), x)[0].any()


def test_the_gradients_of_a_norm_in_bf16_are_those_of_many_rows():
    """torch's fused backward pass on a CPU adds them in bf16: 13 and 78 % off here."""
    torch.manual_seed(0)
    x, weights = torch.randn(16_000, 64), torch.randn(16_000, 64) + 0.3
    found = []
    for norm, dtype in ((nn.LayerNorm(64), torch.float32), (nn.LayerNorm(64), torch.bfloat16)):
        x = x.to(dtype)
        output = dropout_add_layer_norm(x, torch.zeros_like(x), norm.weight, norm.bias, norm.eps, 0.0, True)
        output.backward(weights.to(dtype))
        found.append((norm.weight.grad, norm.bias.grad))
    for exact, own in zip(*found, strict=True):
        assert (own - exact).norm() <= 0.01 * exact.norm()


@pytest.mark.parametrize(
    ("x_dtype", "residual_dtype"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_the_norm_has_the_dtype_of_the_residual(x_dtype, residual_dtype):
    x, residual, weight, bias = drawn((32, 16), (32, 16), (16,), (16,), dtype=torch.float32)
    x, residual = x.detach().to(x_dtype).requires_grad_(), residual.detach().to(residual_dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        output = dropout_add_layer_norm(x, residual, weight, bias, 1e-12, 0.0, True)
    assert output.dtype == residual_dtype
    expected = functional.layer_norm(x.float() + residual.float(), (16,), weight, bias, 1e-12)
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.02)
    output.float().sin().sum().backward()
    assert [t.grad.dtype for t in (x, residual) if t.grad is not None] == [x_dtype, residual_dtype]
    assert weight.grad.dtype == bias.grad.dtype == torch.float32
