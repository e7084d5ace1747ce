"""LAMB against a loop in NumPy, and its groups and settings."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from timedrun.config import OptimizerConfig
from timedrun.training.optim import Lamb, build_optimizer

SHAPES = [(4, 3), (5,), (2, 3, 3), (6, 2)]
DECAY = [0.1, 0.0, 0.1, 0.1]
Arrays = list[np.ndarray[Any, Any]]


def drawn(seed: int, scale: float = 1.0) -> Arrays:
    generator = np.random.default_rng(seed)
    return [scale * generator.standard_normal(shape) for shape in SHAPES]


def gradients(step: int) -> Arrays:
    return drawn(step, 0.01 if step % 2 else 3.0)  # of a norm below and above 1


def expected(weights: Arrays, steps: int, lr: float) -> Arrays:
    """Algorithm 2 of arXiv 1904.00962 after clipping all gradients together to a norm of 1."""
    weights = [weight.copy() for weight in weights]
    means, squares = ([np.zeros(shape) for shape in SHAPES] for _ in range(2))
    for step in range(1, steps + 1):
        grads = gradients(step)
        norm = np.sqrt(sum((grad**2).sum() for grad in grads))
        for index, weight in enumerate(weights):
            grad = grads[index] / max(1.0, norm)
            means[index] = 0.9 * means[index] + 0.1 * grad
            squares[index] = 0.99 * squares[index] + 0.01 * grad**2
            update = means[index] / (1 - 0.9**step) / (np.sqrt(squares[index] / (1 - 0.99**step)) + 1e-6)
            update += DECAY[index] * weight
            adapted = DECAY[index] > 0 and np.linalg.norm(weight) > 0
            weight -= lr * update * (np.linalg.norm(weight) / np.linalg.norm(update) if adapted else 1.0)
    return weights


def lamb(params: list[nn.Parameter], lr: float) -> Lamb:
    groups = [{"params": [params[0], *params[2:]]}, {"params": [params[1]], "weight_decay": 0.0}]
    return Lamb(groups, lr, (0.9, 0.99), 1e-6, 0.1)


def stepped(optimizer: Lamb, params: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        for param, grad in zip(params, gradients(step), strict=True):
            param.grad = torch.from_numpy(grad)
        optimizer.step()


def test_steps_are_those_of_the_paper_also_from_weights_of_zero_and_across_a_resume() -> None:
    start = drawn(99)
    start[3][:] = 0
    params = [nn.Parameter(torch.from_numpy(value.copy())) for value in start]
    optimizer = lamb(params, 0.02)
    stepped(optimizer, params, range(1, 6))
    resumed = lamb(params, 0.02)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    stepped(resumed, params, range(6, 11))
    for param, wanted in zip(params, expected(start, 10, 0.02), strict=True):
        np.testing.assert_allclose(param.detach().numpy(), wanted, rtol=1e-12)


def test_norms_and_biases_are_not_decayed_and_nothing_happens_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    config = OptimizerConfig(kind="lamb", peak_lr=0.1, beta2=0.99, weight_decay=0.02)
    optimizer = build_optimizer(config, model)
    decays = [(group["weight_decay"], len(group["params"]), group["initial_lr"]) for group in optimizer.param_groups]
    assert decays == [(0.02, 1, 0.1), (0.0, 3, 0.1)]
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("wrong", [{"betas": (1.0, 0.9)}, {"eps": -1.0}, {"max_grad_norm": 0.0}, {"lr": -0.1}])
def test_settings_outside_their_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Lamb"):
        Lamb([nn.Parameter(torch.ones(2, 2))], **{"lr": 0.1, **wrong})
