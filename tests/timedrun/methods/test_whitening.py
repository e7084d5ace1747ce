"""Patch whitening: outputs over the patches it was made from are uncorrelated, with unit second moment."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from timedrun.methods import whiten, whitening_weights


def correlated_images(count: int = 40, size: int = 16) -> torch.Tensor:
    """Smooth colour images: neighbouring pixels and channels are strongly correlated."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 3, size + 4, size + 4, generator=generator)
    mixing = torch.tensor([[1.0, 0.8, 0.5], [0.2, 1.0, 0.3], [0.1, 0.4, 1.0]])
    return F.avg_pool2d(torch.einsum("dc,nchw->ndhw", mixing, noise), 5, 1)


def test_outputs_have_the_identity_as_second_moment() -> None:
    images = correlated_images()
    weights = whitening_weights(images, 2, eps=0.0)
    assert weights.shape == (24, 3, 2, 2)
    outputs = F.conv2d(images, weights[:12]).transpose(0, 1).reshape(12, -1)
    raw = F.unfold(images, 2).transpose(0, 1).reshape(12, -1)
    assert not torch.allclose(raw @ raw.T / raw.shape[1], torch.eye(12), atol=0.3)
    torch.testing.assert_close(outputs @ outputs.T / outputs.shape[1], torch.eye(12), atol=2e-3, rtol=0)


def test_second_half_is_the_negative_and_eps_limits_the_gain() -> None:
    images = correlated_images()
    weights = whitening_weights(images, 2, eps=5e-4)
    assert torch.equal(weights[12:], -weights[:12])
    norms = weights[:12].flatten(1).norm(dim=1)
    assert (norms.diff() > 0).all()  # largest eigenvalue first
    assert norms.max() <= 5e-4**-0.5


def test_the_layer_is_filled_and_frozen_but_for_its_bias() -> None:
    images = correlated_images()
    layer = nn.Conv2d(3, 24, 2)
    whiten(layer, images)
    assert torch.equal(layer.weight, whitening_weights(images, 2, 5e-4))
    assert not layer.weight.requires_grad
    assert layer.bias is not None and layer.bias.requires_grad


def test_shapes_that_do_not_fit_are_refused_unchanged() -> None:
    layer = nn.Conv2d(3, 16, 2)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match="set 24 output channels"):
        whiten(layer, correlated_images())
    assert torch.equal(layer.weight, before) and layer.weight.requires_grad
    with pytest.raises(ValueError, match="at least 12 patches"):
        whitening_weights(torch.randn(1, 3, 3, 3), 2)
