"""Ranks whose weights have diverged are named; rounding differences are tolerated."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.timedrun.distributed.thread_ranks import CPU, Meeting, ThreadRanks, on_all
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.replica_check import ReplicaDivergence, Replicas, parameters, sums

Change = Callable[[dict[str, Tensor]], object]


def network(seed: int = 0) -> nn.Module:
    """Filters, matrices, scales initialized to 1 and shifts initialized to 0."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.Linear(64, 64), nn.LayerNorm(64)]
    return nn.Sequential(*layers)


def compared(*models: nn.Module) -> list[Exception | None]:
    """The error of each rank, each holding one of `models`."""
    return on_all(len(models), lambda ranks: Replicas(ranks, {"model": models[ranks.rank]}).require_same(7))


def changed(change: Change, model: nn.Module | None = None) -> nn.Module:
    model = model or network()
    with torch.no_grad():
        change(dict(model.named_parameters()))
    return model


def noise(share: float) -> Change:
    """Independent noise of `share` of each value."""

    def change(named: dict[str, Tensor]) -> None:
        generator = torch.Generator().manual_seed(1)
        for tensor in named.values():
            tensor.mul_(1 + share * torch.randn(tensor.shape, generator=generator))

    return change


def swap(named: dict[str, Tensor]) -> None:
    first, second = named["0.weight"], named["4.weight"]
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


OTHER: dict[str, Change] = {
    "1 % of noise": noise(0.01),
    "signs": lambda named: named["2.weight"].neg_(),
    "one huge value": lambda named: named["6.weight"].view(-1)[5].fill_(2.0**60),
    "one infinite value": lambda named: named["6.bias"][5].fill_(float("inf")),
    "two swapped parameters": swap,
    "a step that one rank skipped": lambda named: named["30.weight"].mul_(0.98),
    "another initialization": lambda named: [named[name].copy_(value) for name, value in network(1).named_parameters()],
    "shifts that are not 0": lambda named: named["1.bias"].add_(1e-3 * torch.ones(16)),
}


@pytest.mark.parametrize("what", OTHER)
def test_other_weights_are_found_on_all_ranks_alike(what: str) -> None:
    errors = compared(network(), changed(OTHER[what]))
    assert all(isinstance(error, ReplicaDivergence) for error in errors) and len({str(error) for error in errors}) == 1
    assert "after step 7: rank 1 differs from rank 0 in " in str(errors[0])


def drift(named: dict[str, Tensor]) -> None:
    """The effect of other kernels over a long run: 1e-4 of a value, random and systematic."""
    noise(1e-4)(named)
    for tensor in named.values():
        tensor.mul_(1 + 1e-4)


ROUNDED: dict[str, Change] = {
    "last bits": noise(1e-6),
    "a long drift": drift,
    "a shift of rounding errors only": lambda named: named["1.bias"].add_(1e-8 * torch.randn(16)),
    "a scale near 0": lambda named: named["1.weight"].mul_(0).add_(1e-7 * torch.randn(16)),
}


@pytest.mark.parametrize("what", ROUNDED)
def test_rounding_differences_are_tolerated(what: str) -> None:
    model = network()
    if what == "a scale near 0":
        changed(lambda named: named["1.weight"].mul_(0), model)
    assert compared(model, changed(ROUNDED[what])) == [None, None]


def test_bfloat16_weights_may_differ_by_one_rounding() -> None:
    model, other = network().bfloat16(), network().bfloat16()
    assert compared(model, changed(noise(4e-3), other)) == [None, None]
    assert compared(model, network(1).bfloat16()) != [None, None]


def test_buffers_and_values_not_finite_on_all_ranks_are_ignored() -> None:
    one, other = network(), network()
    for buffer in other.buffers():
        buffer.add_(1)
    assert compared(one, other) == [None, None]
    for model in (one, other):
        changed(lambda named: named["0.bias"].fill_(float("nan")), model)
    assert compared(one, other) == [None, None]


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ((0, 1, 0), "rank 1 differs from ranks 0, 2 in "),
        ((1, 0, 0, 0), "rank 0 differs from ranks 1-3 in "),
        ((0, 0, 1, 1), "ranks 2-3 differ from ranks 0-1 in "),
        ((0, 1, 2), "ranks 1-2 differ from rank 0 in "),
    ],
)
def test_the_ranks_outside_the_majority_are_named(seeds: tuple[int, ...], message: str) -> None:
    error = compared(*(network(seed) for seed in seeds))[0]
    assert message in str(error)


def test_the_first_different_parameter_is_named_with_its_norms() -> None:
    def change(named: dict[str, Tensor]) -> None:
        named["2.bias"].fill_(3.0)
        named["7.bias"].fill_(float("nan"))

    message = str(compared(network(), network(), changed(change))[2])
    assert "in 2 of 64 parameters, first in model.2.bias (norm 24, sum 192 on rank 2, norm 0." in message
    assert "not finite" in str(compared(network(), changed(OTHER["one infinite value"]))[0])


def test_a_comparison_takes_one_collective_a_step_and_none_with_one_rank() -> None:
    meeting = Meeting(1)
    ranks = ThreadRanks(0, 2, 0, CPU, meeting)
    replicas = Replicas(ranks, {"model": network()})
    for step, calls in ((3, 1), (3, 1), (4, 2)):
        replicas.require_same(step)
        assert meeting.gathered == calls

    Replicas(ProcessGroup(0, 1, 0, CPU), {"model": network()}).require_same(1)
    Replicas(ranks, {"optimizer": torch.optim.SGD(network().parameters(), 0.1)}).require_same(1)
    assert meeting.gathered == 2


def test_parameters_of_modules_are_compared_and_shared_ones_once() -> None:
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "other": nn.Linear(2, 2)})
    model["other"].weight = model["one"].weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    named = parameters({"model": model, "optimizer": optimizer})
    assert list(named) == ["model.one.weight", "model.one.bias", "model.other.bias"]


def test_sums_are_exact_for_any_layout_and_size() -> None:
    tensor = torch.randn(3, 5, 7, 11).to(memory_format=torch.channels_last)
    large = torch.full((3 << 20,), 0.1)
    found = sums([tensor, large, torch.empty(0)])
    assert found[0].tolist() == pytest.approx([float(tensor.double().sum()), float(tensor.double().square().sum())])
    tenth = float(torch.tensor(0.1))
    assert found[1].tolist() == pytest.approx([tenth * (3 << 20), tenth**2 * (3 << 20)], rel=1e-10)
    assert found[2].tolist() == [0.0, 0.0]
