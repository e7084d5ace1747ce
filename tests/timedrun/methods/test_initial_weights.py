"""Log bias and patch whitening: what is set before the first step, and where."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from image_classification.configs import cifar10_methods
from timedrun.methods import LogBias, NoEffect, Whitening, linear_log_constant_bias, stack, whiten, whitening_weights
from timedrun.methods.layer_freezing import LayerFreezing
from timedrun.methods.training.optim import Muon
from timedrun.runner.config import load, plain


class HeadFirst(nn.Module):
    """A network that registers its head before its body, which ends in `width` units."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 10)
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("width", [32, 10])
def test_a_head_registered_before_its_body_is_set_by_the_first_batch(width):
    torch.manual_seed(0)
    speed = stack(LogBias())
    model = speed.model(HeadFirst(width))
    with pytest.raises(ValueError, match=r"body\.2, .* may be hidden; nothing was changed"):
        linear_log_constant_bias(model)
    warm = speed.state_dict(), copy.deepcopy(model.state_dict())
    for _ in range(2):  # a warm-up, after which the state is restored, and the run
        speed.load_state_dict(warm[0])
        model.load_state_dict(warm[1])
        speed.before_step(model, 0, 0.0)
        speed.batch(torch.randn(8, 64), torch.zeros(8).long(), 10)
        assert torch.allclose(model.head.bias, torch.tensor(-math.log(10)))
        assert model(torch.randn(50, 64)).std(0).max() > 0.01
    speed.after_step(model)
    speed.verify()
    assert speed.report == ["log_bias: bias of head set to -ln(10)"]


@pytest.mark.parametrize("model", [HeadFirst(32), nn.Sequential(nn.Linear(64, 1000))])
def test_classes_that_no_layer_has_are_refused_and_a_dict_has_none(model):
    speed = stack(LogBias())
    speed.before_step(speed.model(model), 0, 0.0)
    with pytest.raises(ValueError, match="log_bias found no classifier of 7 classes"):
        speed.batch(torch.randn(8, 64), torch.zeros(8).long(), 7)
    if isinstance(model, nn.Sequential):
        assert "pixel_values" in speed.batch_dict({"pixel_values": torch.zeros(3, 3, 8, 8)})


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("resnet50", "fc"),
        ("mobilenet_v3_large", "classifier.3"),
        ("vit_b_16", "heads.head"),
        *((f"timm {name}", "") for name in ("convnext_tiny", "vit_tiny_patch16_224")),
    ],
)
def test_models_of_torchvision_and_timm_have_one_classifier(torchvision, name, classifier):
    library, _, name = name.rpartition(" ")
    timm = pytest.importorskip("timm") if library else None
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False) if timm else getattr(torchvision.models, name)()
    if timm:  # which names its own
        (classifier,) = (path for path, layer in model.named_modules() if layer is model.get_classifier())
    assert LogBias().model(model)[1] == f"bias of {classifier} set to -ln(1000)"


@pytest.mark.parametrize(
    ("name", "heads"), [("deit_tiny_distilled_patch16_224", "head, head_dist"), ("volo_d1_224", "aux_head, head")]
)
def test_several_classifiers_are_refused_by_name(torchvision, name, heads):
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    with pytest.raises(ValueError, match=f"has 2: {heads}; nothing was changed"):
        LogBias().model(model)


def correlated_images(count: int = 40, size: int = 16) -> torch.Tensor:
    """Smooth colour images: neighbouring pixels and channels are strongly correlated."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 3, size + 4, size + 4, generator=generator)
    mixing = torch.tensor([[1.0, 0.8, 0.5], [0.2, 1.0, 0.3], [0.1, 0.4, 1.0]])
    return F.avg_pool2d(torch.einsum("dc,nchw->ndhw", mixing, noise), 5, 1)


def test_outputs_have_the_identity_as_second_moment_twice_and_eps_limits_the_gain():
    images = correlated_images()
    weights = whitening_weights(images, 2, eps=0.0)
    assert weights.shape == (24, 3, 2, 2)
    outputs = F.conv2d(images, weights[:12]).transpose(0, 1).reshape(12, -1)
    raw = F.unfold(images, 2).transpose(0, 1).reshape(12, -1)
    assert not torch.allclose(raw @ raw.T / raw.shape[1], torch.eye(12), atol=0.3)
    torch.testing.assert_close(outputs @ outputs.T / outputs.shape[1], torch.eye(12), atol=2e-3, rtol=0)
    weights = whitening_weights(correlated_images(), 2, eps=5e-4)
    assert torch.equal(weights[12:], -weights[:12])
    norms = weights[:12].flatten(1).norm(dim=1)
    assert (norms.diff() > 0).all()  # largest eigenvalue first
    assert norms.max() <= 5e-4**-0.5


def test_shapes_that_do_not_fit_are_refused_unchanged():
    layer = nn.Conv2d(3, 16, 2)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match="set 24 output channels"):
        whiten(layer, correlated_images())
    assert torch.equal(layer.weight, before) and layer.weight.requires_grad
    with pytest.raises(ValueError, match="at least 12 patches"):
        whitening_weights(torch.randn(1, 3, 3, 3), 2)
    with pytest.raises(ValueError, match=r"registered first, Conv2d\(24, 48"):
        whiten(nn.Conv2d(24, 48, 1), correlated_images())
    with pytest.raises(ValueError, match="pixels that are no finite numbers"):
        whitening_weights(torch.randn(9, 3, 5, 5).index_fill(0, torch.tensor(3), torch.nan))
    layer = nn.Conv2d(3, 24, 2)
    whiten(layer, correlated_images())
    assert torch.equal(layer.weight, whitening_weights(correlated_images(), 2, 5e-4)) and not layer.weight.requires_grad


def test_a_run_whitens_with_its_first_batch_and_never_again():
    """Also after a warm-up on noise, after which its state is restored."""
    speed, images = stack(Whitening()), correlated_images()
    model = speed.model(nn.Sequential(nn.Conv2d(3, 24, 2), nn.ReLU(), nn.Conv2d(24, 24, 2)))
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True, True, True]
    with pytest.raises(NoEffect, match="whitening"):
        speed.verify()
    before, noise = speed.state_dict(), torch.randn(40, 3, 16, 16)
    speed.before_step(model, 0, 0.0)
    speed.batch(noise, torch.zeros(40), 2)
    torch.testing.assert_close(model[0].weight, whitening_weights(noise))
    speed.load_state_dict(before)
    for step, batch in enumerate([images[:30], images[10:]]):
        speed.before_step(model, step, 0.0)
        assert speed.batch(batch, torch.zeros(len(batch)), 2)[0] is batch
        speed.after_step(model)
        torch.testing.assert_close(model[0].weight, whitening_weights(images[:30]))
    assert speed.report == ["whitening: first convolution whitens the patches of 30 images"]


def test_all_ranks_take_rank_0s_weights(monkeypatch):
    of_rank_0 = torch.full((24, 3, 2, 2), 7.0)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, src: tensor.copy_(of_rank_0))
    speed = stack(Whitening())
    model = speed.model(nn.Sequential(nn.Conv2d(3, 24, 2)))
    speed.before_step(model, 0, 0.0)
    speed.batch(correlated_images(), torch.zeros(40), 2)
    assert torch.equal(model[0].weight, of_rank_0)


@pytest.mark.parametrize(
    "kind", [partial(torch.optim.SGD, momentum=0.5), torch.optim.AdamW, torch.optim.RMSprop, partial(Muon, lr=0.1)]
)
def test_the_bias_of_the_whitening_layer_trains_less_and_less_until_its_end(kind):
    """By gradients, or by the steps of optimizers that divide by the size of gradients."""
    moves, seen, gradients, waiting = [], [], torch.randn(5, 24), len(_global_optimizer_pre_hooks)
    for end in (1.0, 0.5):
        speed = stack(Whitening(bias_end=end))
        model = speed.model(nn.Conv2d(3, 24, 2))
        optimizer = kind([{"params": [model.bias], "rule": "adamw", "betas": (0.9, 0.99), "eps": 1e-8}])
        for step, gradient in enumerate(gradients):
            speed.before_step(model, step, step / 8)
            speed.batch(correlated_images(), torch.zeros(40), 2)
            model.bias.grad = gradient.clone() if model.bias.requires_grad else None
            before = model.bias.detach().clone()
            speed.gradients(model)
            seen.append(model.bias.grad is not None and (model.bias.grad.norm() / gradient.norm()).item())
            torch.optim.SGD([model.weight], 0.1).step()  # another's
            optimizer.step()
            speed.after_step(model)
            moves.append(model.bias.detach() - before)
    assert seen == [1] * 5 + [pytest.approx(share) for share in (1, 0.75, 0.5, 0.25)] + [False]
    assert not moves[9].any() and len(_global_optimizer_pre_hooks) == waiting
    expected = torch.stack(moves[:4]) * torch.tensor([1, 0.75, 0.5, 0.25])[:, None]
    if "momentum" not in getattr(kind, "keywords", {}):
        torch.testing.assert_close(torch.stack(moves[5:9]), expected, rtol=1e-3, atol=1e-5)


def test_the_backward_pass_ends_behind_the_bias_from_its_end_on_and_a_resumed_run_freezes_the_same_layers():
    """Also where a warm-up was at the end before, and a layer is frozen by other methods."""
    given, images, trained = (Whitening(bias_end=0.5), LayerFreezing(start=0.6)), correlated_images(), []
    for places in ([0.9, 0.0, 0.4, 0.5, 0.9], [0.9]):
        speed = stack(*given)
        model = speed.model(nn.Sequential(nn.Conv2d(3, 24, 2), *(nn.Conv2d(24, 24, 1) for _ in range(3))))
        model[0].bias.grad = torch.ones(24)
        for progress in places:
            speed.before_step(model, 0, progress)
            speed.batch(images, torch.zeros(40), 2)
            trained.append([parameter.requires_grad for parameter in model.parameters() if parameter.dim() == 1])
            assert model[0](images).requires_grad is trained[-1][0]
        assert model[0].bias.grad is None
    late = [False, False, True, True]
    assert trained == [late, [True] * 4, [True] * 4, [False, True, True, True], late, late]
    assert [Whitening(bias_end=end).skips_parameters for end in (0.0, 0.5, 1.0)] == [False, True, False]


def test_a_frozen_bias_ends_the_backward_pass_and_configs_from_before_it_keep_their_digest():
    model = stack(Whitening(bias_end=0.0)).model(nn.Sequential(nn.Conv2d(3, 24, 2), nn.Conv2d(24, 2, 2)))
    assert not model[0](torch.randn(4, 3, 8, 8)).requires_grad and model[1].weight.requires_grad
    assert "bias_end" not in plain(cifar10_methods())["methods"][0]
    config = replace(cifar10_methods(), methods=(Whitening(bias_end=0.5),))
    assert load(type(config), plain(config)) == config
