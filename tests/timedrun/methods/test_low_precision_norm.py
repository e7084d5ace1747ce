"""Norms in autocast's type: their output and gradients against float64, and no effect without autocast."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from timedrun.methods import LowPrecisionGroupNorm, LowPrecisionLayerNorm, Method, NoEffect, stack

CASES: list[Any] = [
    (LowPrecisionLayerNorm(), partial(nn.LayerNorm, 8), (28_672, 8)),
    (LowPrecisionGroupNorm(), partial(nn.GroupNorm, 2, 8), (256, 8, 14, 8)),
]


@pytest.mark.parametrize(("method", "make", "shape"), CASES)
def test_output_and_gradients_are_right_to_the_precision_of_the_type(
    method: Method, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    layer, exact = make(), make().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.rand(8) + 0.5)
    exact.load_state_dict(layer.state_dict())
    speed = stack(method)
    model = speed.model(nn.Sequential(layer))
    inputs, weights = torch.randn(shape), torch.rand(shape)
    speed.before_step(model, 0, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(inputs)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), exact(inputs.double()), atol=0.03, rtol=0.02)
    (output.float() * weights).sum().backward()
    (exact(inputs.double()) * weights).sum().backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and ours.dtype == torch.float32
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0.01, atol=30)  # torch's own are off by 20 %
    speed.after_step(model)
    speed.verify()


@pytest.mark.parametrize(("method", "make", "shape"), CASES)
def test_without_autocast_it_is_the_layer_and_has_no_effect(
    method: Method, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    speed, inputs = stack(method), torch.randn(4, *shape[1:])
    plain = make()
    expected = plain(inputs)
    model = speed.model(nn.Sequential(plain))
    speed.before_step(model, 0, 0.0)
    assert torch.equal(model(inputs), expected)
    assert copy.deepcopy(model).to("meta")(inputs.to("meta")).shape == expected.shape
    speed.after_step(model)
    with pytest.raises(NoEffect, match=method.name):
        speed.verify()
    with pytest.raises(NoEffect, match="found no"):
        stack(method).model(nn.Linear(2, 2))
