"""EMA, SWA and test-time augmentation: what evaluations see, and that training never notices it."""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from timedrun.methods import EMA, SWA, TTA, Hooks, mean_over_views, stack
from timedrun.methods.ema import ema_update, tensors_of
from timedrun.methods.method import unwrapped


class Network(nn.Module):
    """One of each kind of tensor: parameters, running statistics, an integer counter, a mask, constant indices."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        self.register_buffer("positions", torch.arange(7), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        return outputs


def train(steps: int, hooks: Hooks | None = None, evaluate_every: int = 0) -> tuple[Network, list[dict[str, Any]]]:
    """A short run; returns the network and a copy of all its tensors after each step."""
    torch.manual_seed(3)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if hooks is not None:
            hooks.after_step(model, step)
            if evaluate_every and step % evaluate_every == 0:
                with hooks.evaluation(model):
                    pass
        history.append({name: tensor.detach().clone() for name, tensor in tensors_of(model).items()})
    return model, history


def test_the_average_of_a_sharded_model_is_that_of_a_whole_one():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        seen = []
        for sharded in (False, True):
            model, hooks = Network(), EMA(half_life=2, update_interval=1).hooks()
            nn.init.ones_(model.layers[0].weight)
            if sharded:
                fully_shard(model)
            for step in (1, 2, 3):
                with torch.no_grad():
                    model.layers[0].weight.mul_(step)
                    model.layers[1].running_mean.add_(step)
                hooks.after_step(model, step)
            with hooks.evaluation(model):
                state = model.state_dict()
                whole = state["layers.0.weight"].full_tensor() if sharded else state["layers.0.weight"]
                seen.append((whole.clone(), state["layers.1.running_mean"].clone()))
        torch.testing.assert_close(seen[0], seen[1], atol=0, rtol=0)
    finally:
        torch.distributed.destroy_process_group()


def test_evaluation_alone_sees_the_average_of_every_kind_of_tensor():
    hooks, smoothing = EMA(half_life=4, update_interval=2).hooks(), 2 ** (-2 / 4)
    plain, _ = train(9)
    model, history = train(9, hooks, evaluate_every=2)
    state, addresses = hooks.state_dict(), [tensor.data_ptr() for tensor in tensors_of(model).values()]
    shadow = copy.deepcopy(state["shadow"])
    with pytest.raises(KeyboardInterrupt), hooks.evaluation(model):
        found = tensors_of(model)
        for name in ("layers.0.weight", "layers.2.bias", "layers.1.running_mean", "layers.1.running_var"):
            average = history[1][name].double()  # starts as a copy, at the first update
            for step in (4, 6, 8):
                average = smoothing * average + (1 - smoothing) * history[step - 1][name].double()
            torch.testing.assert_close(found[name].double(), average, atol=1e-6, rtol=1e-6)
        counter = 2.0
        for seen in (4, 6, 8):  # whole parts
            counter = float(int(smoothing * counter + (1 - smoothing) * seen))
        assert model.layers[1].num_batches_tracked == counter and torch.equal(model.positions, torch.arange(7))
        assert [tensor.data_ptr() for tensor in found.values()] == addresses
        raise KeyboardInterrupt
    for name, tensor in tensors_of(model).items():  # everything is back, and training is that without
        assert torch.equal(tensor, history[-1][name]) and torch.equal(tensor, tensors_of(plain)[name]), name
    with torch.no_grad():
        model.layers[0].weight.add_(1)
    model.mask.fill_(True)
    hooks.after_step(model, 10)
    with hooks.evaluation(model):
        assert model.mask.all()  # the current value of a flag
    assert all(torch.equal(state["shadow"][name], shadow[name]) for name in shadow)  # a snapshot


def test_evaluation_before_the_first_update_uses_training_weights_and_a_buffer_of_no_checkpoint_is_the_models():
    hooks = EMA(half_life=100, update_interval=20).hooks()
    model, history = train(19, hooks)
    with hooks.evaluation(model):
        assert torch.equal(model.layers[0].weight, history[-1]["layers.0.weight"])
    assert hooks.effect() is None
    for step in (20, 40):
        model.positions = torch.arange(step, step + 7)
        hooks.after_step(model, step)
    with hooks.evaluation(model):
        assert model.positions[0] == 40
    assert hooks.effect() == "2 updates of the moving average"
    assert tensors_of(torch.compile(model)).keys() == tensors_of(model).keys()
    assert unwrapped(torch.compile(model)) is model
    shadow = [torch.tensor(9_007_199_254_740), torch.tensor([3, -7])]  # counters: in double precision
    current = [torch.tensor(9_007_199_254_993), torch.tensor([90, 100])]
    expected = [(a + (1.0 - 0.9) * (b.double() - a)).long() for a, b in zip(shadow, current, strict=True)]
    ema_update(shadow, current, 0.9)
    assert all(torch.equal(a, b) for a, b in zip(shadow, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_average_of_half_precision_moves_by_less_than_its_rounding(dtype):
    hooks, model = EMA(half_life=1000, update_interval=1).hooks(), nn.Linear(1, 1).to(dtype)
    nn.init.constant_(model.weight, 0.5)
    hooks.after_step(model, 1)
    nn.init.ones_(model.weight)
    for step in range(2, 1002):  # one half-life
        hooks.after_step(model, step)
    restored = EMA(half_life=1000, update_interval=1).hooks()
    restored.load_state_dict(hooks.state_dict())
    with restored.evaluation(model):
        assert model.weight.dtype == dtype
        assert model.weight.item() == pytest.approx(0.75, abs=0.004)


def test_an_average_of_another_model_or_type_is_refused_and_nothing_changes():
    hooks = EMA(half_life=4, update_interval=1).hooks()
    model, _ = train(2, hooks)
    other = nn.Linear(4, 3)
    before = other.weight.detach().clone()
    with pytest.raises(ValueError, match="another model"), hooks.evaluation(other):
        pass
    assert torch.equal(other.weight, before)
    with pytest.raises(ValueError, match="moving average of 'layers.0.weight' is torch.float32"):
        hooks.after_step(model.double(), 3)


def test_the_weights_become_the_mean_that_torch_computes():
    model, speed = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), stack(SWA(start=0.5, end=0.8, interval=0.1))
    expected = AveragedModel(model)
    for step in range(17):
        if step in (10, 12, 14):  # at 0.5, 0.6 and 0.7
            expected.update_parameters(model)
        assert speed.report == ["swa: nothing yet"]
        speed.before_step(model, step, step / 20)
        if step < 16:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter))
            speed.after_step(model)
    torch.testing.assert_close(model[0].weight, expected.module[0].weight)
    assert speed.report == ["swa: the mean of 3 points took the weights' place"]
    speed = stack(SWA(start=0.5, end=0.9))
    for step in range(100):  # a progress that changes by epochs: one point an epoch
        speed.before_step(model, step, step // 10 / 10)
        speed.after_step(model)
    assert speed.report == ["swa: the mean of 4 points took the weights' place"]


def test_half_precision_is_averaged_in_float32():
    speed, model = stack(SWA(start=0.0, end=0.9)), nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    values = [1.0, 1.0078125, 1.0078125]  # bf16's step at 1 is 0.0078125
    for step, value in enumerate(values):
        with torch.no_grad():
            model.weight.fill_(value)
        speed.before_step(model, step, step / 4)
        speed.after_step(model)
    assert speed.state_dict()["swa"]["mean"]["weight"].item() == pytest.approx(sum(values) / 3, abs=1e-6)


def test_an_average_that_is_updated_less_than_once_in_a_half_life_is_pointed_out():
    with pytest.warns(UserWarning, match=r"every 20 steps .* half-life of 8 keeps 18% .* give update_interval=2"):
        EMA(half_life=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EMA(half_life=8, update_interval=2)


@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_the_average_of_a_spectral_norm_has_norm_one(norm):
    layer, hooks = norm(nn.Linear(16, 16, bias=False)), EMA(half_life=4, update_interval=1).hooks()
    adam = torch.optim.Adam(layer.parameters(), lr=0.1)
    for step in range(1, 41):
        layer(torch.randn(8, 16)).square().sum().backward()
        adam.step()
        hooks.after_step(layer, step)
    state = hooks.state_dict()
    state["shadow"]["parametrizations.weight.0._u"] = torch.ones(16)  # as versions up to 0.2 saved
    hooks.load_state_dict(state)
    with hooks.evaluation(layer.eval()):
        assert torch.linalg.matrix_norm(layer(torch.eye(16)), 2).item() == pytest.approx(1, abs=0.1)


def test_the_views_of_a_corner_are_those_of_a_reflected_edge():
    images, corner = torch.arange(16.0).view(1, 1, 4, 4), lambda views: views[:, :, 0, 0]
    # Plain and mirrored 0 and 3; up and left by one: 5 (reflected) and its mirror image's 6; down and right: 5, 6.
    assert mean_over_views(corner, images, shift=0).item() == 1.5
    padded = torch.nn.functional.pad(images, (1,) * 4, mode="reflect")
    shifted = [padded[0, 0, start, column].item() for start in (0, 2) for column in (start, start + 3)]
    assert mean_over_views(corner, images).item() == (1.5 + sum(shifted) / 4) / 2


def test_a_share_has_views_of_the_images_whose_class_is_least_certain():
    images, seen = torch.rand(6, 1, 4, 4), list[int]()
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    model.register_forward_pre_hook(lambda _, views: seen.append(len(views[0])))
    plain = model(images)
    outputs = mean_over_views(model, images, share=0.4)
    doubtful = plain.softmax(1).amax(1).argsort()[:3]
    torch.testing.assert_close(outputs[doubtful], mean_over_views(model, images)[doubtful])
    others = [row for row in range(6) if row not in doubtful]
    assert torch.equal(outputs[others], plain[others]) and seen[:8] == [6, 6] + [3] * 6
    with pytest.raises(ValueError, match="cannot choose images by outputs"):
        mean_over_views(nn.Conv2d(1, 1, 1), images, share=0.5)
    with pytest.raises(TypeError, match="the model returns dict"):
        mean_over_views(lambda views: {"logits": views}, images, share=0.5)  # type: ignore[arg-type, return-value]
    assert mean_over_views(nn.AdaptiveAvgPool2d(1), images, share=0.5).shape == (6, 1, 1, 1)  # classes, not flattened


@pytest.mark.parametrize("how", ["eager", "compiled in place", "wrapped by torch.compile"])
def test_only_evaluations_see_the_views(how):
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
    images = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    plain = model(images)
    expected = mean_over_views(model, images)
    if how == "compiled in place":
        model.compile(backend="eager")
    elif how == "wrapped by torch.compile":
        model = torch.compile(model, backend="eager")
    speed = stack(TTA())
    assert speed.report == ["tta: nothing yet"]
    with speed.evaluation(model):
        torch.testing.assert_close(model(images), expected)
        assert not torch.allclose(expected, plain)
    torch.testing.assert_close(model(images), plain)
    assert speed.report == ["tta: 1 evaluations over 6 views of each image"]


def test_views_are_of_the_network_inside_another_module_and_an_evaluation_without_it_is_none():
    speed, images = stack(TTA()), torch.randn(2, 3, 6, 6)
    network = speed.model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    expected = mean_over_views(network, images)
    with speed.evaluation(nn.ModuleList([nn.Conv2d(3, 4, 3), network])):
        assert speed.report == ["tta: nothing yet"]
        torch.testing.assert_close(network(images), expected)
    compiled = torch.compile(network, backend="eager")
    with speed.evaluation(nn.ModuleList([compiled])):
        torch.testing.assert_close(compiled(images), expected)
    with speed.evaluation(network):
        pass
    assert speed.report == ["tta: 2 evaluations over 6 views of each image"]


def test_calls_and_outputs_of_another_kind_are_refused():
    class Named(nn.Conv2d):
        def forward(self, input: Tensor) -> dict[str, Tensor]:
            return {"logits": super().forward(input)}

    model = Named(3, 4, 3)
    with stack(TTA()).evaluation(model):
        with pytest.raises(TypeError, match=r"model\(images\)"):
            model(input=torch.ones(1, 3, 4, 4))
        with pytest.raises(TypeError, match="the model returns dict"):
            model(torch.ones(1, 3, 4, 4))
        with pytest.raises(ValueError, match="images"):
            model(torch.ones(2, 3))
    images = torch.rand(2, 3, 6, 6)
    with pytest.raises(ValueError, match=r"tta cannot move outputs \[2, 3, 3, 3\] of images"):
        mean_over_views(lambda views: views[..., ::2, ::2], images)
    with pytest.raises(TypeError, match=r"returns torch\.int64"):
        mean_over_views(lambda views: views.argmax(1), images)
    assert mean_over_views(nn.AdaptiveAvgPool2d(1), images).shape == (2, 3, 1, 1)  # classes, not flattened


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_outputs_of_each_pixel_are_moved_back_and_averaged_over_the_views_that_have_it(shift, channels):
    places, images = torch.rand(*channels, 7, 9), torch.rand(3, 1, 7, 9)
    model = lambda views: (views if channels else views[:, 0]) + places  # noqa: E731  # knows where a pixel is
    around = F.pad((places + places.flip(-1)) / 2, (shift,) * 4, value=torch.nan)
    moved = [around[..., start : start + 7, start : start + 9] for start in (shift, shift, 0, 2 * shift)]
    expected = (images if channels else images[:, 0]) + torch.stack(moved).nanmean(0)
    torch.testing.assert_close(mean_over_views(model, images, shift), expected)
