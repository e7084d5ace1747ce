"""Stochastic depth: rates by depth, what is dropped, and evaluation, on three libraries' residual blocks."""

import copy
from types import ModuleType

import pytest
import torch
from torch import nn

from image_classification.model import ModelConfig, build_model
from timedrun.methods import BlurPool, StochasticDepth, stack
from timedrun.methods.stochastic_depth import _Branch, keep_rates
from timedrun.training.initialisation import residual_blocks


def network(block: str = "bottleneck") -> nn.Module:
    shape = {"layers": (2, 2), "widths": (4, 8), "classes": 4}
    return build_model(ModelConfig(block=block, **shape), seed=1)  # type: ignore[arg-type]


def test_rates_grow_with_depth() -> None:
    assert keep_rates(4, 0.2, "linear") == pytest.approx([0.95, 0.9, 0.85, 0.8])
    assert keep_rates(3, 0.2, "uniform") == [0.8] * 3


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_a_sample_keeps_or_loses_its_branch_and_evaluation_scales_it(block: str) -> None:
    torch.manual_seed(0)
    plain = network(block)
    dropped = stack(StochasticDepth(rate=0.4, distribution="uniform")).model(copy.deepcopy(plain))
    (first, *_), (changed, *_) = residual_blocks(plain), residual_blocks(dropped)
    last = first.bn3 if block == "bottleneck" else first.bn2
    x = torch.randn(64, 4, 8, 8).relu()
    branches: list[torch.Tensor] = []
    last.register_forward_hook(lambda module, inputs, output: branches.append(output))  # type: ignore[union-attr]
    whole, other = first(x), changed(x)
    shortcut = x if first.downsample is None else first.downsample(x)
    kept = [torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, other, strict=True)]
    lost = [torch.allclose(a, b.relu(), atol=1e-6) for a, b in zip(other, shortcut, strict=True)]
    assert all(a != b for a, b in zip(kept, lost, strict=True)) and 25 <= sum(kept) <= 52  # 38.4 expected
    first.eval()
    changed.eval()
    first(x)
    shortcut = x if changed.downsample is None else changed.downsample(x)
    torch.testing.assert_close(changed(x), (0.6 * branches[-1] + shortcut).relu())


def test_a_skipped_block_does_no_work_and_gets_no_gradient() -> None:
    speed = stack(StochasticDepth(kind="block", rate=0.5, distribution="uniform"), seed=2)
    model = speed.model(network())
    assert speed.skips_parameters
    skipped = []
    for step in range(40):
        speed.before_step(model, step, 0.0)
        model.zero_grad()
        model(torch.randn(2, 3, 32, 32)).sum().backward()
        speed.after_step(model)
        idle = [block.conv1.weight.grad is None for block in residual_blocks(model)]  # type: ignore[union-attr]
        assert idle == [block.skipped for block in residual_blocks(model)]
        skipped += idle
    assert 55 <= sum(skipped) <= 105  # 80 of 160 expected


def test_other_libraries_blocks_and_blurred_convolutions(torchvision: ModuleType) -> None:
    model = stack(BlurPool(), StochasticDepth()).model(torchvision.models.resnet18(num_classes=4))
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 4)
    timm = pytest.importorskip("timm")
    for name in ("test_resnet", "seresnet18"):
        model = stack(BlurPool(), StochasticDepth()).model(timm.create_model(name, pretrained=False, num_classes=4))
        assert model(torch.randn(2, 3, 64, 64)).shape == (2, 4)


def test_a_compiled_model_gives_the_same_numbers() -> None:
    model = stack(StochasticDepth()).model(network()).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    model.compile(backend="eager")
    torch.testing.assert_close(model(images), expected)


def test_no_graph_is_compiled_for_a_combination_of_skipped_blocks() -> None:
    speed, graphs = stack(StochasticDepth(kind="block", rate=0.5)), list[torch.fx.GraphModule]()
    model = speed.model(network()).train()
    model.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward)  # type: ignore[func-returns-value]
    compiled = []
    for step in range(6):
        speed.before_step(model, step, step / 6)
        model(torch.randn(2, 3, 32, 32))
        compiled.append(len(graphs))
    assert len(set(compiled)) == 1, compiled


def test_the_rate_holds_in_low_precision() -> None:
    torch.manual_seed(0)
    branch = _Branch(1 - 0.00625, "sample")  # the first of 16 blocks at 0.1; bf16 draws of 1/256 gave 0.0078
    kept = branch(nn.Identity(), None, torch.ones(1_000_000, 1, dtype=torch.bfloat16))
    assert kept.dtype == torch.bfloat16 and 0.0060 < float((kept == 0).float().mean()) < 0.0065  # 3 deviations
