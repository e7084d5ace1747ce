"""The networks: torchvision's logits and gradients, published parameter counts, seeds, initializers."""

from dataclasses import replace

import pytest
import torch

from image_classification.model import RESNET50, ModelConfig, ResNet, build_model
from timedrun.training.initialisation import initialize

RESNET18 = ModelConfig(block="basic", layers=(2, 2, 2, 2))


@pytest.mark.parametrize(("name", "config"), [("resnet18", RESNET18), ("resnet50", RESNET50)])
def test_logits_and_gradients_equal_torchvisions(torchvision, name, config):
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)(weights=None)
    ours = ResNet(config)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 96, 96)
    for model in (theirs, ours):
        model.train()
        model(images).square().mean().backward()
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=0)
    parameters = dict(ours.named_parameters())
    assert list(parameters) == [name for name, _ in theirs.named_parameters()]
    for their_name, parameter in theirs.named_parameters():
        torch.testing.assert_close(parameters[their_name].grad, parameter.grad, rtol=0, atol=0)
    assert ours.state_dict().keys() == theirs.state_dict().keys()


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (RESNET18, 11_689_512),  # torchvision's published counts
        (RESNET50, 25_557_032),
        (replace(RESNET50, layers=(3, 4, 23, 3)), 44_549_160),  # ResNet-101
        # ResNet-20 of He et al. 2015, table 6 (0.27 M), here with 1x1 shortcuts and their batch norms.
        (ModelConfig(block="basic", layers=(3, 3, 3), widths=(16, 32, 64), stem="small", classes=10), 272_474),
    ],
)
def test_parameter_counts_are_the_published_ones(config, parameters):
    with torch.device("meta"):
        model = ResNet(config)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_stages_that_do_not_agree_with_widths_and_zero_scales_without_residual_blocks_are_refused():
    with pytest.raises(ValueError, match="3 stages in layers but 4 in widths"):
        build_model(replace(RESNET18, layers=(1, 1, 1)), seed=0)
    with pytest.raises(ValueError, match="this Sequential has no residual blocks"):
        initialize(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), "torchvision_zero_residual")


def test_weights_are_normal_and_batch_norm_scales_uniform():
    model = build_model(RESNET18, seed=0)
    for layer, fan_in in ((model.get_submodule("layer4.1.conv2"), 512 * 9), (model.fc, 512)):
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        assert weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.02)
        assert weight.mean().item() == pytest.approx(0, abs=1e-3)
        assert weight.abs().max() > 3.5 * weight.std()  # a uniform of that variance ends at 1.73
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    scales = torch.cat([norm.weight.detach() for norm in norms])
    assert 0 <= scales.min() < 0.01 and 0.99 < scales.max() < 1
    assert scales.mean().item() == pytest.approx(0.5, abs=0.02)
    assert not any(norm.bias.any() for norm in norms)
    plain = build_model(replace(RESNET18, initialisation="kaiming"), seed=0)
    assert (plain.bn1.weight == 1).all() and torch.equal(plain.conv1.weight, model.conv1.weight)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("name", "config"), [("resnet18", RESNET18), ("resnet50", RESNET50)])
def test_initialisation_is_torchvisions(torchvision, name, config, zero):
    initialisation = "torchvision_zero_residual" if zero else "torchvision"
    ours = build_model(replace(config, initialisation=initialisation), seed=3).state_dict()
    torch.manual_seed(3)
    theirs = getattr(torchvision.models, name)(zero_init_residual=zero).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
