"""Timing of a rank's own work, and detection of stragglers from the times of all."""

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
    """A clock that is advanced by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow(nn.Module):
    """A model that takes one second forward and two backward."""

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
    """The order of DistributedDataParallel: pre-hook, buffer broadcast (5 s), the model."""

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


def test_loading_and_computing_are_timed_without_waits() -> None:
    unknown = -1.0
    assert clocked(3) == [unknown, unknown, 4.0, 3.0]
    assert clocked(3, micro_batches=4) == [unknown, unknown, 4.0, 12.0]


def test_the_time_after_a_check_is_not_loading() -> None:
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


def test_one_rank_reports_nothing() -> None:
    straggler = StragglerDetector(ALONE)
    straggler.attach(nn.Linear(2, 2))
    straggler.stepped()
    assert straggler.report() == []
    assert straggler.detect([]) is None


def detected(*tables: list[list[float]]) -> list[SlowRank | None]:
    world_size = len(tables[0])
    straggler = StragglerDetector(replace(ALONE, world_size=world_size))
    return [straggler.detect([seconds for row in table for seconds in row]) for table in tables]


FAST, SLOW_LOADER, SLOW_COMPUTER = [0.010, 0.100], [0.060, 0.100], [0.010, 0.160]


@pytest.mark.parametrize(("slow", "part"), [(SLOW_LOADER, "loading"), (SLOW_COMPUTER, "computing")])
@pytest.mark.parametrize("world_size", [2, 8])
def test_a_slow_rank_is_reported_once_after_some_checks(slow: list[float], part: str, world_size: int) -> None:
    table = [FAST] * (world_size - 1) + [slow]
    found = detected(*[table] * 10)
    place = ("loading", "computing").index(part)
    assert found[CHECKS - 1] == SlowRank(world_size - 1, slow[place], FAST[place], part)
    assert [one for one in found if one is not None] == [found[CHECKS - 1]]


def test_a_straggler_is_reported_again_only_after_it_was_not_slow() -> None:
    slow, fine = [FAST, FAST, SLOW_LOADER], [FAST, FAST, FAST]
    found = detected(*[slow] * 4, *[fine] * 1, *[slow] * 4, *[fine] * 4, *[slow] * 4)
    assert sum(one is not None for one in found) == 2


@pytest.mark.parametrize(
    "table",
    [
        [FAST, [0.014, 0.100]],  # little in seconds
        [FAST, [0.010, 0.140]],  # little of it
        [[0.001, 0.500], [0.030, 0.500]],  # little of the sum
        [[0.110, 0.200], [0.010, 0.300]],  # the rank that seems to load waits for the one that computes
    ],
)
def test_small_differences_are_not_reported(table: list[list[float]]) -> None:
    assert not any(detected(*[table] * 6))


def test_checks_with_no_step_in_between_change_nothing() -> None:
    slow, nothing = [FAST, SLOW_LOADER], [[-1.0, -1.0], [-1.0, -1.0]]
    found = detected(slow, nothing, slow, nothing, slow, nothing, slow)
    assert [one is not None for one in found] == [False, False, False, False, True, False, False]


@pytest.fixture(autouse=True)
def no_compiled_leftovers() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def test_timing_does_not_break_the_graph_of_a_compiled_model() -> None:
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
    inner = DDPInner(model)
    straggler.attach(inner)
    for _ in range(4):
        inner(torch.ones(1, 2)).sum().backward()
        straggler.stepped()
    assert len(graphs) == 1
    assert straggler.report()[1] > 0
