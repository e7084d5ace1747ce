"""Optimizers against loops in NumPy, against torch's own where they coincide, and across a resume."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from timedrun.config import OptimizerConfig
from timedrun.training.optim import DecoupledAdamW, DecoupledSGD, Muon, build_optimizer, hidden_matrices, newton_schulz
from timedrun.training.schedule import Schedule

SHAPES = [(4, 3), (5,), (2, 3, 3, 3)]
FACTORS = [Schedule("cosine", 8, warmup_epochs=2).factor(step) for step in range(8)]  # from exactly 0


def gradients(step: int) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(step)
    return [generator.standard_normal(shape) for shape in SHAPES]


def run(
    make: Callable[[Iterable[Tensor]], Optimizer], *, lr: float, steps: Iterable[int] = range(8)
) -> list[np.ndarray[Any, Any]]:
    """Parameters in float64 after steps with the rates lr * FACTORS; parameter 1 gets its first gradient at step 2."""
    params = [nn.Parameter(torch.from_numpy(value)) for value in gradients(99)]
    optimizer = make(params)
    for step in steps:
        for index, (param, gradient) in enumerate(zip(params, gradients(step), strict=True)):
            param.grad = None if index == 1 and step < 2 else torch.from_numpy(gradient)
        for group in optimizer.param_groups:
            group["lr"] = lr * FACTORS[step]
        optimizer.step()
    return [param.detach().numpy() for param in params]


def reference_sgd(lr: float, momentum: float, dampening: float, nesterov: bool, decay: float) -> list[Any]:
    weights = [value.copy() for value in gradients(99)]
    buffers: list[Any] = [None] * len(weights)
    for step in range(8):
        rate = lr * FACTORS[step]
        for index, gradient in enumerate(gradients(step)):
            if index == 1 and step < 2:
                continue
            old = buffers[index]
            buffers[index] = gradient if old is None else momentum * old + (1 - dampening) * gradient
            direction = gradient + momentum * buffers[index] if nesterov else buffers[index]
            weights[index] = weights[index] * (1 - FACTORS[step] * decay) - rate * (direction if momentum else gradient)
    return weights


SGD_SETTINGS = [
    (0.875, 0.0, False, 5e-2),
    (0.9, 0.0, True, 1e-2),
    (0.9, 0.3, False, 0.0),
    (0.0, 0.0, False, 1e-1),
]


@pytest.mark.parametrize("momentum, dampening, nesterov, decay", SGD_SETTINGS)
def test_sgd_equals_a_loop_written_by_hand(momentum: float, dampening: float, nesterov: bool, decay: float) -> None:
    actual = run(lambda p: DecoupledSGD(p, 0.5, momentum, dampening, nesterov, decay), lr=0.5)
    for expected, value in zip(reference_sgd(0.5, momentum, dampening, nesterov, decay), actual, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-13)


def test_sgd_with_momentum_shrinks_like_coupled_sgd_at_the_mapped_decay() -> None:
    """NVIDIA's 3.0518e-5 at rate 2.048 and momentum 0.875 is 5e-4 decoupled."""
    mapped = 2.048 * 3.0518e-5 / (1 - 0.875)
    assert mapped == pytest.approx(5e-4, rel=1e-4)
    ours, theirs = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    decoupled = DecoupledSGD([ours], 2.048, 0.875, weight_decay=mapped)
    coupled = torch.optim.SGD([theirs], 2.048, 0.875, weight_decay=3.0518e-5)
    for _ in range(2000):
        ours.grad, theirs.grad = torch.zeros(1), torch.zeros(1)
        decoupled.step()
        coupled.step()
    assert ours.item() == pytest.approx(theirs.item(), rel=0.01)
    assert ours.item() == pytest.approx(np.exp(-1), rel=0.01)


def test_adamw_equals_torch_with_decay_over_the_initial_rate() -> None:
    ours = run(lambda p: DecoupledAdamW(p, 1e-2, (0.9, 0.98), 1e-6, 1e-3), lr=1e-2)
    theirs = run(lambda p: torch.optim.AdamW(p, 1e-2, (0.9, 0.98), 1e-6, 1e-3 / 1e-2), lr=1e-2)
    for expected, actual in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_the_fused_form_of_decoupled_adamw_takes_the_same_steps() -> None:
    config = OptimizerConfig(kind="decoupled_adamw", peak_lr=1e-2, beta2=0.98, epsilon=1e-6, weight_decay=1e-3)
    results = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).double()
        optimizer = build_optimizer(config, model, fused=fused)
        for step, factor in enumerate(FACTORS):
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            model(torch.full((2, 5), 0.1 * step, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
        assert isinstance(optimizer, torch.optim.AdamW) is fused
        results.append(model.weight.detach().numpy().copy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-12)


def test_an_optimizer_without_a_fused_form_is_refused_when_one_is_asked_for() -> None:
    with pytest.raises(ValueError, match="decoupled_sgd has no fused form"):
        build_optimizer(OptimizerConfig(kind="decoupled_sgd", peak_lr=0.1), nn.Linear(2, 2), fused=True)


@pytest.mark.parametrize("kind", [DecoupledSGD, DecoupledAdamW])
def test_a_rate_of_zero_changes_nothing_and_an_initial_rate_of_zero_decays_fully(kind: type[Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, weight_decay=0.5)  # type: ignore[call-arg]
    optimizer.param_groups[0]["lr"] = 0.0
    weight.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(weight, torch.ones(3))
    never = kind([weight], lr=0.0, weight_decay=0.5)  # type: ignore[call-arg]
    never.step()
    assert torch.equal(weight, torch.full((3,), 0.5))


def test_groups_keep_their_own_peak_through_torch_schedulers() -> None:
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = DecoupledSGD([{"params": [first]}, {"params": [second], "lr": 0.2}], lr=0.1, weight_decay=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    first.grad, second.grad = torch.zeros(1), torch.zeros(1)
    optimizer.step()
    assert first.item() == second.item() == pytest.approx(0.95)


MAKERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda p: DecoupledSGD(p, 0.1, 0.9, nesterov=True, weight_decay=1e-2),
    "adamw": lambda p: DecoupledAdamW(p, 0.1),
    "muon": lambda p: Muon([{"params": [p[0], p[2]]}, {"params": [p[1]], "rule": "sgd"}], lr=0.1, weight_decay=1e-2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_resuming_from_a_saved_state_is_bit_identical(name: str) -> None:
    def steps(params: list[nn.Parameter], optimizer: Optimizer, which: range) -> None:
        for step in which:
            for param, gradient in zip(params, gradients(step), strict=True):
                param.grad = torch.from_numpy(gradient)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * FACTORS[step]
            optimizer.step()

    whole = [nn.Parameter(torch.from_numpy(value)) for value in gradients(99)]
    steps(whole, MAKERS[name](whole), range(8))
    for interrupted in range(9):
        first = [nn.Parameter(torch.from_numpy(value)) for value in gradients(99)]
        optimizer = MAKERS[name](first)
        steps(first, optimizer, range(interrupted))
        state = copy.deepcopy(optimizer.state_dict())
        second = [nn.Parameter(param.detach().clone()) for param in first]
        resumed = MAKERS[name](second)
        resumed.load_state_dict(state)
        steps(second, resumed, range(interrupted, 8))
        assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True)), interrupted


@pytest.mark.parametrize("shape", [(6, 6), (16, 4), (4, 16), (3, 8, 5)])
def test_newton_schulz_keeps_the_singular_vectors_and_evens_out_the_values(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    result = left.mT @ newton_schulz(matrix) @ right.mT
    diagonal = result.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(result, torch.diag_embed(diagonal), atol=1e-4, rtol=0)  # no mixing of directions
    x = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5  # what the iteration does to each singular value
    torch.testing.assert_close(diagonal, x, atol=1e-4, rtol=1e-4)
    assert ((diagonal > 0.6) & (diagonal < 1.25)).all()


def test_wide_matrices_lose_no_small_direction_through_their_gram_matrices() -> None:
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.linalg.qr(torch.randn(size, size, generator=generator))[0] for size in (8, 64))
    matrix = left @ torch.diag(10.0 ** -torch.arange(8.0)) @ right[:8]  # singular values from 1 to 1e-7
    fast = newton_schulz(matrix, 5).double()
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    torch.testing.assert_close(fast, x, atol=2e-4, rtol=0)


def test_muon_steps_along_the_orthogonalised_nesterov_direction() -> None:
    params = [nn.Parameter(torch.from_numpy(value).float()) for value in gradients(99)]
    before = [param.detach().clone() for param in params]
    optimizer = MAKERS["muon"](params)
    for param, gradient in zip(params, gradients(0), strict=True):
        param.grad = torch.from_numpy(gradient).float()
    optimizer.step()
    for index, (rows, cols) in ((0, (4, 3)), (2, (2, 27))):
        direction = 1.95 * torch.from_numpy(gradients(0)[index]).float().reshape(rows, cols)
        step = newton_schulz(direction) * max(1, rows / cols) ** 0.5
        torch.testing.assert_close(params[index], before[index] * 0.99 - 0.1 * step.view(params[index].shape))
    vector = torch.from_numpy(gradients(0)[1]).float()
    torch.testing.assert_close(params[1], before[1] * 0.99 - 0.1 * 1.95 * vector)


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_moves_matrices_as_torchs_does_up_to_its_bfloat16(nesterov: bool) -> None:
    start = [torch.randn(shape, generator=torch.Generator().manual_seed(9)) for shape in ((24, 8), (8, 24), (16, 16))]
    ended = []
    for make in (
        lambda p: Muon(p, 0.02, 0.9, nesterov, weight_decay=0.002),
        lambda p: torch.optim.Muon(p, 0.02, momentum=0.9, nesterov=nesterov, weight_decay=0.002 / 0.02),
    ):
        params = [nn.Parameter(value.clone()) for value in start]
        optimizer = make(params)
        for step, factor in enumerate(FACTORS):
            optimizer.param_groups[0]["lr"] = 0.02 * factor
            for param in params:
                param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        ended.append(params)
    for before, ours, theirs in zip(start, *ended, strict=True):
        assert (ours - theirs).norm() < 0.01 * (theirs - before).norm()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 2, 3)])
def test_muon_with_neuron_beta2_divides_rows_by_their_running_root_mean_square(shape: tuple[int, ...]) -> None:
    plain, even = (nn.Parameter(torch.zeros(shape)) for _ in range(2))
    muon, normuon = Muon([plain], lr=0.1), Muon([even], lr=0.1, neuron_beta2=0.9)
    squares = np.zeros((shape[0], 1))
    for step in range(4):
        before = plain.detach().clone(), even.detach().clone()
        for parameter in (plain, even):
            parameter.grad = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        muon.step()
        normuon.step()
        moved = (plain - before[0]).detach().reshape(shape[0], -1).double().numpy() / -0.1
        squares = 0.9 * squares + 0.1 * (moved**2).mean(1, keepdims=True)
        expected = moved / np.sqrt(squares)
        expected *= np.linalg.norm(moved) / np.linalg.norm(expected)
        found = (even - before[1]).detach().reshape(shape[0], -1).double().numpy() / -0.1
        np.testing.assert_allclose(found, expected, atol=1e-5)
        if not step:  # without a past all rows are equally large
            sizes = np.linalg.norm(found, axis=1)
            np.testing.assert_allclose(sizes, sizes[0], rtol=1e-4)


def test_muon_can_hold_filters_at_unit_norm() -> None:
    weight = nn.Parameter(torch.randn(8, 4, 3, 3) * 5)
    optimizer = Muon([weight], lr=0.0, unit_filters=True)
    weight.grad = torch.randn(8, 4, 3, 3)
    optimizer.step()
    assert weight.norm().item() == pytest.approx(8**0.5, rel=1e-5)


def test_settings_that_mean_nothing_are_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="lr must be 0 or more"):
        DecoupledSGD([weight], lr=-1.0)
    with pytest.raises(ValueError, match="Nesterov"):
        DecoupledSGD([weight], lr=0.1, nesterov=True)
    with pytest.raises(ValueError, match="betas"):
        DecoupledAdamW([weight], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match=r"not matrices \(first: \[3\]\)"):
        Muon([weight], lr=0.1)
    with pytest.raises(ValueError, match="'muon', 'sgd' or 'adamw', not 'adam'"):
        Muon([{"params": [weight], "rule": "adam"}], lr=0.1)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 6), nn.Linear(6, 2)
    )


@pytest.mark.parametrize("kind", ["decoupled_sgd", "sgd", "decoupled_adamw", "adamw", "muon"])
def test_every_configured_kind_trains_all_trainable_parameters_from_its_peak_rate(kind: Any) -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    config = OptimizerConfig(kind=kind, peak_lr=0.1, other_lr=0.2, weight_decay=1e-3)
    optimizer = build_optimizer(config, model)
    held = [param for group in optimizer.param_groups for param in group["params"]]
    assert {id(param) for param in held} == {id(param) for param in model.parameters()} - {id(model[0].weight)}
    assert [group["initial_lr"] for group in optimizer.param_groups] == ([0.1, 0.2] if kind == "muon" else [0.1])
    assert all(group["weight_decay"] == 1e-3 for group in optimizer.param_groups)
    before = [param.detach().clone() for param in held]
    model(torch.randn(2, 3, 4, 4)).square().sum().backward()
    optimizer.step()
    assert sum(not torch.equal(old, new) for old, new in zip(before, held, strict=True)) >= len(held) - 1


def test_muon_takes_the_layers_between_first_and_last() -> None:
    model = network()
    assert [tuple(weight.shape) for weight in hidden_matrices(model)] == [(8, 4, 3, 3), (6, 8)]


def test_a_sparse_gradient_is_refused_before_any_group_is_changed() -> None:
    dense, sparse = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    dense.grad, sparse.grad = torch.ones(2, 2), torch.ones(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match="nothing was changed"):
        DecoupledSGD([{"params": [dense]}, {"params": [sparse]}], lr=0.1).step()
    assert torch.equal(dense, torch.ones(2, 2))


@pytest.mark.parametrize("kind", ["sgd", "decoupled_sgd", "adamw", "decoupled_adamw", "lamb", "muon"])
def test_norms_and_biases_need_not_decay(kind: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    config = OptimizerConfig(kind=kind, peak_lr=0.1, other_lr=0.1, weight_decay=0.5, decay_norms_and_biases=False)
    optimizer = build_optimizer(config, model)
    decayed = {id(p): group["weight_decay"] > 0 for group in optimizer.param_groups for p in group["params"]}
    assert [decayed[id(p)] for p in model.parameters()] == [p.dim() > 1 for p in model.parameters()]
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert [p.dim() > 1 for p in model.parameters()] == moved


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_of_the_cifar10_speed_runs(nesterov: bool) -> None:
    """Two steps by airbench94's rules (Jordan 2024): unit filters, own rates of the outer layers and of biases;
    its momentum is Nesterov's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6, 2, bias=False))
    config = OptimizerConfig(
        kind="muon",
        peak_lr=0.24,
        momentum=0.6,
        nesterov=nesterov,
        other_lr=0.5,
        other_momentum=0.85,
        head_lr=0.02,
        unit_filters=True,
        newton_schulz_iterations=3,
    )
    optimizer = build_optimizer(config, model)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    grads = [{name: torch.randn_like(value) for name, value in start.items()} for _ in range(2)]
    for step in grads:
        for name, parameter in model.named_parameters():
            parameter.grad = step[name].clone()
        optimizer.step()
    for name, parameter in model.named_parameters():
        filters, head = name == "1.weight", name in ("0.weight", "3.weight")
        momentum, rate = (0.6, 0.24) if filters else (0.85, 0.02 if head else 0.5)
        value, buffer = start[name], torch.zeros_like(start[name])
        for step in grads:
            buffer = momentum * buffer + step[name]
            move = step[name] + momentum * buffer if nesterov else buffer
            if filters:
                value = value * len(value) ** 0.5 / value.norm()
                move = newton_schulz(move.view(6, 36), 3).view(move.shape)
            value = value - rate * move
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-5, atol=1e-6)
