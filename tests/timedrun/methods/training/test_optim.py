"""Optimizers against loops in NumPy, against torch's own where they coincide, and across a resume."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from timedrun.methods.training import optim
from timedrun.methods.training.optim import DecoupledAdamW, DecoupledSGD, Lamb, Muon, build_optimizer, newton_schulz
from timedrun.methods.training.schedule import Schedule
from timedrun.runner.config import OptimizerConfig

SHAPES = [(4, 3), (5,), (2, 3, 3, 3), (6, 2)]
FACTORS = [Schedule("cosine", 8, warmup_epochs=2).factor(step) for step in range(8)]  # from exactly 0
Arrays = list[np.ndarray[Any, Any]]


def gradients(step: int) -> Arrays:
    generator = np.random.default_rng(step)
    return [generator.standard_normal(shape) for shape in SHAPES]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.from_numpy(value)) for value in gradients(99)]


def take_steps(params, optimizer, steps=range(8), gradients_of=gradients):
    """Steps at the initial rates times FACTORS; parameter 1 gets its first gradient at step 2."""
    for step in steps:
        for index, (param, gradient) in enumerate(zip(params, gradients_of(step), strict=True)):
            param.grad = None if index == 1 and step < 2 else torch.from_numpy(gradient)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * FACTORS[step]
        optimizer.step()


def run(make: Callable[[Iterable[Tensor]], Optimizer]) -> Arrays:
    """Parameters in float64 after all steps."""
    params = parameters()
    take_steps(params, make(params))
    return [param.detach().numpy() for param in params]


@pytest.mark.parametrize(
    "momentum, dampening, nesterov, decay",
    [(0.875, 0.0, False, 5e-2), (0.9, 0.0, True, 1e-2), (0.9, 0.3, False, 0.0), (0.0, 0.0, False, 1e-1)],
)
def test_sgd_equals_torchs_after_a_decay_by_the_schedules_factor(momentum, dampening, nesterov, decay):
    def decayed(params: list[nn.Parameter]) -> Optimizer:
        def before_step(optimizer: Optimizer, *_: Any) -> None:
            (group,) = optimizer.param_groups
            for param in [param for param in params if param.grad is not None]:
                param.data.mul_(1 - decay * group["lr"] / group["initial_lr"])

        theirs = torch.optim.SGD(params, 0.5, momentum, dampening, nesterov=nesterov)
        theirs.register_step_pre_hook(before_step)
        return theirs

    actual = run(lambda p: DecoupledSGD(p, 0.5, momentum, dampening, nesterov, decay))
    for value, expected in zip(actual, run(decayed), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fused", [False, True])
def test_decoupled_adamw_equals_torchs_with_decay_over_the_initial_rate_also_fused(fused):
    config = OptimizerConfig(kind="decoupled_adamw", peak_lr=1e-2, beta2=0.98, epsilon=1e-6, weight_decay=1e-3)
    theirs = run(lambda p: torch.optim.AdamW(p, 1e-2, (0.9, 0.98), 1e-6, 1e-3 / 1e-2))
    model = nn.ParameterList(parameters())
    optimizer = build_optimizer(config, model, fused=fused)
    assert isinstance(optimizer, torch.optim.AdamW if fused else DecoupledAdamW)
    take_steps(list(model), optimizer)
    for expected, actual in zip(theirs, model, strict=True):
        np.testing.assert_allclose(actual.detach(), expected, rtol=1e-12)


def lamb(p: list[nn.Parameter]) -> Lamb:
    groups = [{"params": [p[0], *p[2:]]}, {"params": [p[1]], "weight_decay": 0.0}]
    return Lamb(groups, 0.02, (0.9, 0.99), 1e-6, 0.1)


def lamb_gradients(step: int) -> Arrays:
    scale = 0.01 if step % 2 else 3.0  # to a norm below and above 1
    return [scale * gradient for gradient in gradients(step)]


def reference_lamb(weights: Arrays) -> Arrays:
    """Algorithm 2 of arXiv 1904.00962 after clipping all gradients together to a norm of 1."""
    means, squares = ([np.zeros(shape) for shape in SHAPES] for _ in range(2))
    for step in range(8):
        grads = {index: grad for index, grad in enumerate(lamb_gradients(step)) if index != 1 or step >= 2}
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        for index, grad in grads.items():
            number, decay = (step - 1, 0.0) if index == 1 else (step + 1, 0.1)
            grad = grad / max(1.0, norm)
            means[index] = 0.9 * means[index] + 0.1 * grad
            squares[index] = 0.99 * squares[index] + 0.01 * grad**2
            update = means[index] / (1 - 0.9**number) / (np.sqrt(squares[index] / (1 - 0.99**number)) + 1e-6)
            update += decay * weights[index]
            size = np.linalg.norm(weights[index])
            ratio = size / np.linalg.norm(update) if decay > 0 and size > 0 else 1.0
            weights[index] = weights[index] - 0.02 * FACTORS[step] * ratio * update
    return weights


def test_lambs_steps_are_those_of_the_paper_also_from_weights_of_zero():
    start = gradients(99)
    start[3][:] = 0
    params = [nn.Parameter(torch.from_numpy(value.copy())) for value in start]
    take_steps(params, lamb(params), gradients_of=lamb_gradients)
    for param, expected in zip(params, reference_lamb(start), strict=True):
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-12)


EVERY_THIRD = {"rule": "adamw", "betas": (0.8, 0.95), "eps": 1e-8, "every": 3}

MAKERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda p: DecoupledSGD(p, 0.1, 0.9, nesterov=True, weight_decay=1e-2),
    "adamw": lambda p: DecoupledAdamW(p, 0.1),
    "lamb": lamb,
    "muon": lambda p: Muon([{"params": [p[0], *p[2:]]}, {"params": [p[1]], "rule": "sgd"}], 0.1, weight_decay=1e-2),
    "adamw of each third step": lambda p: Muon([{"params": p, **EVERY_THIRD}], 0.1, weight_decay=1e-2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_resuming_from_a_saved_state_is_bit_identical(name):
    whole = parameters()
    take_steps(whole, MAKERS[name](whole))
    for interrupted in range(9):
        first = parameters()
        optimizer = MAKERS[name](first)
        take_steps(first, optimizer, range(interrupted))
        second = [nn.Parameter(param.detach().clone()) for param in first]
        resumed = MAKERS[name](second)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        take_steps(second, resumed, range(interrupted, 8))
        assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True)), interrupted


@pytest.mark.parametrize("view", [False, True])
def test_adamw_of_each_third_step_takes_the_sum_of_three_gradients(view):
    ours, theirs = parameters(), parameters()
    optimizer = Muon([{"params": ours, **EVERY_THIRD}], 0.1)
    adamw = torch.optim.AdamW(theirs, 0.1, (0.8, 0.95), 1e-8, weight_decay=0.0)
    generator = torch.Generator().manual_seed(4)
    buckets = [param.detach().new_empty(param.numel() + 1) for param in ours]
    for step in range(7):
        before = [param.detach().clone() for param in ours]
        for bucket, mine, other in zip(buckets, ours, theirs, strict=True):
            gradient = torch.randn(mine.shape, generator=generator, dtype=mine.dtype)
            other.grad = gradient.clone() if step % 3 == 0 or other.grad is None else other.grad + gradient
            bucket[1:] = gradient.flatten()  # one memory for the gradients of all steps, as of a distributed run
            mine.grad = bucket[1:].view(mine.shape) if view else gradient
        optimizer.step()
        if step % 3 == 2:
            adamw.step()
        else:
            assert all(torch.equal(param, old) for param, old in zip(ours, before, strict=True))
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other)
    optimizer.zero_grad(set_to_none=False)
    with pytest.raises(RuntimeError, match="set_to_none=True") if not view else nullcontext():
        optimizer.step()


@pytest.mark.parametrize("shape", [(6, 6), (16, 4), (4, 16), (3, 8, 5)])
def test_newton_schulz_keeps_the_singular_vectors_and_evens_out_the_values(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    fine, coarse = newton_schulz(matrix), newton_schulz(matrix, bf16=True)  # up to its rounding
    assert coarse.dtype == torch.float32 and 0 < (coarse - fine).norm() < 0.03 * fine.norm()
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    result = left.mT @ newton_schulz(matrix) @ right.mT
    diagonal = result.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(result, torch.diag_embed(diagonal), atol=1e-4, rtol=0)  # no mixing of directions
    x = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5  # what the iteration does to each singular value
    torch.testing.assert_close(diagonal, x, atol=1e-4, rtol=1e-4)
    assert ((diagonal > 0.6) & (diagonal < 1.25)).all()


def test_wide_matrices_lose_no_small_direction_through_their_gram_matrices():
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.linalg.qr(torch.randn(size, size, generator=generator))[0] for size in (8, 64))
    matrix = left @ torch.diag(10.0 ** -torch.arange(8.0)) @ right[:8]  # singular values from 1 to 1e-7
    fast = newton_schulz(matrix, 5).double()
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    # Rounding of products of 8 terms, the smallest direction grown by 3.4445 a step; whose order is the processor's.
    torch.testing.assert_close(fast, x, atol=8 * 2**-23 * 3.4445**5, rtol=0)


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_moves_matrices_as_torchs_does_up_to_its_bfloat16(nesterov):
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
def test_muon_with_neuron_beta2_divides_rows_by_their_running_root_mean_square(shape):
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


VECTOR = [nn.Parameter(torch.ones(3))]
FLAT = (), (3,), (8, 1), (1, 8), (8, 1, 1), (0, 4), (4, 0)
PLAIN_SGD = OptimizerConfig(kind="decoupled_sgd", peak_lr=0.1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: DecoupledSGD(VECTOR, lr=-1.0), "lr must be 0 or more"),
        (lambda: DecoupledSGD(VECTOR, lr=0.1, nesterov=True), "Nesterov"),
        (lambda: DecoupledAdamW(VECTOR, betas=(0.9, 1.0)), "DecoupledAdamW: betas"),
        (lambda: Lamb(VECTOR, lr=0.1, eps=-1.0), "Lamb: eps must be 0 or more"),
        (lambda: Lamb(VECTOR, lr=0.1, max_grad_norm=0.0), "Lamb: max_grad_norm must be above 0"),
        *((lambda shape=shape: Muon([torch.ones(shape)], lr=0.1), f"first: {list(shape)}") for shape in FLAT),
        (lambda: Muon([{"params": VECTOR, "rule": "adam"}], lr=0.1), "'muon', 'sgd' or 'adamw', not 'adam'"),
        (lambda: build_optimizer(PLAIN_SGD, nn.Linear(2, 2), fused=True), "decoupled_sgd has no fused form"),
    ],
)
def test_settings_that_mean_nothing_are_refused(build, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        build()
    dense, sparse = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    dense.grad, sparse.grad = torch.ones(2, 2), torch.ones(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match="nothing was changed"):
        DecoupledSGD([{"params": [dense]}, {"params": [sparse]}], lr=0.1).step()
    assert torch.equal(dense, torch.ones(2, 2))


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 6), nn.Linear(6, 2)
    )


@pytest.mark.parametrize("decayed", [True, False])
@pytest.mark.parametrize("kind", ["sgd", "decoupled_sgd", "adamw", "decoupled_adamw", "radam", "muon", "lamb"])
def test_every_kind_trains_all_from_its_peak_rate_and_norms_and_biases_need_not_decay(kind, decayed):
    model, decayed = network(), decayed and kind != "lamb"
    model[0].weight.requires_grad_(False)
    config = OptimizerConfig(kind=kind, peak_lr=0.1, other_lr=0.2, weight_decay=0.5, decay_norms_and_biases=decayed)
    optimizer = build_optimizer(config, model)
    held = [param for group in optimizer.param_groups for param in group["params"]]
    assert {id(param) for param in held} == {id(param) for param in model.parameters()} - {id(model[0].weight)}
    rates = {group["initial_lr"] for group in optimizer.param_groups}
    assert rates == ({0.1, 0.2} if kind == "muon" else {0.1})
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    wanted = [decayed or param.dim() > 1 for param in held]
    assert [decays[id(param)] for param in held] == [0.5 * decays for decays in wanted]

    def moved() -> list[bool]:
        before = [param.detach().clone() for param in held]
        optimizer.step()
        return [not torch.equal(old, new) for old, new in zip(before, held, strict=True)]

    assert not any(moved())  # without gradients
    nn.init.constant_(model[1].bias, 0.5)
    for param in held:
        param.grad = torch.zeros_like(param)
    assert moved() == wanted
    model(torch.randn(2, 3, 4, 4)).square().sum().backward()
    assert sum(moved()) >= len(held) - 1


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_of_the_cifar10_speed_runs(nesterov):
    """Two steps by airbench94's rules (Jordan 2024): unit filters, own rates of the outer layers and of biases;
    its momentum is Nesterov's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6, 2, bias=False))
    config = OptimizerConfig(kind="muon", peak_lr=0.24, momentum=0.6, nesterov=nesterov, other_lr=0.5)
    config = replace(config, other_momentum=0.85, head_lr=0.02, unit_filters=True, newton_schulz_iterations=3)
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


def test_muon_takes_a_matrix_of_two_layers_once_and_none_of_an_embedding_or_of_one_row():
    first, tied, last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
    head, again, table = nn.Linear(8, 8), nn.Linear(8, 8), nn.Embedding(8, 8)
    again.weight, head.weight = tied.weight, table.weight
    model = nn.Sequential(table, first, tied, head, again, nn.Conv2d(8, 1, 3), nn.Linear(1, 8), last)
    hidden = optim.hidden_matrices(model)
    assert [id(weight) for weight in hidden] == [id(tied.weight)]
    build_optimizer(OptimizerConfig(kind="muon", peak_lr=0.1), model)
    model = network()  # whose matrix of zeros, and number, train
    model.factor = nn.Parameter(torch.ones(()))
    nn.init.zeros_(model[2].weight)
    rates = {"other_lr": 0.1, "head_lr": 0.1, "unit_filters": True}
    optimizer = build_optimizer(OptimizerConfig(kind="muon", peak_lr=0.1, **rates), model)
    assert [tuple(p.shape) for p in optimizer.param_groups[0]["params"]] == [(8, 4, 3, 3), (6, 8)]  # between the outer
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert model.factor != 1 and all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_dry_run_of_an_own_optimizer_imports_no_compiler():
    program = (
        "import sys, torch; from timedrun.methods.training import initialisation, optim\n"
        "with initialisation.on_meta_device():\n"
        "    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2))\n"
        "    initialisation.initialize(model, 'kaiming')\n"
        "optimizer = optim.DecoupledSGD(model.parameters(), 0.1); optimizer.step(); optimizer.zero_grad()\n"
        "optimizer.load_state_dict(optimizer.state_dict()); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
