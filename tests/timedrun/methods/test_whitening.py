"""Patch whitening: outputs over the patches it was made from are uncorrelated, with unit second moment."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from timedrun.methods import NoEffect, Whitening, stack, whiten, whitening_weights


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
    weights = whitening_weights(correlated_images(), 2, eps=5e-4)
    assert torch.equal(weights[12:], -weights[:12])
    norms = weights[:12].flatten(1).norm(dim=1)
    assert (norms.diff() > 0).all()  # largest eigenvalue first
    assert norms.max() <= 5e-4**-0.5


def test_shapes_that_do_not_fit_are_refused_unchanged() -> None:
    layer = nn.Conv2d(3, 16, 2)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match="set 24 output channels"):
        whiten(layer, correlated_images())
    assert torch.equal(layer.weight, before) and layer.weight.requires_grad
    with pytest.raises(ValueError, match="at least 12 patches"):
        whitening_weights(torch.randn(1, 3, 3, 3), 2)
    layer = nn.Conv2d(3, 24, 2)
    whiten(layer, correlated_images())
    assert torch.equal(layer.weight, whitening_weights(correlated_images(), 2, 5e-4)) and not layer.weight.requires_grad


def test_a_run_whitens_with_its_first_batch_and_never_again() -> None:
    speed, images = stack(Whitening()), correlated_images()
    model = speed.model(nn.Sequential(nn.Conv2d(3, 24, 2), nn.ReLU(), nn.Conv2d(24, 24, 2)))
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True, True, True]
    with pytest.raises(NoEffect, match="whitening"):
        speed.verify()
    for step, batch in enumerate([images[:30], images[10:]]):
        speed.before_step(model, step, 0.0)
        assert speed.batch(batch, torch.zeros(len(batch)), 2)[0] is batch
        speed.after_step(model)
        torch.testing.assert_close(model[0].weight, whitening_weights(images[:30]))
    assert speed.report == ["whitening: first convolution whitens the patches of 30 images"]


def test_state_restored_after_a_warm_up_on_noise_has_the_first_batch_whiten() -> None:
    speed, images = stack(Whitening()), correlated_images()
    model = speed.model(nn.Sequential(nn.Conv2d(3, 24, 2)))
    before = speed.state_dict()
    for restored, batch in ((False, torch.randn(40, 3, 16, 16)), (True, images)):
        if restored:
            speed.load_state_dict(before)
        speed.before_step(model, 0, 0.0)
        speed.batch(batch, torch.zeros(40), 2)
        torch.testing.assert_close(model[0].weight, whitening_weights(batch))


def test_all_ranks_take_rank_0s_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    of_rank_0 = torch.full((24, 3, 2, 2), 7.0)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, src: tensor.copy_(of_rank_0))
    speed = stack(Whitening())
    model = speed.model(nn.Sequential(nn.Conv2d(3, 24, 2)))
    speed.before_step(model, 0, 0.0)
    speed.batch(correlated_images(), torch.zeros(40), 2)
    assert torch.equal(model[0].weight, of_rank_0)
