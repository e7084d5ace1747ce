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
    assert linear_log_constant_bias(nn.Sequential(layer)) == 1
    assert torch.allclose(layer.bias, torch.tensor(-6.9078), atol=5e-5)
    assert torch.equal(layer.weight, weight)


def test_binary_cross_entropy_starts_near_its_floor() -> None:
    layer = nn.Linear(4, 1000)
    nn.init.zeros_(layer.weight)
    LogBias().model(layer)
    loss = binary_cross_entropy(layer(torch.zeros(2, 4)), torch.tensor([0, 999]))
    assert loss.item() == pytest.approx(math.log(1000) + 1, abs=0.01)  # without it: 1000 ln 2 = 693


def test_layers_without_bias_are_skipped_and_none_at_all_raises() -> None:
    assert LogBias().model(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, bias=False)))[1].startswith("1 linear")
    with pytest.raises(NoEffect, match="log_bias"):
        LogBias().model(nn.Sequential(nn.Linear(3, 2, bias=False), nn.Conv2d(1, 1, 1)))
