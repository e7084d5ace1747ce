"""Gradient clipping: each bound against numbers worked out by hand or in float64."""

import numpy as np
import torch
from torch import nn

from timedrun.methods import GradientClipping
from timedrun.methods.gradient_clipping import MIN_WEIGHT_NORM
from timedrun.methods.method import Hooks, Position


def clipped(method: GradientClipping, *gradients: torch.Tensor) -> tuple[Hooks, list[torch.Tensor | None]]:
    model = nn.ParameterList([nn.Parameter(torch.ones_like(gradient)) for gradient in gradients])
    model.append(nn.Parameter(torch.ones(2)))  # without a gradient
    for parameter, gradient in zip(model, gradients, strict=False):
        parameter.grad = gradient.clone()
    hooks = method.hooks()
    hooks.gradients(model, Position(0, 0.0))
    return hooks, [parameter.grad for parameter in model]


def test_the_norm_of_all_gradients_together_is_bounded_and_their_direction_kept() -> None:
    hooks, (first, second, missing) = clipped(GradientClipping(), torch.tensor([3.0]), torch.tensor([[0.0, 4.0]]))
    torch.testing.assert_close((first, second), (torch.tensor([0.6]), torch.tensor([[0.0, 0.8]])))
    assert missing is None and hooks.effect() == "1 steps clipped to norm 1.0"
    hooks, (first, *_) = clipped(GradientClipping(threshold=5.1), torch.tensor([3.0]), torch.tensor([[0.0, 4.0]]))
    assert first == 3 and hooks.effect() is None


def test_values_are_bounded_each() -> None:
    hooks, (found, _) = clipped(GradientClipping(by="value", threshold=0.5), torch.tensor([-3.0, 0.25, 0.75]))
    assert found is not None and found.tolist() == [-0.5, 0.25, 0.5]
    assert hooks.effect() == "1 steps clipped to value 0.5"
    assert clipped(GradientClipping(by="value", threshold=3.0), torch.tensor([-3.0]))[0].effect() is None


def test_adaptive_bounds_each_filter_row_and_vector_by_its_weights() -> None:
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
    assert 0 < scaled < 8
    assert hooks.effect() == "1 steps clipped to adaptive 0.2"


def test_the_steps_that_were_clipped_are_counted() -> None:
    model = nn.Linear(1, 1, bias=False)
    hooks = GradientClipping(threshold=2.0).hooks()
    for step, size in enumerate([1.0, 3.0, 2.0, 5.0]):
        model.weight.grad = torch.full((1, 1), size)
        hooks.gradients(model, Position(step, 0.0))
    assert hooks.effect() == "2 steps clipped to norm 2.0"
