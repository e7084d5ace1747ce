"""Parts of a step add up to it, and each call is charged to what made it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.timedrun.analysis.ticking import Clock, SlowMethod, SlowModel, SlowOptimizer, Twice
from timedrun.analysis.step_timer import StepTimer
from timedrun.methods import Stack, stack

CPU = torch.device("cpu")


class Loop:
    """A training loop in the shape of a benchmark's, of which each part takes its own number of seconds."""

    def __init__(self, clock: Clock, *methods: Any) -> None:
        self.clock = clock
        self.model = SlowModel(clock, forward=2, backward=4)
        self.optimizer = SlowOptimizer(clock, self.model.parameters(), seconds=5)
        self.methods: Stack = stack(*methods)
        self.timer = StepTimer(CPU, clock)

    def step(self, pieces: int = 1) -> dict[str, float]:
        self.timer.begin_step()
        self.clock.now += 7  # loading
        self.methods.before_step(self.model, 0, 0.0)
        inputs, _ = self.methods.batch(torch.ones(2, 3), torch.zeros(2).long(), 2)

        def compute(reduced: bool) -> Tensor:
            loss = torch.zeros(())
            for piece in inputs.split(2 // pieces):
                loss = self.model(piece).sum()
                self.clock.now += 1  # the loss
                loss.backward()
            return loss.detach()

        self.methods.backward(compute, self.model)
        self.clock.now += 0.5  # clipping
        self.optimizer.step()
        self.methods.after_step(self.model)
        self.timer.end_step()
        return self.timer.parts_of(self.timer.steps[-1])

    @contextmanager
    def timed(self) -> Iterator[None]:
        with self.timer.attached({"model": self.model, "optimizer": self.optimizer, "methods": self.methods}):
            yield


def test_each_part_of_a_step_has_the_seconds_of_its_calls() -> None:
    loop = Loop(clock := Clock(), SlowMethod(clock=clock, seconds=3))
    with loop.timed():
        found = loop.step(pieces=2)
    assert found == {
        "loading": 7,
        "method slow_method": 3,
        "forward": 2 * (2 + 1),
        "backward": 2 * 4,
        "optimizer": 5,
        "rest of the loop": 0.5,
    }
    assert sum(found.values()) == loop.clock.now


def test_a_method_pays_for_the_passes_that_a_step_without_it_has_not() -> None:
    loop = Loop(Clock(), Twice())
    with loop.timed():
        found = loop.step()
    assert found["forward"] == 2 + 1 and found["backward"] == 4
    assert found["method twice"] == 2 + 1 + 4


def test_a_compiled_model_is_timed_around_its_compiled_call() -> None:
    loop = Loop(Clock())
    whole = loop.model._call_impl
    loop.model._compiled_call_impl = lambda *given: whole(*given)
    with loop.timed():
        assert loop.step()["forward"] == 3
        assert not loop.model._forward_pre_hooks  # torch.compile would trace it


def test_nothing_is_left_behind() -> None:
    loop = Loop(clock := Clock(), SlowMethod(clock=clock, seconds=3), Twice())
    parts = [loop.model, loop.optimizer, *(loop.methods._hooks.values())]
    before, backward = [dict(vars(part)) for part in parts], torch.autograd.backward
    with pytest.raises(KeyError), loop.timed():
        loop.step()
        raise KeyError
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_forward_pre_hooks")
    assert all(not vars(part).get(name) for part in parts for name in hooks)
    assert [{*vars(part)} for part in parts] == [{*of} for of in before]
    assert torch.autograd.backward is backward


def test_a_method_in_a_thread_of_the_loader_is_not_in_the_step() -> None:
    loop = Loop(clock := Clock(), SlowMethod(clock=clock, seconds=3))
    with loop.timed():
        loop.timer.begin_step()
        images = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
        thread = threading.Thread(target=loop.methods.augment, args=(images, [0], 1))
        thread.start()
        thread.join()
        loop.timer.end_step()
    assert loop.timer.background == {"method slow_method": 11}
    assert [name for name, _ in loop.timer.steps[0]] == ["loading", ""]


def test_a_method_in_the_loader_is_not_loading() -> None:
    loop = Loop(clock := Clock(), SlowMethod(clock=clock, seconds=3))
    with loop.timed():
        loop.timer.begin_step()
        loop.clock.now += 1
        loop.methods.augment(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), [0], 1)  # type: ignore[arg-type]
        loop.clock.now += 1
        loop.model(torch.ones(1, 3))
        loop.timer.end_step()
    parts = loop.timer.parts_of(loop.timer.steps[0])
    assert parts == {"loading": 2, "method slow_method": 11, "forward": 2}


def test_evaluation_and_a_pass_without_gradients_are_not_the_steps_forward_pass() -> None:
    loop = Loop(Clock())
    with loop.timed():
        loop.timer.begin_step()
        with torch.no_grad():
            loop.model(torch.ones(1, 3))
        loop.timer.end_step()
    assert loop.timer.parts_of(loop.timer.steps[0]) == {"loading": 2}
