"""Model, optimizer and methods that take a stated number of seconds of a clock that moves only by them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from timedrun.methods import Method
from timedrun.methods.method import Compute, Hooks, Position


class Clock:
    """Seconds that tests add."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


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

    clock: Clock
    seconds: float


class _TwiceHooks(Hooks):
    def backward(self, compute: Compute, model: nn.Module, at: Position) -> Tensor:
        compute(False)
        return compute(True)


class Twice(Method, name="twice", hooks=_TwiceHooks):
    """A method that runs the passes twice."""
