"""Fused operations of a BERT layer with hand-written backward passes: dropout-add-layer-norm, dense-GELU-dense."""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from timedrun.methods.method import Method, Stage

Activation = Literal["gelu_tanh", "gelu"]
ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
"""By transformers' name."""
APPROXIMATION: dict[Activation, str] = {"gelu_tanh": "tanh", "gelu": "none"}


def gelu(x: Tensor, activation: Activation) -> Tensor:
    """Apply the architecture's form of GELU (Hendrycks and Gimpel 2016, section 2) elementwise.

    Examples:
        >>> gelu(torch.zeros(2), "gelu_tanh")
        tensor([0., 0.])
    """
    return functional.gelu(x, approximate=APPROXIMATION[activation])


@cache
def region(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled for any number of rows. Its first call compiles, which takes seconds.

    Examples:
        >>> region(gelu) is region(gelu)
        True
    """
    return torch.compile(function, fullgraph=True, dynamic=True)


def dropout_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, epsilon: float, p: float, training: bool
) -> Tensor:
    """Compute layer_norm(dropout(x, p) + residual) over the last dimension, in the dtype of `residual`.

    x, residual (..., width); weight, bias (width,). With dropout it saves one byte an element for the backward pass,
    where the separate operations save four on a CPU; without, the same as they.

    Examples:
        >>> x, residual, weight, bias = torch.rand(2, 8), torch.rand(2, 8), torch.ones(8), torch.zeros(8)
        >>> fused = dropout_add_layer_norm(x, residual, weight, bias, 1e-12, p=0.0, training=True)
        >>> torch.equal(fused, functional.layer_norm(x + residual, (8,), weight, bias, 1e-12))
        True
    """
    p = p if training else 0.0
    output: Tensor = _DropoutAddLayerNorm.apply(x, residual, weight, bias, epsilon, p)  # type: ignore[no-untyped-call]
    return output


class _DropoutAddLayerNorm(torch.autograd.Function):
    """Saves the sum, two statistics a row and, with dropout, one byte an element."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, epsilon: float, p: float
    ) -> Tensor:
        ctx.dtype, ctx.p, ctx.width = x.dtype, p, weight.shape
        keep = None
        if p:
            keep = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
            x = torch.where(keep, x, 0) * (1 / ((1 - p) or 1))
        with torch.autocast(x.device.type, enabled=False):  # autocast would compute the norm in fp32
            total = x.to(residual.dtype) + residual
            scale, shift = weight.to(total.dtype), bias.to(total.dtype)
            output, mean, deviation = torch.native_layer_norm(total, ctx.width, scale, shift, epsilon)
        ctx.save_for_backward(total, mean, deviation, weight, bias, keep)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        total, mean, deviation, weight, bias, keep = ctx.saved_tensors
        scale, shift = weight.to(total.dtype), bias.to(total.dtype)
        gradient = gradient.to(total.dtype)
        fused = total.is_cuda or total.dtype == weight.dtype  # a CPU adds the gradients of bf16 scales in bf16
        d_total, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward(
            gradient, total, ctx.width, mean, deviation, scale, shift, [True, fused, fused]
        )
        if not fused:
            rows = gradient.reshape(-1, *ctx.width).to(weight.dtype)
            d_bias = rows.sum(0)
            d_weight = (rows * ((total - mean) * deviation).reshape(rows.shape)).sum(0)
        d_x = d_total.to(ctx.dtype)
        if keep is not None:
            d_x = torch.where(keep, d_x, 0) * (1 / ((1 - ctx.p) or 1))
        return d_x, d_total, d_weight.to(weight.dtype), d_bias.to(bias.dtype), None, None


def dense_gelu_dense(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, activation: Activation
) -> Tensor:
    """Compute linear(gelu(linear(x, weight1, bias1)), weight2, bias2), saving the input and the GELU's input only.

    x (rows, width), weight1 (inner, width), weight2 (width, inner). The backward pass recomputes the GELU.
    Under autocast all matrix products have its dtype.

    The first product does not use torch._addmm_activation, which does not return the GELU's input, uses the exact form
    on a CPU, where it is no faster, and the tanh form on CUDA.

    Examples:
        >>> first, second = nn.Linear(8, 32), nn.Linear(32, 8)
        >>> dense_gelu_dense(torch.rand(2, 8), first.weight, first.bias, second.weight, second.bias, "gelu").shape
        torch.Size([2, 8])
    """
    output: Tensor = _DenseGeluDense.apply(  # type: ignore[no-untyped-call]
        x, weight1, bias1, weight2, bias2, APPROXIMATION[activation]
    )
    return output


class _DenseGeluDense(torch.autograd.Function):
    """Does not save the GELU's output, which is four times as wide as a hidden state."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, approximate: str
    ) -> Tensor:
        device = x.device.type
        computed = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        ctx.approximate, ctx.dtype, ctx.parameter_dtype = approximate, x.dtype, weight1.dtype
        with torch.autocast(device, enabled=False):
            x, first, second = x.to(computed), weight1.to(computed), weight2.to(computed)
            inner = functional.linear(x, first, bias1.to(computed))
            ctx.save_for_backward(x, inner, first, second)
            return functional.linear(functional.gelu(inner, approximate=approximate), second, bias2.to(computed))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, first, second = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            gradient = gradient.to(x.dtype)
            d_inner = torch.ops.aten.gelu_backward(gradient @ second, inner, approximate=ctx.approximate)
            activated = functional.gelu(inner, approximate=ctx.approximate)
            parameters = (d_inner.t() @ x, d_inner.sum(0), gradient.t() @ activated, gradient.sum(0))
            return (d_inner @ first).to(ctx.dtype), *(d.to(ctx.parameter_dtype) for d in parameters), None


class _FusedOutput(nn.Module):
    """In place of the class of BertSelfOutput and BertOutput: a matrix, dropout, and the norm of the sum."""

    dense: Any
    dropout: Any
    LayerNorm: Any
    feed_forward: tuple[nn.Linear, Activation] | None = None
    """First matrix and activation, where `intermediate` passes its input."""

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        dense, norm, rows = self.dense, self.LayerNorm, hidden_states.flatten(0, -2)
        if self.feed_forward is None:
            rows = dense(rows)
        else:
            first, activation = self.feed_forward
            rows = dense_gelu_dense(rows, first.weight, first.bias, dense.weight, dense.bias, activation)
        parameters = (norm.weight, norm.bias, norm.eps, self.dropout.p, self.training)
        return dropout_add_layer_norm(rows.view_as(input_tensor), input_tensor, *parameters)


class FusedLayers(Method, name="fused_layers", stage=Stage.FORMAT):
    """Fuse dense-GELU-dense and dropout-add-norm in transformers' BERT and RoBERTa (MosaicML's BERT of MLPerf v2.1,
    without a paper), which saves memory: the GELU's output, four hidden states wide, is computed again.

    Examples:
        >>> FusedLayers().model(nn.Linear(4, 2))
        Traceback (most recent call last):
            ...
        timedrun.methods.method.NoEffect: fused_layers found no layer of transformers' BERT or RoBERTa with gelu ...
    """

    acting: ClassVar[tuple[type, ...]] = (_FusedOutput,)
    clashes: ClassVar[dict[str, str]] = dict.fromkeys(
        ("gated_linear_units", "factorize", "float8", "low_precision_layer_norm"), "both replace parts of the layers"
    )

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        kinds, parts = ("BertLayer", "RobertaLayer"), list[Any](model.modules())
        layers = [part for part in parts if type(part).__name__ in kinds and type(part.output) is not _FusedOutput]
        layers = [layer for layer in layers if layer.attention.self.config.hidden_act in ACTIVATIONS]
        if not layers:
            raise self.no_effect(f"found no layer of transformers' BERT or RoBERTa with {' or '.join(ACTIVATIONS)}")
        for layer in layers:
            activation = ACTIVATIONS[layer.attention.self.config.hidden_act]
            layer.output.feed_forward = (layer.intermediate.dense, activation)  # in a tuple, so no part of two modules
            layer.output.__class__ = layer.attention.output.__class__ = _FusedOutput
            layer.intermediate.forward = nn.Identity().forward
        return model, f"{len(layers)} layers"
