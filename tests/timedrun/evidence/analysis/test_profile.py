"""Parts of a step add up to it; a planted slow part is found where it is slow, and bounds what a method can gain."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.timedrun.conftest import SPEC
from tests.timedrun.runner.run.killed_run import ALONE, IN_SAMPLES
from timedrun.evidence.analysis.profile import Profile, busy_share
from timedrun.evidence.analysis.profiled_run import PositionTimes, ProfiledRun, StepPlan
from timedrun.evidence.analysis.step_timer import StepTimer
from timedrun.evidence.preflight.dry_run import SimulatedClock
from timedrun.methods import Method, Stack, stack
from timedrun.methods.method import Compute, Hooks, Position
from timedrun.runner.benchmark import BenchmarkSpec
from timedrun.runner.config import RunConfig
from timedrun.runner.process.progress import Progress
from timedrun.runner.run.run_info import RunInfo

PLAN = StepPlan(positions=(0.0, 0.5, 1.0), chunks=2, chunk=2, skip=1)
EPOCH = 10
"""Steps."""
CPU = torch.device("cpu")


class SlowModel(nn.Module):
    """A linear layer whose passes take `forward` and `backward` seconds."""

    def __init__(self, clock, *, forward: float, backward: float) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.clock, self.seconds = clock, (forward, backward)

    def forward(self, inputs: Tensor) -> Tensor:
        self.clock.now += self.seconds[0]
        outputs: Tensor = self.layer(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: self._backward())
        return outputs

    def _backward(self) -> None:
        self.clock.now += self.seconds[1]


class SlowOptimizer(torch.optim.SGD):
    """SGD whose step takes some seconds."""

    def __init__(self, clock, parameters: Iterable[Any], *, seconds: float) -> None:
        super().__init__(parameters, lr=0.1)
        self.clock, self.seconds = clock, seconds

    def step(self, closure: Any = None) -> None:
        self.clock.now += self.seconds
        super().step(closure)


class _SlowHooks(Hooks):
    _method: "SlowMethod"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        self._method.clock.now += self._method.seconds
        return inputs, targets

    def augment(self, images: Tensor, samples: Any, epoch: int, seed: int) -> Tensor:
        self._method.clock.now += 11
        return images


class SlowMethod(Method, name="slow_method", hooks=_SlowHooks):
    """A method whose `batch` takes `seconds`, and whose work in the loader 11."""

    clock: SimulatedClock
    seconds: float


class _TwiceHooks(Hooks):
    def backward(self, compute: Compute, model: nn.Module, at: Position) -> Tensor:
        compute(False)
        return compute(True)


class Twice(Method, name="twice", hooks=_TwiceHooks):
    """A method that runs the passes twice."""


class Loop:
    """A training loop in the shape of a benchmark's, of which each part takes its own number of seconds."""

    def __init__(self, clock, *methods: Any, forward: float = 2, backward: float = 4, optimizer: float = 5) -> None:
        self.clock = clock
        self.model = SlowModel(clock, forward=forward, backward=backward)
        self.called: nn.Module = self.model
        self.optimizer = SlowOptimizer(clock, self.model.parameters(), seconds=optimizer)
        self.methods: Stack = stack(*methods)
        self.timer = StepTimer(CPU, clock)

    def step(self, pieces: int = 1, loading: float = 7) -> Tensor:
        """Train a step and return its loss."""
        self.clock.now += loading
        self.methods.before_step(self.model, 0, 0.0)
        inputs, _ = self.methods.batch(torch.ones(4, 3), torch.zeros(4).long(), 2)

        def compute(reduced: bool) -> Tensor:
            loss = torch.zeros(())
            for piece in inputs.split(4 // pieces):
                loss = self.called(piece).sum()
                self.clock.now += 1  # the loss
                loss.backward()
            return loss.detach()

        loss = self.methods.backward(compute, self.model)
        self.clock.now += 0.5  # clipping
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.methods.after_step(self.model)
        return loss

    @contextmanager
    def timed_step(self) -> Iterator[dict[str, float]]:
        """Time what runs inside as a step; at its end its parts are in the dictionary."""
        found: dict[str, float] = {}
        with self.timer.attached({"model": self.model, "optimizer": self.optimizer, "methods": self.methods}):
            self.timer.begin_step()
            yield found
            self.timer.end_step()
        found |= self.timer.parts_of(self.timer.steps[-1])


class Toy(Loop):
    """Such a loop, whose steps take 6.5 seconds, in a profiled run."""

    def __init__(self, config: RunConfig, spec: BenchmarkSpec, plan: StepPlan = PLAN) -> None:
        clock = SimulatedClock(0.0)
        super().__init__(clock, SlowMethod(clock=clock, seconds=0), forward=1, backward=2, optimizer=1.5)
        self.run = ProfiledRun(
            config, spec, ALONE, plan=plan, progress=Progress("toy", shown=False), gate=self.gate, monotonic=clock
        )
        self.loading: Callable[[int], float] = lambda step: 0.5
        self.trained: list[int] = []
        self.first_weights: list[float] = []
        self.gates = 0

    def gate(self) -> None:
        self.gates += 1
        self.clock.now += 1000  # the turns of others

    def take(self, number: int) -> None:
        self.trained.append(number)
        self.first_weights.append(self.model.layer.bias[0].item())
        self.run.step_done(4, self.step(loading=self.loading(number)))

    def train(self, total: int) -> ProfiledRun:
        run = self.run
        run.track(model=self.model, optimizer=self.optimizer, methods=self.methods)
        run.start_clock(RunInfo(train_samples=4 * EPOCH, eval_samples=5, hyperparameters={}))
        for block in run.blocks(total):
            if run.spec.rules.unit == "samples":
                for number in run.steps(block):
                    self.take(number)
            else:
                for epoch in run.epochs(block):
                    for in_epoch in range(run.position.step_in_epoch, EPOCH):
                        self.take((epoch - 1) * EPOCH + in_epoch)
            with run.evaluation(block) as measurement:
                self.clock.now += 20
                measurement.value = 0.5
        return run


def profile_of(run: ProfiledRun) -> Profile:
    return Profile(run.found, run.total_steps, run.evaluations, run.evaluation_seconds, CPU)


@pytest.fixture
def config(toy_config) -> RunConfig:
    return toy_config()


def test_steps_around_each_position_are_trained_and_no_others_from_the_initial_weights(config):
    toy = Toy(config, IN_SAMPLES)
    run = toy.train(400)
    assert run.total_steps == 100
    assert toy.trained == [*range(9), *range(46, 55), *range(91, 100)]
    assert [at.progress for at in run.found] == [0.045, 0.505, 0.955]
    assert [len(at.plain) for at in run.found] == [2, 2, 2] and all(len(c) == 2 for at in run.found for c in at.plain)
    begins = toy.first_weights[0::9]
    assert begins == 3 * begins[:1] and toy.first_weights[1] != begins[0]


def test_a_schedule_shorter_than_the_steps_is_repeated(config):
    toy = Toy(config, SPEC, StepPlan(positions=(0.0, 1.0), chunks=4, chunk=2, skip=9))
    found = toy.train(1).found
    assert toy.trained == 2 * [*range(10), *range(10), *range(10)]  # 25 steps, to the end of an epoch
    assert [at.progress for at in found] == [1.0, 1.0] and all(len(at.plain) == 4 for at in found)


def test_times_are_those_of_the_calls_and_the_estimate_integrates_them(config):
    toy = Toy(config, SPEC)
    profile = profile_of(toy.train(8))
    assert toy.trained == [*range(1, 10), *range(41, 50), *range(71, 80)]  # they end with an epoch
    assert profile.step_seconds == pytest.approx([6.5, 6.5, 6.5])
    assert profile.parts["forward"].seconds == pytest.approx(2 * 80)
    assert profile.training_seconds == pytest.approx(6.5 * 80)
    assert (profile.evaluations, profile.evaluation_seconds) == (4, 20)  # at 2, 4, 6 and 8 of 8 epochs
    assert profile.run_seconds == pytest.approx(6.5 * 80 + 4 * 20)
    assert sum(part.share for part in profile.parts.values()) == pytest.approx(1)
    name, part = profile.bottleneck
    assert name == "computing" and part.bound == pytest.approx(600 / (600 - 5.5 * 80))


def test_a_planted_slow_loader_is_the_bottleneck_where_it_is_slow(config):
    toy = Toy(config, IN_SAMPLES)
    toy.loading = lambda step: 0.5 if step < 30 else 100
    profile = profile_of(toy.train(400))
    assert profile.bottleneck[0] == "loading"
    assert [parts["loading"] for parts in profile.part_seconds] == pytest.approx([0.5, 100, 100])
    between = (0.505 - 0.045) * (0.5 + 100) / 2
    assert profile.parts["loading"].seconds == pytest.approx(100 * (0.045 * 0.5 + between + (1 - 0.505) * 100))


def test_a_model_that_is_compiled_within_another_module_has_its_forward_pass_timed(config):
    toy = Toy(config, SPEC)
    toy.called = nn.Sequential(toy.model)
    toy.called._compiled_call_impl = toy.model.forward  # as if compiled together: hooks of the model are not called
    toy.run.ranks.wrap(toy.called)
    assert profile_of(toy.train(8)).parts["forward"].seconds == pytest.approx(2 * 80)


def test_turns_of_other_configs_are_in_no_step(config):
    toy = Toy(config, IN_SAMPLES, StepPlan(positions=(0.0, 1.0), chunks=3, chunk=2, skip=2, timed=False, gated=True))
    run = toy.train(400)
    assert toy.gates == 1 + 6  # before the first step, then before each chunk
    assert [chunk for at in run.found for chunk in at.plain] == [pytest.approx([6.5, 6.5])] * 6


def test_the_use_of_a_gpu_counts_overlapping_kernels_once():
    assert busy_share([(8, 10), (0, 4), (3, 5)]) == 0.7 and busy_share([]) == 0.0
    at = PositionTimes(0.5, 0, plain=[[1.0]], parts=[{"forward": 1.0}])
    idle = Profile([at], 1, 0, None, torch.device("cuda"), busy=[busy_share([(0, 1), (9, 10)])])
    assert idle.bottleneck[0] == "host"


IMAGES = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)


@pytest.fixture
def loop() -> Loop:
    """A loop with a method of 3 seconds, 11 in the loader."""
    return Loop(clock := SimulatedClock(0.0), SlowMethod(clock=clock, seconds=3))


def test_each_part_of_a_step_has_the_seconds_of_its_calls(loop):
    with loop.timed_step() as found:
        loop.step(pieces=2)
    assert found == {
        "loading": 7,
        "method slow_method": 3,
        "forward": 2 * (2 + 1),
        "backward": 2 * 4,
        "optimizer": 5,
        "rest of the loop": 0.5,
    }
    assert sum(found.values()) == loop.clock.now


def test_a_method_pays_for_the_passes_that_a_step_without_it_has_not():
    loop = Loop(SimulatedClock(0.0), Twice())
    with loop.timed_step() as found:
        loop.step()
    assert (found["forward"], found["backward"], found["method twice"]) == (2 + 1, 4, 2 + 1 + 4)


def test_a_compiled_model_is_timed_around_its_compiled_call(loop):
    whole = loop.model._call_impl
    loop.model._compiled_call_impl = lambda *given: whole(*given)
    with loop.timed_step() as found:
        loop.step()
        assert not loop.model._forward_pre_hooks  # torch.compile would trace it
    assert found["forward"] == 3


def test_nothing_is_left_behind():
    loop = Loop(clock := SimulatedClock(0.0), SlowMethod(clock=clock, seconds=3), Twice())
    parts = [loop.model, loop.optimizer, *(loop.methods._hooks.values())]
    before, backward = [dict(vars(part)) for part in parts], torch.autograd.backward
    with pytest.raises(KeyError), loop.timed_step():
        loop.step()
        raise KeyError
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_forward_pre_hooks")
    assert all(not vars(part).get(name) for part in parts for name in hooks)
    assert [{*vars(part)} for part in parts] == [{*of} for of in before]
    assert torch.autograd.backward is backward


def test_a_method_in_the_loader_is_not_loading_and_in_its_thread_not_in_the_step_nor_a_pass_without_gradients(loop):
    with loop.timed_step():
        thread = threading.Thread(target=loop.methods.augment, args=(IMAGES, [0], 1))
        thread.start()
        thread.join()
    assert [name for name, _ in loop.timer.steps[0]] == ["loading", ""]
    with loop.timed_step() as found:
        loop.clock.now += 1
        loop.methods.augment(IMAGES, [0], 1)
        loop.clock.now += 1
        loop.model(torch.ones(1, 3))
    assert found == {"loading": 2, "method slow_method": 11, "forward": 2}
    with loop.timed_step() as found, torch.no_grad():
        loop.model(torch.ones(1, 3))
    assert found == {"loading": 2}
