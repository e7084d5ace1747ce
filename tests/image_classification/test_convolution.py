"""Small images side by side in one convolution: the same numbers as torch's."""

import pytest
import torch
from torch import Tensor, nn

from image_classification import convolution
from image_classification.convolution import SideBySideConv2d, convolve_side_by_side


def computed(layer: nn.Conv2d, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    images = images.clone().requires_grad_()
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(images)
    (out.float() * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    assert images.grad is not None and layer.weight.grad is not None
    return out.detach(), images.grad, layer.weight.grad


@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("shape", [(17, 16, 3, 3), (17, 16, 2, 4), (17, 16, 1, 1), (0, 16, 3, 3), (16, 3, 3)])
def test_outputs_and_gradients_equal_those_of_torch(padding, order, shape):
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 24, 3, padding=padding, bias=False)
    images = torch.randn(shape).clone(memory_format=order if len(shape) == 4 else torch.contiguous_format)
    expected = computed(layer, images)
    assert convolve_side_by_side(layer) == 1
    for number, wanted in zip(computed(layer, images), expected, strict=True):
        torch.testing.assert_close(number, wanted, rtol=2e-2, atol=2e-2 * max(wanted.abs().flatten(), default=0))


def test_a_frozen_layer_passes_the_gradient_on_and_a_first_one_computes_its_own_alone():
    layer, images = nn.Conv2d(16, 24, 3, padding=1, bias=False), torch.randn(17, 16, 3, 3)
    convolve_side_by_side(layer)
    _, of_images, of_weight = computed(layer, images)
    for learned, expected in ((images.clone().requires_grad_(), of_images), (layer.weight, of_weight)):
        layer.requires_grad_(learned is layer.weight)
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(learned if learned is not layer.weight else images)
        slopes = torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype)
        assert torch.equal(torch.autograd.grad(out, learned, slopes)[0], expected)


def test_torch_computes_large_images_and_other_formats(monkeypatch):
    def refuse(images: Tensor, count: int) -> Tensor:
        raise AssertionError("side by side")

    monkeypatch.setattr(convolution, "side_by_side", refuse)
    layer = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    convolve_side_by_side(layer)
    computed(layer, torch.randn(2, 16, 9, 9))
    layer(torch.randn(2, 16, 3, 3)).sum().backward()  # float32
    with pytest.raises(AssertionError, match="side by side"):
        computed(layer, torch.randn(2, 16, 3, 3))


def test_only_convolutions_that_keep_the_size_are_replaced():
    kept = [nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 8, 3, padding="same", bias=False)]
    plain = {"kernel_size": 3, "padding": 1, "bias": False}
    sizes = [{"kernel_size": 1, "padding": 0}, {"kernel_size": 5, "padding": 2}, {"kernel_size": 2, "padding": "same"}]
    places = [{"padding": 0}, {"stride": 2}, {"padding": 2, "dilation": 2}, {"padding_mode": "reflect"}]
    others = [nn.Conv2d(4, 4, **(plain | change)) for change in (*sizes, *places, {"bias": True}, {"groups": 2})]
    assert convolve_side_by_side(nn.Sequential(*kept, *others)) == len(kept)
    assert [type(layer) for layer in kept] == [SideBySideConv2d] * len(kept)
    assert {type(layer) for layer in others} == {nn.Conv2d}
