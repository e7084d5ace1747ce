"""Parts of an optimizer step, timed at the calls that any training loop makes: model, backward, optimizer, methods."""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, nn

from timedrun.methods.method import PLACES, Compute, Hooks, Position
from timedrun.methods.stack import Stack
from timedrun.runner.distributed.device_clock import Stamp, seconds_between, stamp

LOADING: Final = "loading"  # from the end of a step to the next one's first call of the model or a method
FORWARD: Final = "forward"  # from the call of the model to the backward pass, the loss included
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
LOOP: Final = "rest of the loop"  # between these calls: learning rate, scaling, clipping, zeroing of gradients
PARTS: Final = (LOADING, FORWARD, BACKWARD, OPTIMIZER, LOOP)
METHOD: Final = "method "  # beginning of the name of a method's part
IN_LOADER: Final = ("input_size", "augment")
"""Places of methods that loaders call, in a thread of theirs if they prefetch."""


class StepTimer:
    """Timeline of steps, each divided without gaps into named parts.

    A method is charged with all that runs within its calls, forward passes included. Of the passes that a method's
    `backward` runs, the first is the step's own, as without the method; the others are the method's. On CUDA, parts lie
    between events of the current stream: a wait for the host is in the part at whose first kernel the device waits.
    """

    def __init__(self, device: torch.device, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self.device = device
        self.steps: list[list[tuple[str, Stamp]]] = []
        """Of each step the parts with their begin; the last entry is the step's end."""
        self.input = ""
        """Size of the model's last input: pixels of its images, or tokens of its sequences."""
        self._monotonic = monotonic
        self._thread = threading.get_ident()
        self._marks: list[tuple[str, Stamp]] = []
        self._owner: str | None = None  # the method whose call runs

    def begin_step(self) -> None:
        self._marks, self._owner = [], None
        self._mark(LOADING)

    def end_step(self) -> None:
        self._mark("")
        self.steps.append(self._marks)

    @contextmanager
    def attached(self, parts: Mapping[str, object]) -> Iterator[None]:
        """Time the calls of the modules, optimizers and method stacks among the tracked `parts` of a run."""
        with ExitStack() as undo:
            undo.enter_context(patch.object(torch.autograd, "backward", self._timed_backward(torch.autograd.backward)))
            for part in parts.values():
                if isinstance(part, nn.Module):
                    self._attach_module(part, undo)
                elif isinstance(part, torch.optim.Optimizer):
                    undo.callback(part.register_step_pre_hook(lambda *_: self._enter(OPTIMIZER)).remove)
                    undo.callback(part.register_step_post_hook(lambda *_: self._enter(LOOP)).remove)
                elif isinstance(part, Stack):
                    self._attach_methods(part, undo)
            yield

    def parts_of(self, marks: list[tuple[str, Stamp]]) -> dict[str, float]:
        """Return the seconds of each part of one of the `steps`, which the device has completed."""
        seconds: dict[str, float] = defaultdict(float)
        for (name, begin), (_, end) in zip(marks[:-1], marks[1:], strict=True):
            seconds[name] += seconds_between(begin, end)
        return seconds

    def _attach_module(self, module: nn.Module, undo: ExitStack) -> None:
        compiled = module._compiled_call_impl
        if compiled is None:
            hook = module.register_forward_pre_hook(lambda _, inputs: self._begin_forward(inputs), prepend=True)
            undo.callback(hook.remove)
            return

        @functools.wraps(compiled)
        def call(*arguments: Any, **options: Any) -> Any:
            self._begin_forward(arguments)
            return compiled(*arguments, **options)

        # Around the compiled call: it would trace a hook of the module, and so be compiled again.
        undo.enter_context(patch.object(module, "_compiled_call_impl", call))

    def _begin_forward(self, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            self._enter(FORWARD)
            if inputs and isinstance(inputs[0], Tensor):
                self.input = _size(inputs[0])

    def _timed_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(backward)
        def timed(*arguments: Any, **options: Any) -> None:
            if self._owner is not None or self._marks[-1][0] == BACKWARD:  # a method's, or checkpointing within one
                return backward(*arguments, **options)
            self._enter(BACKWARD)
            try:
                backward(*arguments, **options)
            finally:
                self._enter(LOOP)

        return timed

    def _attach_methods(self, methods: Stack, undo: ExitStack) -> None:
        for place in PLACES:
            for name, hooks in methods.acting_at(place).items():
                if place == "evaluation":
                    continue
                call = getattr(hooks, place)
                timed = self._timed_passes(name, hooks) if place == "backward" else self._timed_call(name, place, call)
                undo.enter_context(patch.object(hooks, place, timed))

    def _timed_call(self, name: str, place: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any) -> Any:
            with self._within(METHOD + name, loads=place in IN_LOADER):
                return call(*arguments)

        return timed

    def _timed_passes(self, name: str, hooks: Hooks) -> Callable[..., Tensor]:
        call = hooks.backward

        def timed(compute: Compute, model: nn.Module, at: Position) -> Tensor:
            calls = 0

            def counted(reduced: bool) -> Tensor:
                nonlocal calls
                calls += 1
                with self._within(None) if calls == 1 else nullcontext():
                    return compute(reduced)

            with self._within(METHOD + name):
                return call(counted, model, at)

        return timed

    @contextmanager
    def _within(self, owner: str | None, *, loads: bool = False) -> Iterator[None]:
        """Charge `owner` with the calls inside; None: as if no method ran."""
        by_another = self._owner is not None and owner is not None  # method, which is charged
        if by_another or threading.get_ident() != self._thread:  # a thread of the loader, while steps run
            yield
            return
        before, resumed = self._owner, self._marks[-1][0]
        self._owner = owner
        self._mark(owner or LOOP)
        try:
            yield
        finally:
            self._owner = before
            self._mark(LOOP if resumed == LOADING and not loads else resumed)

    def _enter(self, name: str) -> None:
        if self._owner is None and self._marks[-1][0] != name:
            self._mark(name)

    def _mark(self, name: str) -> None:
        self._marks.append((name, stamp(self.device, self._monotonic)))


def _size(given: Tensor) -> str:
    if given.dim() == 4:  # images, nearly always square
        return f"{'x'.join(map(str, dict.fromkeys(given.shape[2:])))} px"
    return f"{given.shape[1]} tokens" if given.dim() == 2 and not given.is_floating_point() else ""
