"""Weight standardization: mean and variance of each channel, against timm's layer, and its removal."""

from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from timedrun.methods import WeightStandardization, stack


def test_the_weights_of_each_output_channel_have_mean_0_and_variance_1() -> None:
    model = stack(WeightStandardization()).model(nn.Conv2d(3, 5, 3))
    weight = model.weight.detach().double().flatten(1)  # type: ignore[operator]
    torch.testing.assert_close(weight.mean(1), torch.zeros(5).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.square().mean(1), torch.ones(5).double(), atol=1e-6, rtol=0)


def test_timms_layer_computes_the_same(torchvision: ModuleType) -> None:
    timm = pytest.importorskip("timm.layers")
    theirs = timm.StdConv2d(3, 5, 3, padding=1, eps=1e-10)
    ours = nn.Conv2d(3, 5, 3, padding=1, bias=False)
    ours.weight.data.copy_(theirs.weight)
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(stack(WeightStandardization()).model(ours)(images), theirs(images), atol=1e-5, rtol=1e-4)


def test_the_last_convolutions_can_be_left_out_and_a_plain_layer_remains() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv2d(4, 4, 1))
    model = stack(WeightStandardization(ignore_last=2)).model(network)
    assert [parametrize.is_parametrized(layer) for layer in model] == [True, False, False]  # type: ignore[arg-type]
    expected = model[0](torch.ones(1, 3, 2, 2))  # type: ignore[index, operator]
    plain = parametrize.remove_parametrizations(model[0], "weight")  # type: ignore[index]
    torch.testing.assert_close(plain(torch.ones(1, 3, 2, 2)), expected)
