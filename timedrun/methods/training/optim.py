"""Optimizers whose weight decay follows the schedule but not the size of the learning rate, Muon, and LAMB."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import unwrap
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

ParamsT = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Group = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Name an optimizer and its hyper-parameters; the learning rate of a step is `peak_lr` times the schedule's factor.

    Examples:
        >>> config = OptimizerConfig(kind="decoupled_sgd", peak_lr=2.0, momentum=0.875, weight_decay=5e-4)
        >>> type(build_optimizer(config, nn.Linear(4, 2))).__name__
        'DecoupledSGD'
    """

    kind: Literal["decoupled_sgd", "sgd", "decoupled_adamw", "adamw", "radam", "lamb", "muon"]
    peak_lr: float
    momentum: float = 0.9
    """adamw kinds, radam and lamb: beta 1."""
    nesterov: bool = False
    """sgd kinds and muon: step along the gradient plus `momentum` times the momentum, as Nesterov's look-ahead does."""
    weight_decay: float = 0.0
    """Decoupled kinds: shrinkage per step at peak rate. Others: as in torch."""
    decay_norms_and_biases: bool = True
    """Decay the parameters of one dimension, too: scales and biases of norms, biases of layers. lamb never does."""
    beta2: float = 0.999
    epsilon: float = 1e-8
    other_lr: float = 0.0
    """muon: peak rate of the parameters that are not hidden matrices; the benchmark chooses their optimizer."""
    other_momentum: float = 0.0
    """muon: momentum of those parameters under SGD, in BERT Adam's beta 1; 0: `momentum`."""
    head_lr: float = 0.0
    """muon: peak rate of the first and the last layer's weights under SGD, if trained; 0: `other_lr`."""
    unit_filters: bool = False
    """muon: scale each hidden matrix to the Frobenius norm sqrt(rows) before every step."""
    newton_schulz_iterations: int = 5
    """muon: fewer are cheaper and orthogonalize less."""
    neuron_beta2: float = 0.0
    """muon: divide each row of a step by the root of its mean square, averaged over steps with this factor, and keep
    the step's norm (NorMuon, arXiv 2510.05491, where it is 0.95); 0: leave the rows as they are."""


class GroupedOptimizer(Optimizer, ABC):
    """Share what the optimizers below have in common: the peak learning rate of a group, iteration over groups, a decay
    that follows the schedule alone, the step of SGD and the means of Adam.

    Examples:
        >>> optimizer = DecoupledSGD(nn.Linear(4, 2).parameters(), lr=0.5)
        >>> isinstance(optimizer, GroupedOptimizer), optimizer.param_groups[0]["initial_lr"]
        (True, 0.5)
    """

    def __init__(self, params: ParamsT, defaults: Group) -> None:
        for name in ("lr", "weight_decay", "momentum", "eps"):
            if not defaults.get(name, 0.0) >= 0:
                raise ValueError(f"{type(self).__name__}: {name} must be 0 or more, not {defaults[name]}")
        if not all(0 <= beta < 1 for beta in defaults.get("betas", ())):
            raise ValueError(f"{type(self).__name__}: betas must be in [0, 1), not {defaults['betas']}")
        super().__init__(params, {**defaults, "foreach": True})

    # torch's decorator, which leaves these out of traced code, would import the compiler for it, for 2 s
    zero_grad, state_dict = unwrap(Optimizer.zero_grad), unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its learning rate now is its peak ("initial_lr"), which schedules then scale in "lr"."""
        unwrap(Optimizer.add_param_group)(self, param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; parameters without a gradient are unchanged."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        trained = [[param for param in group["params"] if param.grad is not None] for group in self.param_groups]
        grads = [[param.grad for param in params] for params in trained]
        if any(grad.is_sparse for of_group in grads for grad in of_group):
            raise RuntimeError(f"{type(self).__name__} does not take sparse gradients; nothing was changed")
        if any(trained):
            self._begin([grad for of_group in grads for grad in of_group])
        for group, params, of_group in zip(self.param_groups, trained, grads, strict=True):
            if params:
                self._update(group, params, of_group)
        return loss

    def _begin(self, grads: list[Tensor]) -> None:
        """Begin a step with the gradients of all groups, at least one."""

    @abstractmethod
    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """One step of the parameters of `group` that have a gradient."""

    def _moments(
        self, group: Group, params: list[Tensor], grads: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[int]]:
        """Update the means of gradients and of their squares by the group's betas; return them and the steps taken."""
        beta1, beta2 = group["betas"]
        states = [self.state[param] for param in params]
        for param, state in zip(params, states, strict=True):
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}
            state["step"] += 1
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        return means, squares, [state["step"] for state in states]

    def _decay(self, group: Group, params: list[Tensor]) -> None:
        """w <- w * (1 - (lr / initial lr) * weight decay); an initial rate of 0 counts as a ratio of 1."""
        if group["weight_decay"]:
            ratio = group["lr"] / group["initial_lr"] if group["initial_lr"] else 1.0
            torch._foreach_mul_(params, 1 - ratio * group["weight_decay"])

    def _sgd(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Decay, then w <- w - lr * d, with d the gradient, its momentum, or Nesterov's look-ahead."""
        directions = self._directions(group, params, grads)
        self._decay(group, params)
        torch._foreach_add_(params, directions, alpha=-group["lr"])

    def _directions(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """b <- momentum * b + (1 - dampening) * g, with b = g at the first step; b, or g + momentum * b (Nesterov)."""
        momentum = group["momentum"]
        if not momentum:
            return grads
        started = [index for index, param in enumerate(params) if "momentum_buffer" in self.state[param]]
        for index in set(range(len(params))).difference(started):
            self.state[params[index]]["momentum_buffer"] = grads[index].detach().clone()
        buffers: list[Tensor] = [self.state[param]["momentum_buffer"] for param in params]
        if started:
            running = [buffers[index] for index in started]
            torch._foreach_mul_(running, momentum)
            torch._foreach_add_(running, [grads[index] for index in started], alpha=1 - group["dampening"])
        return list(torch._foreach_add(grads, buffers, alpha=momentum)) if group["nesterov"] else buffers


class Lamb(GroupedOptimizer):
    """Implement LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2) in the form of NVIDIA's apex, with which MLPerf's
    BERT was trained.

    All gradients together are first scaled down to a norm of at most `max_grad_norm`. With bias-corrected moments, the
    step of a tensor w is u = m / (sqrt(v) + eps) + weight_decay * w, and w <- w - lr * (|w| / |u|) * u. The ratio is 1
    for tensors of norm 0 and for groups without weight decay (layer norms and biases).

    Examples:
        >>> model = nn.Linear(4, 2)
        >>> optimizer = Lamb(model.parameters(), lr=4e-4, weight_decay=0.01)
        >>> model(torch.rand(8, 4)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError(f"Lamb: max_grad_norm must be above 0, not {max_grad_norm}")
        defaults: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "max_grad_norm": max_grad_norm})

    def _begin(self, grads: list[Tensor]) -> None:
        self._excess = (torch.nn.utils.get_total_norm(grads) / self.defaults["max_grad_norm"]).clamp(min=1.0)

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        means, squares, taken = self._moments(group, params, list(torch._foreach_div(grads, self._excess)))
        updates = torch._foreach_div(means, [1 - beta1**step for step in taken])
        divisors = torch._foreach_div(squares, [1 - beta2**step for step in taken])
        torch._foreach_sqrt_(divisors)
        torch._foreach_add_(divisors, group["eps"])
        torch._foreach_div_(updates, divisors)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            weights, steps = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, updates))
            ratios = torch.where((weights > 0) & (steps > 0), weights / steps, 1.0)
            torch._foreach_mul_(updates, list(ratios))
        torch._foreach_add_(params, updates, alpha=-group["lr"])


class DecoupledSGD(GroupedOptimizer):
    """Implement SGD with momentum and a decay of `weight_decay` a step at the peak rate, scaled by the schedule alone.

    Decay enters neither the gradient nor the momentum. In the steady state torch.optim.SGD's coupled decay c is
    `weight_decay` = lr * c / (1 - momentum). The rate given here is the peak; set group["lr"] before each step. Source:
    Loshchilov and Hutter (arXiv 1711.05101), in the form of MosaicML Composer's DecoupledSGDW.

    Examples:
        >>> weight = nn.Parameter(torch.ones(1))
        >>> optimizer = DecoupledSGD([weight], lr=0.5, weight_decay=0.1)
        >>> weight.grad = torch.zeros(1)
        >>> optimizer.step()
        >>> weight.detach()
        tensor([0.9000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("DecoupledSGD: Nesterov needs a momentum above 0 and no dampening")
        defaults: Group = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        self._sgd(group, params, grads)


class DecoupledAdamW(GroupedOptimizer):
    """Implement AdamW with the same decay: equal to torch.optim.AdamW with its weight decay at `weight_decay` / lr.

    Defaults are those of MosaicML Composer 0.10 (betas 0.9 and 0.95, weight decay 1e-5).

    Examples:
        >>> model = nn.Linear(4, 2)
        >>> optimizer = DecoupledAdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
        >>> model(torch.rand(8, 4)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 1e-5,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        means, squares, taken = self._moments(group, params, grads)
        self._decay(group, params)
        beta1, beta2 = group["betas"]
        steps = [-group["lr"] / (1 - beta1**step) for step in taken]
        roots = [math.sqrt(1 - beta2**step) for step in taken]
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_div_(divisors, roots)
        torch._foreach_add_(divisors, group["eps"])
        torch._foreach_addcdiv_(params, means, divisors, steps)


def newton_schulz(matrices: Tensor, iterations: int = 5, *, bf16: bool = False) -> Tensor:
    """Orthogonalize matrices [..., rows, cols] approximately: singular values are pushed to about 0.7 .. 1.2.

    This is the quintic iteration of Jordan et al. (Muon, 2024), after scaling by the Frobenius norm, in bfloat16 on
    CUDA and with `bf16`. In float32, matrices at least twice as wide as high are iterated through their Gram matrices,
    which takes fewer operations.

    Examples:
        >>> singular = torch.linalg.svdvals(newton_schulz(torch.diag(torch.tensor([3.0, 2.0, 1.0]))))
        >>> bool((0.6 < singular).all() and (singular < 1.3).all())
        True
    """
    x = matrices.to(torch.bfloat16 if matrices.is_cuda or bf16 else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT.contiguous() if tall else x  # products of transposed bfloat16 take twice as long on a CPU
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).reshape(-1, *x.shape[-2:])
    through_gram = x.dtype == torch.float32 and x.shape[-1] >= 2 * x.shape[-2]
    x = _iterate_gram(x, iterations) if through_gram else _iterate(x, iterations)
    return (x.mT if tall else x).reshape(matrices.shape).to(matrices.dtype)


QUINTIC = (3.4445, -4.7750, 2.0315)


def _iterate(x: Tensor, iterations: int) -> Tensor:
    """x <- a x + (b g + c g g) x with g = x x^T; the sums are made inside the products."""
    a, b, c = QUINTIC
    for _ in range(iterations):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _iterate_gram(x: Tensor, iterations: int) -> Tensor:
    """Compute the same product: each step is x <- p x with p = a + b g + c g g, and so g <- p g p.

    g and p commute, so x is multiplied once, by the product of all p. bfloat16 is too coarse for it: small singular
    values enter g squared.
    """
    a, b, c = QUINTIC
    gram = torch.bmm(x, x.mT)
    product: Tensor | None = None
    for step in range(iterations):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else torch.bmm(factor, product)
        if step + 1 < iterations:
            gram = torch.bmm(factor, torch.bmm(gram, factor))
    return x if product is None else torch.bmm(product, x)


class Muon(GroupedOptimizer):
    """Implement Muon, momentum whose direction is orthogonalised, for hidden matrices; other groups have `"rule":
    "sgd"` or `"adamw"`.

    Filters are matrices [out, everything else]. The step is lr * sqrt(max(1, rows / cols)) * newton_schulz(d).

    Embeddings, the last layer and vectors belong in a group of another rule. {"params": rest, "rule": "sgd", "lr": 0.1}
    takes DecoupledSGD's step, and {"params": rest, "rule": "adamw", "lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8}
    DecoupledAdamW's. With "every": 2 the step is taken every second time, by the sum of two gradients.

    For matrices these are the steps of torch.optim.Muon with its weight decay at `weight_decay` / lr, to 0.4 % of a
    move on a CPU, where torch iterates in bfloat16. torch's takes no filters, has no groups of other rules, and makes
    each matrix's products alone. Source: Jordan et al. 2024.

    Args:
        unit_filters: scale each weight to Frobenius norm sqrt(rows) first, as the CIFAR-10 runs of airbench do.
        neuron_beta2: make the rows of a step equally large (NorMuon, Li et al. 2025, arXiv 2510.05491, 0.95 there). The
            step keeps its norm, as in its authors' code; the paper sets it to 0.2 sqrt(rows cols).
        bf16: iterate in bfloat16 on a CPU, too.

    Raises ValueError for a vector in a "muon" group, which a matrix of one row or column also is, or an empty one.

    Examples:
        >>> net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> hidden = hidden_matrices(net)
        >>> rest = [p for p in net.parameters() if all(p is not matrix for matrix in hidden)]
        >>> optimizer = Muon([{"params": hidden}, {"params": rest, "rule": "sgd", "lr": 0.1}], lr=0.02)
        >>> net(torch.rand(4, 8)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        *,
        iterations: int = 5,
        unit_filters: bool = False,
        neuron_beta2: float = 0.0,
        bf16: bool = False,
    ) -> None:
        defaults: Group = {"lr": lr, "momentum": momentum, "dampening": 0.0, "nesterov": nesterov}
        defaults |= {"weight_decay": weight_decay, "iterations": iterations, "unit_filters": unit_filters}
        defaults |= {"neuron_beta2": neuron_beta2, "bf16": bf16}
        super().__init__(params, {**defaults, "rule": "muon"})

    def add_param_group(self, param_group: Group) -> None:
        """Add a group with the rule "muon" (matrices and filters only), "sgd" or "adamw" (with "betas" and "eps")."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["rule"] not in ("muon", "sgd", "adamw"):
            raise ValueError(f"Muon: a group's rule is 'muon', 'sgd' or 'adamw', not {group['rule']!r}")
        if group["rule"] == "adamw" and (lacking := {"betas", "eps"} - group.keys()):
            raise ValueError(f"Muon: a group with the rule 'adamw' needs {' and '.join(sorted(lacking))} too")
        if group["rule"] == "muon" and (flat := [p for p in group["params"] if not _is_matrix(p)]):
            raise ValueError(
                f"Muon: {len(flat)} parameters of a 'muon' group are not matrices (first: {list(flat[0].shape)}); "
                "put them in a group with 'rule': 'sgd'"
            )

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        if group["rule"] == "sgd":
            self._sgd(group, params, grads)
            return
        if group["rule"] == "adamw":
            if sums := self._sums(group, params, grads):
                self._adamw(group, params, sums)
            return
        directions = self._directions(group, params, grads)
        self._decay(group, params)
        # Matrices of one shape go through the iteration together: few large products instead of many small ones.
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, param in enumerate(params):
            alike[len(param), param[0].numel()].append(index)
        for (rows, cols), indices in alike.items():
            stacked = torch.stack([directions[index].reshape(rows, cols) for index in indices])
            updates = newton_schulz(stacked, group["iterations"], bf16=group["bf16"]) * math.sqrt(max(1.0, rows / cols))
            if group["neuron_beta2"]:
                updates = self._normalise_neurons([params[index] for index in indices], updates, group["neuron_beta2"])
            for index, update in zip(indices, updates, strict=True):
                if group["unit_filters"]:
                    scale = math.sqrt(rows) / params[index].norm()
                    params[index].mul_(scale.nan_to_num(nan=math.nan, posinf=1.0))  # a matrix of zeros stays
                params[index].add_(update.view(params[index].shape), alpha=-group["lr"])

    def _sums(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """Return the sums of the gradients since the last update, or nothing in a step without one.

        A gradient waits as it is, without a copy, unless it is a view, as of a bucket of DistributedDataParallel, which
        the next step fills again.
        """
        group["waited"] = (group.get("waited", 0) + 1) % group.get("every", 1)
        waiting = [self.state[param].pop("waiting", None) for param in params]
        if any(before is grad for before, grad in zip(waiting, grads, strict=True)):
            raise RuntimeError(f"Muon: 'every' {group['every']} keeps gradients; call zero_grad(set_to_none=True)")
        sums = [grad if before is None else before.add_(grad) for grad, before in zip(grads, waiting, strict=True)]
        if not group["waited"]:
            return sums
        for param, total in zip(params, sums, strict=True):
            self.state[param]["waiting"] = total.clone() if total._is_view() else total
        return []

    def _adamw(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Take the step in torch's kernel, one pass over memory in place of ten: large embeddings are in this group."""
        self._decay(group, params)
        for param in params:
            if "step" not in self.state[param]:
                mean, square = torch.zeros_like(param), torch.zeros_like(param)
                self.state[param] |= {"step": torch.zeros((), device=param.device), "exp_avg": mean}
                self.state[param]["exp_avg_sq"] = square
        means, squares, steps = (
            [self.state[param][name] for param in params] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        settings: Group = {"fused": True, "amsgrad": False, "maximize": False, "weight_decay": 0.0}
        beta1, beta2 = group["betas"]
        settings |= {"lr": group["lr"], "eps": group["eps"], "beta1": beta1, "beta2": beta2}
        adamw(params, grads, means, squares, [], steps, **settings)

    def _normalise_neurons(self, params: list[Tensor], updates: Tensor, beta2: float) -> Tensor:
        """Divide each row of `updates` (n, rows, cols) by the root of its running mean square, s <- beta2 s + (1 -
        beta2) mean(row^2) from s = 0 on, and rescale each matrix to the norm that it had."""
        for param in params:
            if "neuron_squares" not in self.state[param]:
                self.state[param]["neuron_squares"] = updates.new_zeros(updates.shape[1], 1)
        squares: list[Tensor] = [self.state[param]["neuron_squares"] for param in params]
        torch._foreach_lerp_(squares, list(updates.square().mean(-1, keepdim=True)), 1 - beta2)
        even = updates / (torch.stack(squares).sqrt() + 1e-10)
        norm: Tensor = even.norm(dim=(-2, -1), keepdim=True) + 1e-10
        ratio: Tensor = updates.norm(dim=(-2, -1), keepdim=True) / norm
        return even * ratio


def _is_matrix(weight: Tensor) -> bool:
    """Return True if `weight`, as a matrix [out, everything else], has two rows and two columns or more."""
    return weight.dim() > 1 and len(weight) > 1 and weight.numel() > len(weight)


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Return what Muon is meant for: the trainable weights of every Conv2d and Linear, each once, but those of the
    first and the last such layer, of embeddings, and of one row or column.

    Examples:
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2))
        >>> [list(weight.shape) for weight in hidden_matrices(net)]
        [[16, 16]]
    """
    layers = _layers(model)
    embeddings = [part.weight for part in model.modules() if isinstance(part, nn.Embedding)]
    outer = {id(weight) for weight in (*layers[:1], *layers[-1:], *embeddings)}
    inner = {id(weight): weight for weight in layers if weight.requires_grad and id(weight) not in outer}
    return [weight for weight in inner.values() if _is_matrix(weight)]


def _layers(model: nn.Module) -> list[Tensor]:
    """Return the weight of every Conv2d and Linear, the classifier's last."""
    return [module.weight for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]


def _groups(params: list[Tensor], *, decay_vectors: bool = True) -> list[Group]:
    """Return `params` as one group; with `decay_vectors` False those of one dimension as a second, without decay."""
    whole: list[Group] = [{"params": params}]
    matrices, vectors = ([param for param in params if (param.dim() > 1) is wanted] for wanted in (True, False))
    apart: list[Group] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in (whole if decay_vectors else apart) if group["params"]]


def build_optimizer(config: OptimizerConfig, model: nn.Module, *, fused: bool = False) -> Optimizer:
    """Build the optimizer that `config` names, over trainable parameters; a group keeps its peak rate as "initial_lr".

    Call it after the methods' surgery, with the model on its device. Adam's first beta is `config.momentum`. `fused`
    takes torch's one-kernel AdamW for decoupled_adamw, to which it is equal up to rounding. adamw always is that; the
    others raise ValueError.

    Examples:
        >>> config = OptimizerConfig(kind="lamb", peak_lr=4e-4, weight_decay=0.01)
        >>> optimizer = build_optimizer(config, nn.Linear(4, 2))
        >>> [group["weight_decay"] for group in optimizer.param_groups]  # none for the bias
        [0.01, 0.0]
    """
    if fused and config.kind not in ("adamw", "decoupled_adamw"):
        raise ValueError(f"optimizer {config.kind} has no fused form; only adamw and decoupled_adamw do")
    trainable: list[Tensor] = [param for param in model.parameters() if param.requires_grad]
    params = _groups(trainable, decay_vectors=config.decay_norms_and_biases)
    lr, momentum, decay = config.peak_lr, config.momentum, config.weight_decay
    betas = (momentum, config.beta2)
    on_cuda = all(param.is_cuda for param in trainable)
    real = not any(param.is_meta for param in trainable)
    optimizer: Optimizer
    if config.kind == "decoupled_sgd":
        optimizer = DecoupledSGD(params, lr, momentum, nesterov=config.nesterov, weight_decay=decay)
    elif config.kind == "sgd":
        optimizer = torch.optim.SGD(params, lr, momentum, nesterov=config.nesterov, weight_decay=decay, fused=on_cuda)
    elif config.kind == "decoupled_adamw" and fused and lr > 0:
        optimizer = torch.optim.AdamW(params, lr, betas, config.epsilon, decay / lr, fused=True)
    elif config.kind == "decoupled_adamw":
        optimizer = DecoupledAdamW(params, lr, betas, config.epsilon, decay)
    elif config.kind == "lamb":
        kinds = _groups(trainable, decay_vectors=False)  # as in MLPerf's BERT
        optimizer = Lamb(kinds, lr, betas, config.epsilon, decay)
    elif config.kind == "radam":  # with AdamW's decay
        optimizer = torch.optim.RAdam(params, lr, betas, config.epsilon, decay, decoupled_weight_decay=True)
    elif config.kind == "adamw":
        optimizer = torch.optim.AdamW(params, lr, betas, config.epsilon, decay, fused=real)
    else:  # muon: the parameters that are not hidden matrices take SGD's steps, in groups of their own rates
        hidden = hidden_matrices(model)
        chosen = {id(param) for param in hidden}
        rest: list[Tensor] = [param for param in trainable if id(param) not in chosen]
        head = [param for param in rest if config.head_lr and param.dim() > 1]
        rest = [param for param in rest if not config.head_lr or param.dim() <= 1]
        own: Group = {"rule": "sgd", "momentum": config.other_momentum or momentum}
        others = _groups(rest, decay_vectors=config.decay_norms_and_biases)
        sgd: list[Group] = [{**group, **own, "lr": config.other_lr} for group in others]
        sgd += [{**group, **own, "lr": config.head_lr} for group in _groups(head)]
        optimizer = _muon(config, [*_groups(hidden), *sgd])
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return optimizer


def build_muon(
    config: OptimizerConfig, model: nn.Module, hidden: list[Tensor], *, beta1: float, every: int = 1, bf16: bool = False
) -> Muon:
    """Build Muon for the matrices `hidden`, and AdamW's step for the other trainable parameters, as in the
    modded-nanogpt speed runs: at the rate `config.other_lr`, with betas (`beta1`, `config.beta2`), no weight decay, in
    each `every`-th step. With `bf16` matrices are orthogonalised in bfloat16 on a CPU, too.

    Examples:
        >>> config = OptimizerConfig(kind="muon", peak_lr=0.02, other_lr=3e-3)
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2))
        >>> optimizer = build_muon(config, net, hidden_matrices(net), beta1=0.9)
        >>> [group["rule"] for group in optimizer.param_groups]
        ['muon', 'adamw']
    """
    chosen = {id(parameter) for parameter in hidden}
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in chosen]
    rest: Group = {"rule": "adamw", "lr": config.other_lr, "betas": (beta1, config.beta2), "eps": config.epsilon}
    return _muon(config, [{"params": hidden}, {"params": others, "weight_decay": 0.0, "every": every, **rest}], bf16)


def _muon(config: OptimizerConfig, groups: list[Group], bf16: bool = False) -> Muon:
    return Muon(
        groups,
        config.peak_lr,
        config.momentum,
        config.nesterov,
        config.weight_decay,
        iterations=config.newton_schulz_iterations,
        unit_filters=config.unit_filters,
        neuron_beta2=config.neuron_beta2,
        bf16=bf16,
    )
