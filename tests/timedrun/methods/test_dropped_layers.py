"""Gyro dropout, stochastic depth and layer freezing: what is left out, when, at which rate, and in evaluation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from image_classification.model import ModelConfig, build_model
from timedrun.methods import ChannelsLast, GyroDropout, LayerFreezing, StochasticDepth, Whitening, stack
from timedrun.methods.method import NoEffect, Position
from timedrun.methods.stochastic_depth import _Branch, keep_rates
from timedrun.methods.training.initialisation import residual_blocks


def test_each_mask_is_used_in_one_part_of_the_run():
    method = GyroDropout(sigma=8, tau=2)
    parts = [method.chosen(Position(0, progress / 4, seed=5)) for progress in range(4)]
    assert sorted(sum(parts, ())) == list(range(8)) and method.chosen(Position(9, 1.0, seed=5)) == parts[3]
    assert parts != [method.chosen(Position(0, progress / 4, seed=6)) for progress in range(4)]
    assert method.chosen(Position(3, 0.1, seed=5, rank=3)) == parts[0]


@pytest.mark.parametrize("shape", [(8, 64), (8, 5, 64), (8, 64, 3, 3)])
def test_a_batch_is_divided_among_the_masks_in_use(shape):
    speed = stack(GyroDropout(p=0.25, sigma=8, tau=2), seed=1)
    model = speed.model(nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.1)))
    seen = []
    for step in range(4):
        speed.before_step(model, step, step / 4)
        output = model[0](torch.ones(shape))
        assert output.unique().tolist() == pytest.approx([0, 4 / 3])
        rows = output if len(shape) == 2 else output.amax(dim=(2, 3) if len(shape) == 4 else 1)
        assert torch.equal(rows[0], rows[3]) and torch.equal(rows[4], rows[7]) and not torch.equal(rows[3], rows[4])
        seen += [rows[0], rows[4]]
    kept = torch.stack(seen).bool().float()
    assert len(kept.unique(dim=0)) == 8 and 0.65 < kept.mean() < 0.85
    assert torch.equal(model.eval()(torch.ones(shape)), torch.ones(shape))


class Attention(nn.Module):
    """Self-attention of one head with dropout of its probabilities, called or only read, and of its outputs."""

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.read, self.weights, self.outputs, self.off = read, nn.Dropout(0.1), nn.Dropout(0.2), nn.Dropout(0)
        self.again = self.outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = (x @ x.mT)[:, None].softmax(-1)
        p = F.dropout(p, self.weights.p, self.training) if self.read else self.weights(p)
        return self.again(self.outputs(self.off((p @ x[:, None])[:, 0])))


@pytest.mark.parametrize("read", [False, True])
def test_attention_keeps_its_dropout_and_what_is_off_stays_off(read):
    speed = stack(GyroDropout())
    model = speed.model(Attention(read))
    assert speed.report == ["gyro_dropout: 3 dropout layers; 1 of rate 0 stay off"]
    speed.before_step(model, 0, 0.0)
    model(torch.randn(4, 6, 16))
    speed.after_step(model)
    speed.verify()
    assert "; 2 of them with masks" in speed.report[0]
    kept = model.weights(torch.full((64, 1, 16, 16), 1 / 16))
    assert model.weights.p == 0.1 and 0.85 < float((kept > 0).float().mean()) < 0.95


@pytest.mark.parametrize("shape", [(2, 5, 5, 16), (2, 16, 5, 5), (2, 16, 16, 16)])
def test_the_features_of_images_are_their_channels_wherever_they_are(shape):
    """Layers have masks of their own, in the type and on the device of the inputs; vectors have torch's dropout."""
    speed = stack(GyroDropout(sigma=4, tau=1))
    model = speed.model(nn.Sequential(nn.Dropout(), nn.Dropout()))
    speed.before_step(model, 0, 0.0)
    assert model(torch.ones(4, 8, device="meta")).is_meta and model(torch.ones(6)).shape == (6,)
    for dtype in (torch.float32, torch.bfloat16):
        first, second = (layer(torch.ones(1, 64, dtype=dtype)) for layer in model)
        assert first.dtype == dtype and not torch.equal(first, second) and first.unique().tolist() == [0, 2]
    whole = model[0](torch.ones(shape)).transpose(1, 3 if shape[1] == 5 else 1).flatten(2)
    assert bool((whole == whole[:, :, :1]).all()) and whole.unique().tolist() == [0, 2]


def test_other_masks_and_other_skipped_blocks_compile_no_further_graph():
    dropped = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
    for method, module, inputs in (
        (GyroDropout(p=0.25, sigma=12, tau=2), dropped, torch.ones(2, 8)),
        (StochasticDepth(kind="block", rate=0.5), network(), torch.randn(2, 3, 32, 32)),
    ):
        speed, graphs = stack(method), list[torch.fx.GraphModule]()
        model = speed.model(module).train()
        model.compile(backend=lambda graph, inputs, graphs=graphs: graphs.append(graph) or graph.forward)
        outputs, compiled = [], []
        for step in range(6):
            speed.before_step(model, step, step / 6)
            outputs.append(model(inputs))
            compiled.append(len(graphs))
        assert len(torch.stack(outputs).unique(dim=0)) > 2
        assert len(set(compiled[1:])) == 1, compiled  # one graph more for a layer that had masks before
        with torch.compiler.set_stance("force_eager"):
            expected = model.eval()(inputs)
        torch.testing.assert_close(model(inputs), expected)


def network(block: str = "bottleneck") -> nn.Module:
    shape = {"layers": (2, 2), "widths": (4, 8), "classes": 4}
    return build_model(ModelConfig(block=block, **shape), seed=1)


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_a_sample_keeps_or_loses_its_branch_and_evaluation_scales_it(block):
    assert keep_rates(4, 0.2, "linear") == pytest.approx([0.95, 0.9, 0.85, 0.8])  # growing with depth
    assert keep_rates(3, 0.2, "uniform") == [0.8] * 3
    assert keep_rates(3, 0.2, "linear_from_0") == pytest.approx([1.0, 0.9, 0.8])  # timm's
    torch.manual_seed(0)
    branch = _Branch(
        1 - 0.00625, "sample", divided=False
    )  # the first of 16 blocks at 0.1; bf16 draws of 1/256 gave 0.0078
    many = branch(nn.Identity(), None, torch.ones(1_000_000, 1, dtype=torch.bfloat16))
    assert many.dtype == torch.bfloat16 and 0.0060 < float((many == 0).float().mean()) < 0.0065  # 3 deviations
    plain = network(block)
    dropped = stack(StochasticDepth(rate=0.4, distribution="uniform")).model(copy.deepcopy(plain))
    (first, *_), (changed, *_) = residual_blocks(plain), residual_blocks(dropped)
    last = first.bn3 if block == "bottleneck" else first.bn2
    x = torch.randn(64, 4, 8, 8).relu()
    branches: list[torch.Tensor] = []
    last.register_forward_hook(lambda module, inputs, output: branches.append(output))
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
    divided = _Branch(0.8, "sample", divided=True)  # as timm's drop_path
    assert divided(nn.Identity(), None, torch.ones(99, 1)).unique().tolist() == [0, 1.25]
    assert divided(nn.Identity().eval(), None, x) is x


def test_a_skipped_block_does_no_work_and_gets_no_gradient():
    speed = stack(StochasticDepth(kind="block", rate=0.5, distribution="uniform"), seed=2)
    model = speed.model(network())
    assert speed.skips_parameters
    skipped = []
    for step in range(40):
        speed.before_step(model, step, 0.0)
        model.zero_grad()
        model(torch.randn(2, 3, 32, 32)).sum().backward()
        speed.after_step(model)
        idle = [block.conv1.weight.grad is None for block in residual_blocks(model)]
        assert idle == [block.skipped for block in residual_blocks(model)]
        skipped += idle
    assert 55 <= sum(skipped) <= 105  # 80 of 160 expected


def test_a_branch_ends_after_its_excitation(torchvision):
    model = pytest.importorskip("timm").create_model("seresnet18", num_classes=4)
    stack(StochasticDepth()).model(model)
    assert any(isinstance(hook, _Branch) for hook in model.layer1[0].se._forward_hooks.values())
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 4)


def test_frozen_layers_grow_linearly_and_keep_their_weights_and_the_others_train():
    method = LayerFreezing(start=0.5)  # spares the last
    assert [method.count(11, progress / 20) for progress in range(8, 21)] == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert LayerFreezing(start=0.0, level=0.3).count(11, 1.0) == 3
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)
    )
    speed = stack(LayerFreezing(start=0.5))
    model = speed.model(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    changed = []
    for step in range(8):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        speed.before_step(model, step, step / 8)
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        speed.after_step(model)
        changed.append([not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)])
    layers = [[one[index] for index in (0, 2, 4, 6)] for one in changed]
    assert layers[4:] == [
        [True, True, True, True],
        [True, True, True, True],  # progress 0.625: a quarter of three
        [False, True, True, True],
        [False, False, True, True],
    ]
    assert speed.report == ["layer_freezing: 2 layers frozen"]


def test_layers_that_a_warm_up_froze_train_again_and_those_frozen_by_others_do_not():
    tied = nn.Linear(2, 2, bias=False)
    speed = stack(LayerFreezing(start=0.0))
    model = speed.model(nn.Sequential(tied, nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)))
    model[3].weight = tied.weight
    before = speed.state_dict()
    speed.before_step(model, 9, 1.0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"0.weight", "3.bias"}  # the last layer's, one of which the first layer has, too
    speed.load_state_dict(before)
    speed.before_step(model, 0, 0.0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"0.weight", "1.weight", "1.bias", "3.bias"}
    assert speed.report == ["layer_freezing: nothing yet"]


@pytest.mark.parametrize("given", [[LayerFreezing(start=0.0)], [Whitening()], [ChannelsLast(), Whitening()]])
def test_a_group_norm_whose_backward_pass_would_end_the_process_is_refused(given):
    """For inputs in channels-last order alone."""
    layers = nn.Conv2d(3, 24, 2, bias=False), nn.GroupNorm(4, 24), nn.Conv2d(24, 2, 1)
    with pytest.raises(ValueError, match=r"layer_freezing: GroupNorm\(24\) follows .* remove layer_freezing"):
        stack(ChannelsLast(), LayerFreezing()).model(nn.Sequential(*copy.deepcopy(layers)))
    speed = stack(*given)
    model = speed.model(nn.Sequential(*layers))
    speed.before_step(model, 0, 0.9)
    for size in (9, 2):  # one pixel after the convolution: in every memory format
        inputs = speed.batch(torch.randn(20, 3, size, size), torch.zeros(20), 2)[0]
        with pytest.raises(ValueError, match=r"\(segmentation fault\).*; use contiguous"):
            model(inputs.to(memory_format=torch.channels_last))


def test_blocks_that_cannot_be_skipped_as_a_resnets_are_refused():
    for name, layer in (("relu", None), ("last", nn.Conv2d(16, 16, 1))):
        model = network()
        setattr(model.layer1[0], name, layer)
        with pytest.raises(NoEffect, match='end in a norm, .* this Bottleneck has not; use kind="sample"'):
            stack(StochasticDepth(kind="block")).model(model)
