"""Weight gradients by a matrix product: the same numbers as torch's, where images are small."""

import pytest
import torch
from torch import Tensor, nn

from image_classification import convolution
from image_classification.convolution import UnfoldedConv2d, unfold_weight_gradients


def gradients(layer: nn.Conv2d, images: Tensor) -> tuple[Tensor, Tensor]:
    images = images.clone().requires_grad_()
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(images)
    (out.float() * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    assert images.grad is not None and layer.weight.grad is not None
    return images.grad, layer.weight.grad


@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("shape", [(17, 16, 3, 3), (17, 16, 2, 4), (17, 16, 1, 1), (0, 16, 3, 3), (16, 3, 3)])
def test_gradients_equal_those_of_torch(padding, order, shape, monkeypatch):
    monkeypatch.setattr(convolution, "CHUNK_BYTES", 5_000)  # several chunks, the last one smaller
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 24, 3, padding=padding, bias=False)
    images = torch.randn(shape).clone(memory_format=order if len(shape) == 4 else torch.contiguous_format)
    expected = gradients(layer, images)
    assert unfold_weight_gradients(layer) == 1
    for gradient, wanted in zip(gradients(layer, images), expected, strict=True):
        torch.testing.assert_close(
            gradient, wanted, rtol=2e-2, atol=2e-2 * float(wanted.abs().sum() and wanted.abs().max())
        )


def test_torch_computes_large_images_and_other_formats(monkeypatch):
    def refuse(images: Tensor) -> Tensor:
        raise AssertionError("unfolded")

    monkeypatch.setattr(convolution, "unfold", refuse)
    layer = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    unfold_weight_gradients(layer)
    gradients(layer, torch.randn(2, 16, 9, 9))
    layer(torch.randn(2, 16, 3, 3)).sum().backward()  # float32
    with pytest.raises(AssertionError, match="unfolded"):
        gradients(layer, torch.randn(2, 16, 3, 3))


def test_only_convolutions_that_keep_the_size_are_replaced():
    kept = [nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Conv2d(4, 8, 3, padding="same", bias=False)]
    others = [
        nn.Conv2d(4, 4, 1, bias=False),
        nn.Conv2d(4, 4, 5, padding=2, bias=False),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.Conv2d(4, 4, 2, padding="same", bias=False),
        nn.Conv2d(4, 4, 3, 2, padding=1, bias=False),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", bias=False),
    ]
    assert unfold_weight_gradients(nn.Sequential(*kept, *others)) == len(kept)
    assert [type(layer) for layer in kept] == [UnfoldedConv2d] * len(kept)
    assert {type(layer) for layer in others} == {nn.Conv2d}
