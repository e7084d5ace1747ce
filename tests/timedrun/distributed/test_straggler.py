"""Whose own work is clocked as what, and who is called slow by it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from timedrun.distributed.process_group import DDPInner, ProcessGroup
from timedrun.distributed.straggler import CHECKS, SlowRank, StragglerDetector

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, 0, CPU)
TWO = [ProcessGroup(rank, 2, rank, CPU) for rank in (0, 1)]


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow(nn.Module):
    """Takes a second forward and two backward; `buffers` before it are exchanged by whoever wraps it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.clock.now += 1
        outputs: torch.Tensor = self.layer(inputs)
        outputs.register_hook(lambda gradient: setattr(self.clock, "now", self.clock.now + 2))
        return outputs


class Parallel(nn.Module):
    """DistributedDataParallel's order: pre-hook, exchange of buffers (5 s), the model."""

    def __init__(self, model: Slow) -> None:
        super().__init__()
        self.module = DDPInner(model)
        self.clock = model.clock

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.clock.now += 5
        outputs: torch.Tensor = self.module(inputs)
        return outputs


def clocked(steps: int, micro_batches: int = 1) -> list[float]:
    """Rank 1's report after `steps` steps that load for 4 s each and wait for 7 s after their gradients."""
    clock = Clock()
    straggler = StragglerDetector(TWO[1], clock)
    model = Parallel(Slow(clock))
    straggler.attach(model)
    for _ in range(steps):
        clock.now += 4
        for _ in range(micro_batches):
            model(torch.ones(1, 2)).sum().backward()
        clock.now += 7
        straggler.stepped()
    return straggler.report()


def test_loading_and_computing_are_clocked_without_the_waits_between_them() -> None:
    unknown = -1.0
    assert clocked(3) == [unknown, unknown, 4.0, 3.0]
    assert clocked(3, micro_batches=4) == [unknown, unknown, 4.0, 12.0]


def test_what_follows_a_check_is_not_called_loading() -> None:
    clock = Clock()
    straggler = StragglerDetector(TWO[0], clock)
    model = Parallel(Slow(clock))
    straggler.attach(model)
    for _ in range(2):
        straggler.stepped()
        straggler.report()
        clock.now += 1000  # an evaluation
        model(torch.ones(1, 2)).sum().backward()
    straggler.stepped()
    assert straggler.report()[0] == -1.0


def test_one_rank_has_nobody_to_compare_with() -> None:
    straggler = StragglerDetector(ALONE)
    straggler.attach(nn.Linear(2, 2))
    straggler.stepped()
    assert straggler.report() == []
    assert straggler.judge([]) is None


def judged(*tables: list[list[float]]) -> list[SlowRank | None]:
    world_size = len(tables[0])
    straggler = StragglerDetector(replace(ALONE, world_size=world_size))
    return [straggler.judge([seconds for row in table for seconds in row]) for table in tables]


FAST, SLOW_LOADER, SLOW_COMPUTER = [0.010, 0.100], [0.060, 0.100], [0.010, 0.160]


@pytest.mark.parametrize(("slow", "part"), [(SLOW_LOADER, "loading"), (SLOW_COMPUTER, "computing")])
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_slow_rank_is_told_once_after_some_checks(slow: list[float], part: str, world_size: int) -> None:
    table = [FAST] * (world_size - 1) + [slow]
    found = judged(*[table] * 10)
    place = ("loading", "computing").index(part)
    assert found[CHECKS - 1] == SlowRank(world_size - 1, slow[place], FAST[place], part)
    assert [one for one in found if one is not None] == [found[CHECKS - 1]]


def test_it_is_told_again_only_after_it_was_as_fast_as_the_others() -> None:
    slow, fine = [FAST, FAST, SLOW_LOADER], [FAST, FAST, FAST]
    found = judged(*[slow] * 4, *[fine] * 1, *[slow] * 4, *[fine] * 4, *[slow] * 4)
    assert sum(one is not None for one in found) == 2


@pytest.mark.parametrize(
    "table",
    [
        [FAST, [0.014, 0.100]],  # little in seconds
        [FAST, [0.010, 0.140]],  # little of it
        [[0.001, 0.500], [0.030, 0.500]],  # little of the whole
        [[0.110, 0.200], [0.010, 0.300]],  # who seems to load waits for who computes
    ],
)
def test_small_differences_are_not_told(table: list[list[float]]) -> None:
    assert not any(judged(*[table] * 6))


def test_checks_with_no_step_in_between_change_nothing() -> None:
    slow, nothing = [FAST, SLOW_LOADER], [[-1.0, -1.0], [-1.0, -1.0]]
    found = judged(slow, nothing, slow, nothing, slow, nothing, slow)
    assert [one is not None for one in found] == [False, False, False, False, True, False, False]


@pytest.fixture(autouse=True)
def no_compiled_leftovers() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def test_clocking_leaves_a_compiled_model_whole() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    class Model(nn.Module):  # dynamo leaves alone what is torch's own
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.layer(inputs).relu()
            return outputs

    model = Model()
    model.compile(backend=count)
    straggler = StragglerDetector(TWO[0])
    entrance = DDPInner(model)
    straggler.attach(entrance)
    for _ in range(4):
        entrance(torch.ones(1, 2)).sum().backward()
        straggler.stepped()
    assert len(graphs) == 1
    assert straggler.report()[1] > 0
