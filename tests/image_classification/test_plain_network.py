"""The plain network: its formula, its size and its first weights."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from image_classification.model import AIRBENCH, CIFAR10_PLAIN, ModelConfig, PlainNetwork, build_model

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


@pytest.mark.parametrize(("config", "convolutions"), [(AIRBENCH, 1_967_616), (CIFAR10_PLAIN, 566_784)])
def test_the_number_of_weights_is_that_of_airbench94(config, convolutions):
    """Nine weights for each pair of channels: 24 -> 64 -> 64 -> 256 -> 256 -> 256 -> 256 with airbench's widths."""
    network = build_model(config, seed=1)
    stem, head = 24 * 3 * 4 + 24, 10 * config.widths[-1]
    biases = 2 * sum(config.widths)
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    assert trained == stem + convolutions + biases + head


def test_it_begins_as_the_identity_with_small_logits():
    network = build_model(SMALL, seed=3)
    assert isinstance(network, PlainNetwork)
    images = torch.randn(2, 24, 8, 8)
    group = network.groups[0]
    torch.testing.assert_close(group.conv1(images), images)
    assert float(network.fc.weight.detach().std()) == pytest.approx(1 / 28)
    with pytest.raises(ValueError, match="identity is not defined for ResNet"):
        build_model(ModelConfig(block="basic", layers=(1,), widths=(8,), initialisation="identity"), seed=1)
