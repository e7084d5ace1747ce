"""Fused operations save less for the backward pass, keep dtypes, and drop as asked; test_encoder.py compares values."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from language_model.encoder import layer_norm
from timedrun.methods.fused_layers import dense_gelu_dense, dropout_add_layer_norm, gelu


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def dense_inputs(rows: int = 5, width: int = 4, inner: int = 7, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return drawn((rows, width), (inner, width), (inner,), (width, inner), (width,), dtype=dtype)


def plain_dense(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: str) -> Tensor:
    return functional.linear(gelu(functional.linear(x, w1, b1), activation), w2, b2)


def saved_bytes(compute: Callable[[], Tensor], parameters: list[Tensor]) -> int:
    """Return the bytes that autograd saves besides the parameters, each storage counted once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        alive = compute()
    for parameter in parameters:
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    assert alive.requires_grad
    return sum(kept.values())


def test_dense_gelu_dense_keeps_input_and_gelus_input_only():
    rows, width, inner = 64, 16, 48
    inputs = dense_inputs(rows, width, inner, torch.float32)
    fused = saved_bytes(lambda: dense_gelu_dense(*inputs, "gelu"), inputs)
    plain = saved_bytes(lambda: plain_dense(*inputs, "gelu"), inputs)
    assert fused == 4 * rows * inner
    assert plain == 2 * fused


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


def plain(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return layer_norm(x, norm, low_precision=True)


def fused(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return dropout_add_layer_norm(x, torch.zeros_like(x), norm.weight, norm.bias, norm.eps, 0.0, True)


@pytest.mark.parametrize("compute", [plain, fused])
def test_the_gradients_of_a_norm_in_bf16_are_those_of_many_rows(compute):
    """torch's fused backward pass on a CPU adds them in bf16: 13 and 78 % off here."""
    torch.manual_seed(0)
    x, weights = torch.randn(16_000, 64), torch.randn(16_000, 64) + 0.3
    found = []
    for norm, dtype in ((nn.LayerNorm(64), torch.float32), (nn.LayerNorm(64), torch.bfloat16)):
        compute(x.to(dtype), norm).backward(weights.to(dtype))
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
