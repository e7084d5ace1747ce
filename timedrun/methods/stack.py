"""An ordered set of methods applied to one model and one training run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from timedrun.methods.method import Method, NoEffect


class Stack:
    """Methods in the order they are applied: to the model, to each batch, after each step and around evaluations."""

    def __init__(self, *methods: Method) -> None:
        names = [method.name for method in methods]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"methods given more than once: {', '.join(repeated)}; two of the same name would change the run twice "
                "and share one entry in its state; keep one of each"
            )
        self.methods = methods
        self._hooks = {method.name: method.hooks() for method in methods}
        self._surgery: dict[str, str] = {}

    def model(self, model: nn.Module) -> nn.Module:
        """Apply every method's surgery, in order. Call it before the optimizer is built, compilation and DDP.

        Raises NoEffect where a method finds nothing to change.
        """
        for method in self.methods:
            model, words = method.model(model)
            self._surgery[method.name] = words
        return model

    def input_size(self, size: int, progress: float) -> int:
        """The pixels a side that training images should be loaded with at `progress`; `size` unless a method asks for
        less. What is loaded smaller is not resized again by `batch`."""
        for hooks in self._hooks.values():
            size = hooks.input_size(size, progress)
        return size

    def batch(self, inputs: Tensor, targets: Tensor, progress: float, classes: int) -> tuple[Tensor, Tensor]:
        """Pass one training batch through every method; `progress` is the elapsed fraction of the run in [0, 1]."""
        for hooks in self._hooks.values():
            inputs, targets = hooks.batch(inputs, targets, progress, classes)
        return inputs, targets

    def after_step(self, model: nn.Module, step: int) -> None:
        """Tell every method that optimizer step number `step` (from 1) was taken."""
        for hooks in self._hooks.values():
            hooks.after_step(model, step)

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        """Everything the methods change for an evaluation, undone on the way out, errors included."""
        with ExitStack() as contexts:
            for hooks in self._hooks.values():
                contexts.enter_context(hooks.evaluation(model))
            yield

    def state_dict(self) -> dict[str, Any]:
        """The run-time state of every method, by name."""
        return {name: hooks.state_dict() for name, hooks in self._hooks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. Raises ValueError, before anything changes, for another set of methods."""
        if state.keys() != self._hooks.keys():
            raise ValueError(
                f"the saved state is of the methods {sorted(state)}, this run has {sorted(self._hooks)}; "
                "nothing was restored; resume with the methods the run was started with"
            )
        for name, hooks in self._hooks.items():
            hooks.load_state_dict(state[name])

    @property
    def report(self) -> list[str]:
        """One line a method, "name: what it did"; a method that has done nothing yet says so."""
        return [f"{name}: {'; '.join(done) or 'nothing yet'}" for name, done in self._done().items()]

    def verify(self) -> None:
        """Raise NoEffect naming every method that changed neither the model nor the run."""
        if idle := [name for name, done in self._done().items() if not done]:
            raise NoEffect(
                f"changed nothing in this run: {', '.join(idle)}; a result must not name a method that had no part in "
                "it; remove it, or give it a model and a schedule on which it acts"
            )

    def _done(self) -> dict[str, list[str]]:
        return {
            name: [words for words in (self._surgery.get(name), hooks.effect()) if words]
            for name, hooks in self._hooks.items()
        }


def stack(*methods: Method) -> Stack:
    """A Stack of the given methods, in the order given. Raises ValueError for two methods of the same name."""
    return Stack(*methods)
