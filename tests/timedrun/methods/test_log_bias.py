"""Log bias: the value, and where it is put."""

import math
from types import ModuleType

import pytest
import torch
from torch import nn

from timedrun.methods import LogBias, NoEffect, linear_log_constant_bias
from timedrun.training.loss import binary_cross_entropy


def test_a_thousand_outputs_start_at_minus_6_9078() -> None:
    layer = nn.Linear(4, 1000)
    weight = layer.weight.detach().clone()
    assert linear_log_constant_bias(nn.Sequential(layer)) is not None
    assert torch.allclose(layer.bias, torch.tensor(-6.9078), atol=5e-5)
    assert torch.equal(layer.weight, weight)


def test_binary_cross_entropy_starts_near_its_floor() -> None:
    layer = nn.Linear(4, 1000)
    nn.init.zeros_(layer.weight)
    LogBias().model(layer)
    loss = binary_cross_entropy(layer(torch.zeros(2, 4)), torch.tensor([0, 999]))
    assert loss.item() == pytest.approx(math.log(1000) + 1, abs=0.01)  # without it: 1000 ln 2 = 693


def test_only_the_last_layer_is_set() -> None:
    hidden, last = nn.Linear(2, 3), nn.Linear(3, 2)
    before = hidden.bias.detach().clone()
    words = LogBias().model(nn.Sequential(hidden, nn.ReLU(), last, nn.Dropout()))[1]
    assert words == "bias of 2 set to -ln(2)"
    assert torch.equal(hidden.bias, before)
    assert torch.allclose(last.bias, torch.tensor(-math.log(2)))


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("resnet50", "fc"),
        ("vgg16", "classifier.6"),
        ("alexnet", "classifier.6"),
        ("mobilenet_v3_large", "classifier.3"),
        ("densenet121", "classifier"),
        ("convnext_tiny", "classifier.2"),
        ("vit_b_16", "heads.head"),
    ],
)
def test_torchvisions_models_have_one_classifier(torchvision: ModuleType, name: str, classifier: str) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    assert LogBias().model(model)[1] == f"bias of {classifier} set to -ln(1000)"


def test_alexnet_keeps_outputs_and_gradients_that_depend_on_the_image(torchvision: ModuleType) -> None:
    torch.manual_seed(0)
    model = LogBias().model(torchvision.models.alexnet(num_classes=10))[0].eval()
    outputs = model(torch.randn(2, 3, 64, 64))
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4  # zero with every bias at -ln(outputs)
    outputs.sum().backward()
    assert model.features[0].weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    "name", ["resnet50", "vgg11", "convnext_tiny", "vit_tiny_patch16_224", "mobilenetv3_small_100"]
)
def test_timms_models_name_their_own_classifier(torchvision: ModuleType, name: str) -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    (path,) = (path for path, layer in model.named_modules() if layer is model.get_classifier())
    assert LogBias().model(model)[1] == f"bias of {path} set to -ln(1000)"


@pytest.mark.parametrize(
    ("name", "heads"), [("deit_tiny_distilled_patch16_224", "head, head_dist"), ("volo_d1_224", "aux_head, head")]
)
def test_several_classifiers_are_refused_by_name(torchvision: ModuleType, name: str, heads: str) -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    with pytest.raises(ValueError, match=f"has 2: {heads}; nothing was changed"):
        LogBias().model(model)


def test_hidden_layers_as_wide_as_the_output_are_no_classifiers() -> None:
    assert LogBias().model(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)))[1] == "bias of 2 set to -ln(3)"


@pytest.mark.parametrize("last", [nn.Linear(3, 2, bias=False), nn.Conv2d(3, 1, 1), nn.LayerNorm(3)])
def test_a_model_that_does_not_end_in_a_biased_linear_layer_is_refused_unchanged(last: nn.Module) -> None:
    hidden = nn.Linear(2, 3)
    before = hidden.bias.detach().clone()
    with pytest.raises(NoEffect, match="log_bias"):
        LogBias().model(nn.Sequential(hidden, last))
    assert torch.equal(hidden.bias, before)
