"""Squeeze-and-excitation: the formula, the layers it follows, and layers that other methods replaced."""

from types import ModuleType

import pytest
import torch
from torch import nn

from timedrun.methods import BlurPool, SqueezeExcite, stack
from timedrun.methods.squeeze_excite import SqueezeExcitation


def test_channels_are_scaled_by_the_formula(torchvision: ModuleType) -> None:
    torch.manual_seed(0)
    layer, x = SqueezeExcitation(3, 2), torch.randn(4, 3, 5, 6)
    w1, w2 = layer.reduce.weight.double(), layer.expand.weight.double()
    for sample, out in zip(x, layer(x), strict=True):
        gates = 1 / (1 + (-(w2 @ (w1 @ sample.double().mean(dim=(1, 2))).clamp(min=0))).exp())
        torch.testing.assert_close(out, (sample * gates[:, None, None]).float())
    timm = pytest.importorskip("timm.layers")
    theirs = timm.SEModule(3, rd_channels=2, bias=False)
    theirs.fc1.weight.data.copy_(layer.reduce.weight[:, :, None, None])
    theirs.fc2.weight.data.copy_(layer.expand.weight[:, :, None, None])
    torch.testing.assert_close(layer(x), theirs(x))


def test_wide_convolutions_are_followed_by_it_whoever_replaced_them() -> None:
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3, 2), nn.Conv2d(32, 16, 1, bias=False))

    method = SqueezeExcite(min_channels=16, latent_channels=0.5)
    torch.manual_seed(0)
    model = stack(BlurPool(), method).model(network())
    names = [name for name, _ in model.named_parameters() if "squeeze" in name]
    assert names == [f"{layer}.squeeze_excite.{part}.weight" for layer in (1, 2) for part in ("reduce", "expand")]
    assert model[1].squeeze_excite.reduce.weight.shape == (16, 32)  # type: ignore[union-attr]
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        for layer in (1, 2):
            model[layer].squeeze_excite.expand.weight.zero_()  # type: ignore[union-attr, operator]  # gates of 0.5
    plain = stack(BlurPool()).model(network())
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        between = plain[1](plain[0](images))
        torch.testing.assert_close(model(images), 0.5 * plain[2](0.5 * between))
    other = stack(method, BlurPool()).model(network())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(images), model(images))
