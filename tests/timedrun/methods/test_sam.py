"""SAM: the perturbation, the step from the original weights, and the interval."""

import copy

import pytest
import torch
from torch import Tensor, nn

from timedrun.methods import SAM, stack
from timedrun.methods.method import Position


def quadratic(model: nn.Linear) -> Tensor:
    """Return 0.5 * w A w for A = diag(1, 4), whose gradient is A w."""
    return 0.5 * (model.weight.double()[0] ** 2 * torch.tensor([1.0, 4.0])).sum()


def test_the_gradient_is_that_of_the_perturbed_weights_and_the_weights_come_back() -> None:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 1.0]]))
    before, reductions = model.weight.detach().clone(), []

    def compute(reduced: bool) -> Tensor:
        reductions.append(reduced)
        loss = quadratic(model)
        loss.backward()
        return loss.detach()

    loss = SAM(rho=0.5).hooks().backward(compute, model, Position(0, 0.0))
    # g = A w = (3, 4), |g| = 5, e = 0.5 g / 5 = (0.3, 0.4), A (w + e) = (3.3, 5.6)
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad, torch.tensor([[3.3, 5.6]]))
    assert torch.equal(model.weight.detach(), before)
    assert loss == 0.5 * (9 + 4) and reductions == [False, True]


def test_steps_between_are_ordinary() -> None:
    speed, model = stack(SAM(interval=3)), nn.Linear(2, 1)
    passes: list[int] = []
    for step in range(6):
        calls: list[bool] = []

        def compute(reduced: bool, calls: list[bool] = calls) -> Tensor:
            calls.append(reduced)
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            return loss.detach()

        speed.before_step(model, step, step / 6)
        speed.backward(compute, model)
        speed.after_step(model)
        passes.append(len(calls))
    assert passes == [1, 1, 2, 1, 1, 2]
    assert speed.report == ["sam: 2 steps with the gradient of perturbed weights"]


def test_a_first_gradient_that_overflows_perturbs_nothing_so_that_the_second_overflows_alike() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before, inputs, losses = copy.deepcopy(model[0].state_dict()), torch.randn(8, 2), []

    def compute(reduced: bool) -> Tensor:
        loss = (model(inputs) ** 3).sum() * 100
        torch.autograd.backward(loss, torch.tensor(3e38))  # as a loss scale that is too large
        losses.append(loss.detach())
        return losses[-1]

    SAM().hooks().backward(compute, model, Position(0, 0.0))
    assert losses[0] == losses[1]
    assert all(torch.equal(value, model[0].state_dict()[name]) for name, value in before.items())
    assert model[0].weight.grad is not None and not model[0].weight.grad.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in model.buffers())


def test_an_error_in_the_second_pass_leaves_the_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.detach().clone()

    def compute(reduced: bool) -> Tensor:
        if reduced:
            raise RuntimeError("out of memory")
        loss = model.weight.sum()
        loss.backward()
        return loss.detach()

    with pytest.raises(RuntimeError, match="out of memory"):
        SAM().hooks().backward(compute, model, Position(0, 0.0))
    assert torch.equal(model.weight.detach(), before)
