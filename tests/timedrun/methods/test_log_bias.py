"""Log bias: the value, and where it is put."""

import math
from types import ModuleType

import pytest
import torch
from torch import nn

from timedrun.methods import LogBias, linear_log_constant_bias
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


@pytest.mark.parametrize("outputs", [2, 3], ids=["a wider hidden layer", "a hidden layer as wide"])
def test_only_the_last_layer_is_set(outputs: int) -> None:
    hidden, last = nn.Linear(2, 3), nn.Linear(3, outputs)
    before = hidden.bias.detach().clone()
    words = LogBias().model(nn.Sequential(hidden, nn.ReLU(), last, nn.Dropout()))[1]
    assert words == f"bias of 2 set to -ln({outputs})"
    assert torch.equal(hidden.bias, before)
    assert torch.allclose(last.bias, torch.tensor(-math.log(outputs)))


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        ("resnet50", "fc"),
        ("vgg16", "classifier.6"),
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
