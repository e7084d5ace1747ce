"""Ordered methods applied to one model and one training run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from timedrun.methods.method import Method, NoEffect


class Stack:
    """Methods in the order they are applied: to the model, to each batch, after each step and around evaluations."""

    def __init__(self, *methods: Method) -> None:
        if wrong := [method for method in methods if not isinstance(method, Method)]:
            raise TypeError(f"stack takes methods, as in stack(BlurPool(), EMA(half_life=8)), not {wrong[0]!r}")
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

        Raises NoEffect if a method finds nothing to change.
        """
        for method in self.methods:
            model, words = method.model(model)
            self._surgery[method.name] = words
        return model

    def input_size(self, size: int, progress: float) -> int:
        """Return the side in pixels at which to load training images at `progress`: `size` unless a method requests
        less. Images loaded smaller are not resized again by `batch`."""
        for hooks in self._hooks.values():
            size = hooks.input_size(size, progress)
        return size

    def batch(self, inputs: Tensor, targets: Tensor, progress: float, classes: int) -> tuple[Tensor, Tensor]:
        """Pass one training batch through every method; `progress` is the elapsed fraction of the run in [0, 1]."""
        if not isinstance(inputs, Tensor):
            raise TypeError(f"batch takes tensors, not {type(inputs).__name__}; batch_dict takes a dict of them")
        if not -1e-6 <= progress <= 1 + 1e-6:  # rounding apart
            raise ValueError(
                f"progress is the share of the whole run that is done, 0 to 1, not {progress}; "
                "pass the steps done / the steps of the whole run"
            )
        for hooks in self._hooks.values():
            inputs, targets = hooks.batch(inputs, targets, progress, classes)
        return inputs, targets

    def batch_dict(self, batch: Mapping[str, Tensor], progress: float) -> dict[str, Tensor]:
        """Pass a batch of a transformers model through every method: "pixel_values", or "input_ids" and every other
        field of their shape (attention_mask, labels, ...). Fields of other shapes are kept.

        Raises ValueError if a method changes targets, or the number of rows that a kept field belongs to.
        """
        key = "pixel_values" if "pixel_values" in batch else "input_ids"
        if key not in batch:
            raise ValueError(f"a batch needs pixel_values or input_ids, got {', '.join(batch)}; pass tensors to batch")
        inputs = batch[key]
        rows = torch.arange(len(inputs), device=inputs.device)
        if key == "pixel_values":
            pixels, targets = self.batch(inputs, rows, progress, len(inputs))
            changed, same = {key: pixels}, targets.dtype == rows.dtype
        else:  # token methods cut and reshape: done to positions, one result serves every field
            positions = torch.arange(inputs.numel(), device=inputs.device).view(inputs.shape)
            positions, targets = self.batch(positions, positions, progress, 0)
            changed = {name: field.flatten()[positions] for name, field in batch.items() if field.shape == inputs.shape}
            same = len(positions) == len(inputs) or len(changed) == len(batch)
        if not same:
            raise ValueError(
                "the methods change targets or the number of rows, but batch_dict keeps the fields "
                f"{sorted(batch.keys() - changed.keys())}; pass tensors to batch, or remove the method"
            )
        return {**batch, **changed}

    def after_step(self, model: nn.Module, step: int) -> None:
        """Notify every method that optimizer step `step` (from 1) was taken."""
        for hooks in self._hooks.values():
            hooks.after_step(model, step)

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        """Apply every method's changes for an evaluation and undo them on exit, also after an error."""
        with ExitStack() as contexts:
            for hooks in self._hooks.values():
                contexts.enter_context(hooks.evaluation(model))
            yield

    def state_dict(self) -> dict[str, Any]:
        return {name: hooks.state_dict() for name, hooks in self._hooks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the output of `state_dict`. Raises ValueError for another set of methods, and changes nothing."""
        if state.keys() != self._hooks.keys():
            raise ValueError(
                f"the saved state is of the methods {sorted(state)}, this run has {sorted(self._hooks)}; "
                "nothing was restored; resume with the methods the run was started with"
            )
        for name, hooks in self._hooks.items():
            hooks.load_state_dict(state[name])

    @property
    def report(self) -> list[str]:
        """Return one line per method, "name: what it did"; a method that has done nothing yet says so."""
        return [f"{name}: {'; '.join(done) or 'nothing yet'}" for name, done in self._done().items()]

    def verify(self) -> None:
        """Raise NoEffect naming every method that changed neither the model nor the run."""
        if idle := [name for name, done in self._done().items() if not done]:
            raise NoEffect(
                f"changed nothing in this run: {', '.join(idle)}; a result must not name a method that had no part in "
                "it; remove it, or use a model and a schedule on which it acts"
            )

    def _done(self) -> dict[str, list[str]]:
        return {
            name: [words for words in (self._surgery.get(name), hooks.effect()) if words]
            for name, hooks in self._hooks.items()
        }


def stack(*methods: Method) -> Stack:
    """Return a Stack of the methods in the given order. Raises ValueError for two methods of the same name."""
    return Stack(*methods)
