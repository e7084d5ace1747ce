"""Channels-last: memory order of weights and inputs, and unchanged arithmetic."""

import copy

import torch
from torch import nn

from timedrun.methods import BlurPool, ChannelsLast, stack
from timedrun.methods.method import Position


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3, stride=2), nn.Flatten(), nn.Linear(4 * 9, 2)
    )


def test_weights_and_inputs_are_converted_and_outputs_stay_the_same() -> None:
    plain = network()
    speed = stack(ChannelsLast())
    model = speed.model(copy.deepcopy(plain))
    images = torch.randn(2, 3, 9, 9)
    speed.enter(0, 0.0)
    inputs, targets = speed.batch(images, torch.zeros(2), 2)
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in model.parameters() if p.dim() == 4)
    torch.testing.assert_close(model(inputs), plain(images), atol=1e-5, rtol=1e-5)
    speed.verify()
    assert speed.report == ["channels_last: 2 convolution weights"]


def test_it_goes_with_blurpool_in_either_order() -> None:
    for methods in ((ChannelsLast(), BlurPool()), (BlurPool(), ChannelsLast())):
        model = stack(*methods).model(network())
        output = model[:3](torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last))
        assert output.is_contiguous(memory_format=torch.channels_last)


def test_inputs_of_other_dimensions_pass() -> None:
    inputs = torch.randn(2, 5)
    assert ChannelsLast().hooks().batch(inputs, inputs, Position(0, 0.0), 2)[0] is inputs
