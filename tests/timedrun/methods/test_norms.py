"""Ghost batch norm, norms in autocast's type and weight standardization against torch's, timm's and float64."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from timedrun.methods import GhostBatchNorm, NoEffect, WeightStandardization, stack
from timedrun.methods.low_precision_norm import LowPrecisionGroupNorm, LowPrecisionLayerNorm


@pytest.mark.parametrize(("count", "parts"), [(8, (4, 4)), (7, (4, 3)), (3, (3,)), (9, (3, 3, 3))])
def test_parts_are_normalized_separately_and_share_the_momentum(count, parts):
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3, momentum=0.3)
    with torch.no_grad():
        plain.weight.uniform_()
    ghost = stack(GhostBatchNorm(ghost_batch=4)).model(copy.deepcopy(plain))
    images = torch.randn(count, 3, 5, 5)
    plain.momentum = 0.3 / len(parts)
    expected = torch.cat([plain(part) for part in torch.split(images, list(parts))])
    torch.testing.assert_close(ghost(images), expected)
    torch.testing.assert_close(ghost.running_mean, plain.running_mean)
    torch.testing.assert_close(ghost.running_var, plain.running_var)
    assert ghost.num_batches_tracked == 1
    torch.testing.assert_close(ghost.eval()(images), plain.eval()(images))


@pytest.mark.parametrize(("samples", "converted"), [(4, False), (8, True)])
def test_a_norm_that_divided_no_batch_or_was_converted_has_no_effect(samples, converted):
    speed = stack(GhostBatchNorm(ghost_batch=4))
    model = speed.model(nn.Sequential(nn.BatchNorm2d(3)))
    speed.before_step(model, 0, 0.0)
    if not converted:
        model(torch.randn(samples, 3, 5, 5))
    speed.after_step(nn.SyncBatchNorm.convert_sync_batchnorm(model) if converted else model)
    with pytest.raises(NoEffect, match="nothing in this run: ghost_batch_norm; .* batches above ghost_batch"):
        speed.verify()


@pytest.mark.parametrize(
    ("layer", "shape", "parts"),
    [
        (nn.BatchNorm1d(2), (6, 2), [3, 3]),
        (nn.BatchNorm3d(2), (6, 2, 3, 3, 3), [3, 3]),
        (nn.BatchNorm1d(2), (10, 2), [3, 3, 4]),  # a last part of one value a channel joins the one before
        (nn.BatchNorm1d(2), (0, 2), [0]),
    ],
)
def test_other_dimensions_and_parts(layer, shape, parts):
    inputs, plain = torch.randn(shape), copy.deepcopy(layer)
    expected = torch.cat([plain(part) for part in inputs.split(parts)])
    torch.testing.assert_close(stack(GhostBatchNorm(ghost_batch=3)).model(layer)(inputs), expected)


CASES: list[Any] = [
    (LowPrecisionLayerNorm(), partial(nn.LayerNorm, 8), (28_672, 8)),
    (LowPrecisionGroupNorm(), partial(nn.GroupNorm, 2, 8), (256, 8, 14, 8)),
]


@pytest.mark.parametrize(("method", "make", "shape"), CASES)
def test_output_and_gradients_are_right_to_the_precision_of_the_type(method, make, shape):
    torch.manual_seed(0)
    layer, exact = make(), make().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.rand(8) + 0.5)
    exact.load_state_dict(layer.state_dict())
    speed, plain = stack(method), copy.deepcopy(layer)
    model = speed.model(nn.Sequential(layer))
    inputs, weights = torch.randn(shape), torch.rand(shape)
    speed.before_step(model, 0, 0.0)
    assert torch.equal(model(inputs), plain(inputs))  # without autocast it is the layer
    speed.after_step(model)
    with pytest.raises(NoEffect, match=method.name):
        speed.verify()
    speed.before_step(model, 1, 0.0)
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


def test_weights_of_a_channel_have_mean_0_and_variance_1_but_in_the_last_convolutions_and_a_plain_layer_remains():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv2d(4, 4, 1))
    model = stack(WeightStandardization(ignore_last=2)).model(network)
    assert [parametrize.is_parametrized(layer) for layer in model] == [True, False, False]
    weight, expected = model[0].weight.detach().double().flatten(1), model[0](torch.ones(1, 3, 2, 2))
    torch.testing.assert_close(weight.mean(1), torch.zeros(4).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.square().mean(1), torch.ones(4).double(), atol=1e-6, rtol=0)
    plain = parametrize.remove_parametrizations(model[0], "weight")
    torch.testing.assert_close(plain(torch.ones(1, 3, 2, 2)), expected)
