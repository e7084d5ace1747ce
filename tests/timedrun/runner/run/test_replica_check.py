"""Ranks whose weights have diverged are named, and end a run; a checkpoint has the identity of its run."""

import math
import signal
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mlevents import keys
from tests.timedrun.runner.distributed.thread_ranks import on_all
from tests.timedrun.runner.run.killed_run import ALONE, Checks, Program, finished, kill_after, kill_in, resume
from timedrun.runner.distributed.failure import ReplicaDivergence
from timedrun.runner.process.stop_signals import ShutdownRequest
from timedrun.runner.run.checkpoint_manager import newest_on_all, steps_in
from timedrun.runner.run.replica_check import Replicas

Change = Callable[[dict[str, Tensor]], object]


def network(seed: int = 0, *changes: Change) -> nn.Module:
    """Filters, matrices, scales initialized to 1 and shifts initialized to 0, then changed."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.Linear(64, 64), nn.LayerNorm(64)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for change in changes:
            change(dict(model.named_parameters()))
    return model


def compared(*models: nn.Module) -> list[Exception | None]:
    """The error of each rank, each holding one of `models`."""
    return on_all(len(models), lambda ranks: Replicas(ranks, {"model": models[ranks.rank]}).require_same(7))


def noise(share: float, drift: float = 0.0) -> Change:
    """Independent noise of `share` of each value, about a mean of `drift`."""

    def change(named: dict[str, Tensor]) -> None:
        generator = torch.Generator().manual_seed(1)
        for tensor in named.values():
            tensor.mul_(1 + drift + share * torch.randn(tensor.shape, generator=generator))

    return change


def fill(name: str, value: float) -> Change:
    return lambda named: named[name].fill_(value)


OTHER: dict[str, Change] = {
    "1 % of noise": noise(0.01),
    "signs": lambda named: named["2.weight"].neg_(),
    "one huge value": lambda named: named["6.weight"].view(-1)[5].fill_(2.0**60),
    "one infinite value": lambda named: named["6.bias"][5].fill_(float("inf")),
    "a parameter in another's place": lambda named: named["0.weight"].copy_(named["4.weight"]),
    "a step that one rank skipped": lambda named: named["30.weight"].mul_(0.98),
    "another initialization": lambda named: [named[name].copy_(value) for name, value in network(1).named_parameters()],
    "shifts that are not 0": lambda named: named["1.bias"].add_(1e-3 * torch.ones(16)),
}


@pytest.mark.parametrize("what", OTHER)
def test_other_weights_are_found_on_all_ranks_alike(what):
    errors = compared(network(), network(0, OTHER[what]))
    assert all(isinstance(error, ReplicaDivergence) for error in errors) and len({str(error) for error in errors}) == 1
    assert "after step 7: rank 1 differs from rank 0 in " in str(errors[0])
    assert ("not finite" in str(errors[0])) == (what == "one infinite value")


ROUNDED: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "last bits": lambda: (network(), network(0, noise(1e-6))),
    "the drift of other kernels over a long run": lambda: (network(), network(0, noise(1e-4, drift=1e-4))),
    "a shift of rounding errors only": lambda: (network(), network(0, lambda named: named["1.bias"].add_(1e-8))),
    "a scale near 0": lambda: (network(0, fill("1.weight", 0.0)), network(0, fill("1.weight", 1e-7))),
    "not finite on all ranks": lambda: (network(0, fill("0.bias", math.nan)), network(0, fill("0.bias", math.nan))),
    "one rounding of bfloat16": lambda: (network().bfloat16(), network(0, noise(4e-3)).bfloat16()),
}


@pytest.mark.parametrize("what", ROUNDED)
def test_rounding_differences_are_tolerated(what):
    first, second = ROUNDED[what]()
    for buffer in second.buffers():  # which are not compared
        buffer.add_(1)
    assert compared(first, second) == [None, None]


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ((0, 1, 0), "rank 1 differs from ranks 0, 2 in "),
        ((1, 0, 0, 0), "rank 0 differs from ranks 1-3 in "),
        ((0, 0, 1, 1), "ranks 2-3 differ from ranks 0-1 in "),
        ((0, 1, 2), "ranks 1-2 differ from rank 0 in "),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ranks_outside_the_majority_are_named(seeds, message, dtype):
    error = compared(*(network(seed).to(dtype) for seed in seeds))[0]
    assert message in str(error)


def test_the_first_different_parameter_is_named_with_its_norms():
    message = str(compared(network(), network(), network(0, fill("2.bias", 3.0), fill("7.bias", 3.0)))[2])
    assert "in 2 of 64 parameters, first in model.2.bias (norm 24, sum 192 on rank 2, norm 0." in message


class Asked:
    """The steps at which it was asked, each once; from step `parted` on the ranks' weights differ."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.parted: float = float("inf")

    def at(self, step: int) -> None:
        self.steps.append(step)
        if step >= self.parted:
            raise ReplicaDivergence("rank 1 differs from rank 0")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    recorder = Asked()
    monkeypatch.setattr(Replicas, "require_same", lambda replicas, step: recorder.at(step))
    return recorder


@pytest.mark.parametrize(
    ("parted", "options", "signalled", "compared", "saved"),
    [
        (7, {}, None, [0, 6, 12], []),
        (2, {"checkpoint_minutes": 1e-9}, None, [0, 1, 2], [1]),
        (1, {}, signal.SIGTERM, [0, 1], []),
    ],
)
def test_a_run_whose_ranks_parted_never_reaches_its_target_and_is_not_saved(
    make_run, asked, tmp_path, parted, options, signalled, compared, saved
):
    asked.parted = parted
    stop = ShutdownRequest()
    stop.signal = signalled
    run = make_run(check_every=1, stop=stop, checkpoints=tmp_path / "checkpoint", **options)
    log = finished(run, None, ReplicaDivergence)
    assert log.status == keys.ABORTED
    assert log.stopped.metadata["reason"] == "ReplicaDivergence: rank 1 differs from rank 0"
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [2] * (parted > 6)
    assert (steps_in(tmp_path / "checkpoint" / "rank_0"), asked.steps) == (saved, compared)


def test_restored_replicas_are_compared_before_that_is_logged(make_run, asked, tmp_path):
    kill_after(3, make_run, tmp_path, due_at=3)
    asked.steps.clear()
    asked.parted = 3
    log = finished(resume(make_run, tmp_path), None, ReplicaDivergence)
    assert asked.steps == [3] and not log.all(keys.RESUMED)


def test_a_run_keeps_its_identity(make_run, tmp_path):
    kill_after(3, make_run, tmp_path, due_at=3)
    first = newest_on_all(tmp_path / "checkpoint", ALONE)
    with pytest.MonkeyPatch.context() as patch:
        Checks(patch, 2, 3)
        kill_in(resume(make_run, tmp_path, check_every=1), Program())
    second = newest_on_all(tmp_path / "checkpoint", ALONE)
    assert second["position"]["step"] > first["position"]["step"]
    assert second["run"] == first["run"] and len(first["run"]) == 32
