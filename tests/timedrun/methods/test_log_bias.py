"""Log bias: the value, and where it is put."""

import math

import pytest
import torch
from torch import nn

from timedrun.methods import LogBias, NoEffect, linear_log_constant_bias
from timedrun.training.loss import binary_cross_entropy


def test_a_thousand_outputs_start_at_minus_6_9078() -> None:
    layer = nn.Linear(4, 1000)
    weight = layer.weight.detach().clone()
    assert linear_log_constant_bias(nn.Sequential(layer)) is not None
    assert torch.allclose(layer.bias, torch.tensor(-6.9078), atol=5e-5)
    assert torch.equal(layer.weight, weight)


def test_binary_cross_entropy_starts_near_its_floor() -> None:
    layer = nn.Linear(4, 1000)
    nn.init.zeros_(layer.weight)
    LogBias().model(layer)
    loss = binary_cross_entropy(layer(torch.zeros(2, 4)), torch.tensor([0, 999]))
    assert loss.item() == pytest.approx(math.log(1000) + 1, abs=0.01)  # without it: 1000 ln 2 = 693


def test_only_the_last_layer_is_set() -> None:
    hidden, last = nn.Linear(2, 3), nn.Linear(3, 2)
    before = hidden.bias.detach().clone()
    words = LogBias().model(nn.Sequential(hidden, nn.ReLU(), last, nn.Dropout()))[1]
    assert words == "bias of 2 set to -ln(2)"
    assert torch.equal(hidden.bias, before)
    assert torch.allclose(last.bias, torch.tensor(-math.log(2)))


@pytest.mark.parametrize("last", [nn.Linear(3, 2, bias=False), nn.Conv2d(3, 1, 1), nn.LayerNorm(3)])
def test_a_model_that_does_not_end_in_a_biased_linear_layer_is_refused_unchanged(last: nn.Module) -> None:
    hidden = nn.Linear(2, 3)
    before = hidden.bias.detach().clone()
    with pytest.raises(NoEffect, match="log_bias"):
        LogBias().model(nn.Sequential(hidden, last))
    assert torch.equal(hidden.bias, before)
