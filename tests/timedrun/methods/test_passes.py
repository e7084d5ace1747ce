"""Methods on the passes of a step: SAM's perturbation, the bounds of clipping, the samples of selective backprop."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods import SAM, GradientClipping, InfoBatch, SelectiveBackprop, stack
from timedrun.methods.gradient_clipping import MIN_WEIGHT_NORM
from timedrun.methods.method import Hooks, Position
from timedrun.methods.selective_backprop import keep_probabilities


class Passes:
    """Computes a loss and its gradients as often as a method calls it."""

    def __init__(self, loss: Callable[[], Tensor], scale: float = 1.0) -> None:
        self.loss, self.scale = loss, scale
        self.losses: list[Tensor] = []
        self.reduced: list[bool] = []

    def __call__(self, reduced: bool) -> Tensor:
        self.reduced.append(reduced)
        loss = self.loss()
        torch.autograd.backward(loss, torch.tensor(self.scale, dtype=loss.dtype))
        self.losses.append(loss.detach())
        return self.losses[-1]


def test_the_gradient_is_that_of_the_perturbed_weights_and_the_weights_come_back():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 1.0]]))
    before = model.weight.detach().clone()
    # 0.5 * w A w for A = diag(1, 4), whose gradient is A w
    run = Passes(lambda: 0.5 * (model.weight.double()[0] ** 2 * torch.tensor([1.0, 4.0])).sum())
    loss = SAM(rho=0.5).hooks().backward(run, model, Position(0, 0.0))
    # g = A w = (3, 4), |g| = 5, e = 0.5 g / 5 = (0.3, 0.4), A (w + e) = (3.3, 5.6)
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad, torch.tensor([[3.3, 5.6]]))
    assert torch.equal(model.weight.detach(), before)
    assert loss == 0.5 * (9 + 4) and run.reduced == [False, True]
    failing = Passes(lambda: model.weight.sum() if not failing.losses else 1 / 0)  # in the second pass
    with pytest.raises(ZeroDivisionError):
        SAM().hooks().backward(failing, model, Position(0, 0.0))
    assert torch.equal(model.weight.detach(), before)


def test_steps_between_are_ordinary():
    speed, model = stack(SAM(interval=3)), nn.Linear(2, 1)
    run = Passes(lambda: model(torch.ones(1, 2)).sum())
    counts: list[int] = []
    for step in range(6):
        speed.before_step(model, step, step / 6)
        speed.backward(run, model)
        speed.after_step(model)
        counts.append(len(run.losses))
    assert counts == [1, 2, 4, 5, 6, 8]
    assert speed.report == ["sam: 2 steps with the gradient of perturbed weights"]


def test_a_first_gradient_that_overflows_perturbs_nothing_so_that_the_second_overflows_alike():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before, inputs = copy.deepcopy(model[0].state_dict()), torch.randn(8, 2)
    run = Passes(lambda: (model(inputs) ** 3).sum() * 100, scale=3e38)  # a loss scale that is too large
    SAM().hooks().backward(run, model, Position(0, 0.0))
    assert run.losses[0] == run.losses[1]
    assert all(torch.equal(value, model[0].state_dict()[name]) for name, value in before.items())
    assert model[0].weight.grad is not None and not model[0].weight.grad.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in model.buffers())


def clipped(method: GradientClipping, *gradients: torch.Tensor) -> tuple[Hooks, list[torch.Tensor | None]]:
    model = nn.ParameterList([nn.Parameter(torch.ones_like(gradient)) for gradient in gradients])
    model.append(nn.Parameter(torch.ones(2)))  # without a gradient
    for parameter, gradient in zip(model, gradients, strict=False):
        parameter.grad = gradient.clone()
    hooks = method.hooks()
    hooks.gradients(model, Position(0, 0.0))
    return hooks, [parameter.grad for parameter in model]


def test_the_norm_of_all_gradients_or_each_value_is_bounded():
    hooks, (first, second, missing) = clipped(GradientClipping(), torch.tensor([3.0]), torch.tensor([[0.0, 4.0]]))
    torch.testing.assert_close((first, second), (torch.tensor([0.6]), torch.tensor([[0.0, 0.8]])))
    assert missing is None and hooks.effect() == "1 steps clipped to norm 1.0"
    hooks, (first, *_) = clipped(GradientClipping(threshold=5.1), torch.tensor([3.0]), torch.tensor([[0.0, 4.0]]))
    assert first == 3 and hooks.effect() is None
    hooks, (found, _) = clipped(GradientClipping(by="value", threshold=0.5), torch.tensor([-3.0, 0.25, 0.75]))
    assert found is not None and found.tolist() == [-0.5, 0.25, 0.5]
    assert hooks.effect() == "1 steps clipped to value 0.5"
    assert clipped(GradientClipping(by="value", threshold=3.0), torch.tensor([-3.0]))[0].effect() is None


def test_adaptive_bounds_each_filter_row_and_vector_by_its_weights():
    generator = np.random.default_rng(0)
    shapes = [(3, 2, 3, 3), (4, 5), (6,)]
    weights = [
        generator.standard_normal(shape) * generator.choice([0, 0.1, 9], (shape[0], *[1] * (len(shape) - 1)))
        for shape in shapes
    ]
    gradients = [generator.standard_normal(shape) for shape in shapes]
    gradients[1][0] = 0
    model = nn.ParameterList([nn.Parameter(torch.from_numpy(weight)) for weight in weights])
    for parameter, gradient in zip(model, gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient.copy())
    hooks = GradientClipping(by="adaptive", threshold=0.2).hooks()
    hooks.gradients(model, Position(0, 0.0))
    scaled = 0
    for parameter, weight, gradient in zip(model, weights, gradients, strict=True):
        units = [...] if weight.ndim == 1 else range(len(weight))
        for unit in units:
            norm, limit = np.linalg.norm(gradient[unit]), 0.2 * max(np.linalg.norm(weight[unit]), MIN_WEIGHT_NORM)
            scaled += norm > limit
            expected = gradient[unit] * min(1, limit / norm) if norm else gradient[unit]
            assert parameter.grad is not None
            np.testing.assert_allclose(parameter.grad.numpy()[unit], expected, rtol=1e-12)
    assert 0 < scaled < 8 and hooks.effect() == "1 steps clipped to adaptive 0.2"


SAMPLES = torch.arange(8.0).view(8, 1, 1, 1)


def no_losses(inputs: Tensor, targets: Tensor) -> Tensor:
    raise AssertionError


def own_values(inputs: Tensor, targets: Tensor) -> Tensor:
    return inputs[:, 0, 0, 0]


def test_high_losses_are_kept_more_often_and_each_sample_once():
    ranks = (np.arange(4) + 0.5) / 4
    assert keep_probabilities(4, 0.5) == pytest.approx(ranks / ranks.sum())  # exponent 1 / 0.5 - 1 = 1
    assert keep_probabilities(4, 0.25) == pytest.approx(ranks**3 / (ranks**3).sum())
    hooks, times = SelectiveBackprop(start=0.0, interrupt=0).hooks(), np.zeros(8)
    permuted = SAMPLES[torch.randperm(8, generator=torch.Generator().manual_seed(1))]
    for step in range(2000):
        inputs, targets = hooks.select(permuted, permuted.flatten(), own_values, Position(step, 0.0))
        assert torch.equal(inputs.flatten(), targets) and len(inputs.unique()) == 4
        times[targets.long().numpy()] += 1
    assert (np.diff(times) > 0).all()
    # Drawing 4 of 8 without replacement by these weights, in expectation over all orders (NumPy's documented rule).
    random, weights = np.random.RandomState(0), keep_probabilities(8, 0.5)
    expected = np.zeros(8)
    for _ in range(2000):
        expected[random.choice(8, 4, replace=False, p=weights)] += 1
    assert times == pytest.approx(expected, abs=130)


def test_it_acts_within_its_part_of_the_run_and_not_in_interrupted_steps():
    hooks = SelectiveBackprop(start=0.5, end=0.75, interrupt=2).hooks()
    kept = [len(hooks.select(SAMPLES, SAMPLES, own_values, Position(step, step / 16))[0]) for step in range(16)]
    assert kept == [8] * 8 + [4, 8, 4, 8] + [8] * 4
    assert hooks.effect() == "2 batches cut to 0.5 of their samples"
    hooks, x = SelectiveBackprop(start=0.0, interrupt=0).hooks(), torch.arange(8.0)[:, None]
    assert len(hooks.select(x, x, lambda inputs, targets: inputs.square(), Position(0, 0.0))[0]) == 4  # a column
    with pytest.raises(ValueError, match="one loss a sample"):
        hooks.select(x, x, lambda inputs, targets: torch.tensor(0.0), Position(0, 0.0))


def test_a_batch_without_some_easy_samples_has_the_mean_gradient_of_the_whole_one_also_in_parts():
    speed, net, inputs, classes = stack(InfoBatch(start=0.0, easy=0.75)), nn.Linear(8, 8), torch.eye(8), torch.arange(8)
    F.cross_entropy(net(inputs), classes).backward()
    whole, net.weight.grad = net.weight.grad, None
    for step in range(3000):
        speed.before_step(net, step, 0.0, samples=np.arange(8) + 8)
        kept, labels = speed.select(inputs, classes, no_losses)
        for part, wanted in zip(kept.split(3), labels.split(3), strict=True):
            (F.cross_entropy(speed.outputs(net(part)), wanted, reduction="sum") / len(kept) / 3000).backward()
    assert len(kept) == 5 and speed.report == ["info_batch: 3000 batches without 50% of their easy samples"]
    torch.testing.assert_close(net.weight.grad, whole, atol=1e-3, rtol=0.05)


def test_easy_samples_are_those_of_the_lowest_losses_when_they_were_last_trained_on():
    hooks, x, classes, own = InfoBatch(start=0.5, end=0.75).hooks(), torch.zeros(4, 2), torch.ones(4).long(), []
    for progress, samples in ((0.0, [7, 0, 1, 2]), (0.5, [3, 2, 1, 0]), (0.6, [0, 1, 2, 3]), (0.75, [0, 1, 2, 3])):
        at = Position(len(own), progress, samples=np.array(samples))
        kept, _ = hooks.select(x + torch.tensor(samples)[:, None], classes, no_losses, at)
        own.append(kept[:, 0].tolist())
        sizes = torch.stack([0 * kept[:, 0], kept[:, 0]], 1).requires_grad_()  # lower losses for higher numbers
        assert hooks.outputs(hooks.outputs(sizes, at), at) is sizes and hooks.outputs(x, at) is x  # a second pass
    torch.testing.assert_close(hooks.losses[[0, 1, 2, 3, 7]], F.softplus(-torch.tensor([0.0, 1, 2, 3, 7])))
    assert own[0] == [7, 0, 1, 2] and set(own[1]) > {3, 0} and len(own[1]) == 3 and own[3] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="needs the number and the class of each sample, .* samples None; no step"):
        hooks.select(x, classes, no_losses, Position(0, 0.5))
