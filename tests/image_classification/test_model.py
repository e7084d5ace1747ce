"""The networks: torchvision's logits and gradients, a formula, published parameter counts, seeds, first weights."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from image_classification.model import AIRBENCH, CIFAR10_PLAIN, RESNET50, ModelConfig, PlainNetwork, ResNet, build_model

RESNET18 = ModelConfig(block="basic", layers=(2, 2, 2, 2))


@pytest.mark.parametrize(("name", "config"), [("resnet18", RESNET18), ("resnet50", RESNET50)])
def test_logits_and_gradients_equal_torchvisions(torchvision, name, config):
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)(weights=None)
    ours = ResNet(config)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
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
        # airbench94: 9 weights for each pair of channels of 24, 64, 64, 256, 256, 256, 256; stem, biases, head
        (AIRBENCH, 1_967_616 + 24 * 3 * 4 + 24 + 2 * (64 + 256 + 256) + 10 * 256),
        (CIFAR10_PLAIN, 566_784 + 24 * 3 * 4 + 24 + 2 * (64 + 128 + 128) + 10 * 128),
    ],
)
def test_trained_parameters_are_as_many_as_published(config, parameters):
    with torch.device("meta"):
        model = build_model(config, seed=1)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


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
    assert ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


SMALL = replace(CIFAR10_PLAIN, widths=(24, 26, 28))


@pytest.mark.parametrize(("name", "activation"), [("gelu", functional.gelu), ("silu", functional.silu)])
def test_logits_are_those_of_the_formula(name, activation):
    network = build_model(replace(SMALL, initialisation="torch", activation=name), seed=1)
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    images = torch.randn(4, 3, 32, 32)

    def normalized(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
        return (x - mean) / (variance + 1e-12).sqrt() + weights[f"{name}.bias"].view(1, -1, 1, 1)

    x = activation(functional.conv2d(images, weights["stem.weight"], weights["stem.bias"]))
    assert x.shape[1:] == (24, 31, 31)
    for group in ("groups.0", "groups.1", "groups.2"):
        x = functional.max_pool2d(functional.conv2d(x, weights[f"{group}.conv1.weight"], padding=1), 2)
        x = activation(normalized(x, f"{group}.bn1"))
        x = functional.conv2d(x, weights[f"{group}.conv2.weight"], padding=1)
        x = activation(normalized(x, f"{group}.bn2"))
    expected = x.amax((2, 3)) @ weights["fc.weight"].T
    torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-5)


def test_it_begins_as_the_identity_with_small_logits():
    network = build_model(SMALL, seed=3)
    assert isinstance(network, PlainNetwork)
    images = torch.randn(2, 24, 8, 8)
    group = network.groups[0]
    torch.testing.assert_close(group.conv1(images), images)
    assert float(network.fc.weight.detach().std()) == pytest.approx(1 / 28)
    with pytest.raises(ValueError, match="identity is not defined for ResNet"):
        build_model(ModelConfig(block="basic", layers=(1,), widths=(8,), initialisation="identity"), seed=1)
