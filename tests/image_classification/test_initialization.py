"""Initialisers: distribution, reach, and that a seed decides them."""

import pytest
import torch
from torch import nn

from image_classification.initialization import batch_norm_uniform, kaiming_normal


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(64, 128, 3), nn.BatchNorm2d(4096), nn.GroupNorm(2, 4), nn.Linear(400, 300))


def test_weights_are_normal_with_variance_two_over_fan_in() -> None:
    model = network()
    bias = model[3].bias.detach().clone()
    assert kaiming_normal(model, torch.Generator().manual_seed(0)) == 2
    for layer, fan_in in ((model[0], 64 * 9), (model[3], 400)):
        assert layer.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.02)
        assert layer.weight.mean().item() == pytest.approx(0, abs=1e-3)
        assert layer.weight.abs().max() > 3.5 * layer.weight.std()  # a uniform of that variance ends at 1.73
    assert torch.equal(model[3].bias, bias)


def test_batch_norm_scales_are_uniform_and_shifts_zero() -> None:
    model = network()
    nn.init.ones_(model[1].bias)
    assert batch_norm_uniform(model, torch.Generator().manual_seed(0)) == 1
    scale = model[1].weight
    assert 0 <= scale.min() < 0.01 and 0.99 < scale.max() < 1
    assert scale.mean().item() == pytest.approx(0.5, abs=0.02)
    assert not model[1].bias.any()
    assert (model[2].weight == 1).all()  # a group norm is no batch norm


def test_a_seed_decides_the_values() -> None:
    first, second, third = network(), network(), network()
    for model, seed in ((first, 1), (second, 1), (third, 2)):
        generator = torch.Generator().manual_seed(seed)
        kaiming_normal(model, generator)
        batch_norm_uniform(model, generator)
    assert torch.equal(first[3].weight, second[3].weight) and torch.equal(first[1].weight, second[1].weight)
    assert not torch.equal(first[3].weight, third[3].weight)
