"""Timing of a rank's own work, and detection of stragglers from the times of all."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from tests.timedrun.runner.distributed.thread_ranks import CPU
from timedrun.methods.method import DDPInner
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.straggler import CHECKS, SlowRank, StragglerDetector

SECOND = ProcessGroup(1, 2, 1, CPU)
UNKNOWN = -1.0


class Model(nn.Module):
    """A layer. It is a class of its own because dynamo leaves alone what is torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.layer(inputs).relu()


class Clocked(nn.Module):
    """DistributedDataParallel on a fake clock: a pre-hook, 5 s of buffer broadcast, then a model that takes 1 s forward
    and 2 s backward."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.module = DDPInner(Model())
        self.straggler = StragglerDetector(SECOND, lambda: self.now)
        self.straggler.attach(self)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def forward(self, inputs: torch.Tensor) -> Any:
        self.wait(5)
        outputs = self.module(inputs)
        self.wait(1)
        outputs.register_hook(lambda gradient: self.wait(2))
        return outputs


@pytest.mark.parametrize(("micro_batches", "computing"), [(1, 3.0), (4, 12.0)])
def test_loading_and_computing_are_timed_without_waits(micro_batches, computing):
    model = Clocked()
    for _ in range(3):
        model.wait(4)
        for _ in range(micro_batches):
            model(torch.ones(1, 2)).sum().backward()
        model.wait(7)  # for the gradients of other ranks
        model.straggler.stepped()
    assert model.straggler.report() == [UNKNOWN, UNKNOWN, 4.0, computing]


def test_the_time_after_a_check_is_not_loading():
    model = Clocked()
    for _ in range(2):
        model.straggler.stepped()
        model.straggler.report()
        model.wait(1000)  # an evaluation
        model(torch.ones(1, 2)).sum().backward()
    model.straggler.stepped()
    assert model.straggler.report() == [UNKNOWN, UNKNOWN, UNKNOWN, 3.0]


def detected(*tables: list[list[float]]) -> list[SlowRank | None]:
    straggler = StragglerDetector(replace(SECOND, world_size=len(tables[0])))
    return [straggler.detect([seconds for row in table for seconds in row]) for table in tables]


FAST, SLOW_LOADER, SLOW_COMPUTER = [0.010, 0.100], [0.060, 0.100], [0.010, 0.160]


@pytest.mark.parametrize(("slow", "part"), [(SLOW_LOADER, "loading"), (SLOW_COMPUTER, "computing")])
@pytest.mark.parametrize("world_size", [2, 8])
def test_a_slow_rank_is_reported_once_after_some_checks(slow, part, world_size):
    found = detected(*[[FAST] * (world_size - 1) + [slow]] * 10)
    place = ("loading", "computing").index(part)
    rank = SlowRank(world_size - 1, slow[place], FAST[place], part)
    assert found == [None] * (CHECKS - 1) + [rank] + [None] * (10 - CHECKS)


STRAGGLES, FINE, NO_STEP = [FAST, SLOW_LOADER], [FAST, FAST], [[UNKNOWN, UNKNOWN]] * 2


@pytest.mark.parametrize(
    ("tables", "reported"),
    [
        # Again only after it was not slow; checks with no step in between change nothing.
        ([*[STRAGGLES] * 4, FINE, *[STRAGGLES] * 4, *[FINE] * 4, *[STRAGGLES] * 4], [2, 15]),
        ([STRAGGLES, NO_STEP, STRAGGLES, NO_STEP, STRAGGLES, NO_STEP, STRAGGLES], [4]),
        ([[FAST, [0.014, 0.100]]] * 6, []),  # little in seconds
        ([[FAST, [0.010, 0.140]]] * 6, []),  # little of it
        ([[[0.001, 0.500], [0.030, 0.500]]] * 6, []),  # little of the sum
        ([[[0.110, 0.200], [0.010, 0.300]]] * 6, []),  # the rank that seems to load waits for the one that computes
    ],
)
def test_a_straggler_is_reported_once_and_no_small_difference(tables, reported):
    assert [number for number, slow in enumerate(detected(*tables)) if slow is not None] == reported


def test_timing_does_not_break_the_graph_of_a_compiled_model():
    torch._dynamo.reset()
    graphs, model = CompileCounter(), Model()
    model.compile(backend=graphs, fullgraph=True)
    straggler = StragglerDetector(SECOND)
    straggler.attach(inner := DDPInner(model))
    for _ in range(4):
        inner(torch.ones(1, 2)).sum().backward()
        straggler.stepped()
    assert graphs.frame_count == 1
    assert straggler.report()[3] > 0
