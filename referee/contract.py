"""Contract of a submission: `submission.py` with `build(task)` and `train(model, task, data)`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

FILE: Final = "submission.py"
LOG_PROBABILITIES: Final = "log_probabilities"
"""Value of the model's attribute `output` if it returns normalised log-probabilities in place of logits."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task as a submission sees it; it has neither validation data nor the clock.

    Attributes:
        vocabulary: of text, number of token ids; a model returns as many logits per position.
        context: of text, longest row of tokens that the model is asked about.
        classes: of images, number of classes; a model returns as many logits per image.
        shape: of images, channels, height and width.
        device: torch's name of the device.
        seed: seed to use; it differs from run to run.
        budget_seconds: time from `train`'s call until its weights have been received; one that takes longer is ended.
    """

    vocabulary: int = 0
    context: int = 0
    classes: int = 0
    shape: tuple[int, ...] = ()
    device: str
    seed: int
    budget_seconds: float


class ContractError(Exception):
    """Submission that does not meet the contract; the message says what is missing."""


def load(folder: Path) -> ModuleType:
    """Import `submission.py` of `folder`; modules next to it can be imported by their names.

    Raises:
        ContractError: `build` or `train` is missing.
    """
    sys.path.insert(0, os.fspath(folder))
    spec = util.spec_from_file_location("submission", folder / FILE)
    if spec is None or spec.loader is None:
        raise ContractError(f"{FILE} cannot be imported")
    module = util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    if missing := [name for name in ("build", "train") if not callable(getattr(module, name, None))]:
        raise ContractError(f"{FILE} defines no function {' and no function '.join(missing)}")
    return module


def built(module: ModuleType, task: Task) -> nn.Module:
    """Return `build(task)`. Raises ContractError if it is not a torch.nn.Module."""
    return _module(cast(Callable[[Task], object], module.build)(task), "build")


def trained(module: ModuleType, model: nn.Module, task: Task, data: list[Any]) -> nn.Module:
    """Return the model that `train(model, task, data)` returns, or `model`, trained in place, if it returns None.

    Raises:
        ContractError: it returned something else.
    """
    result = module.train(model, task, data)
    return model if result is None else _module(result, "train")


def answered(model: nn.Module, inputs: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, bool]:
    """Return logits, of `shape`, and True if they are log-probabilities. Raises ContractError if the shape or type of
    the result differs."""
    with torch.inference_mode():
        result: object = model(inputs)
    if type(result) is not Tensor:  # another class could compute when it is read, and know what is read
        raise ContractError(f"the model returned {type(result).__name__}, not a plain tensor of logits")
    if result.shape != shape or not result.is_floating_point():
        raise ContractError(
            f"the model returned {tuple(result.shape)} {result.dtype}, not floating-point logits of shape {shape}; cut "
            "a padded vocabulary in the adapter"
        )
    return result, getattr(model, "output", "logits") == LOG_PROBABILITIES


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each entry of a model's `state_dict`. Raises ContractError for one that is no tensor."""
    values: dict[str, object] = model.state_dict()
    shapes = {name: tuple(value.shape) for name, value in values.items() if isinstance(value, Tensor)}
    for name in values.keys() - shapes.keys():
        raise ContractError(
            f"{name!r} of the model's state_dict is {type(values[name]).__name__}, not a tensor; keep what answers need"
            " in parameters and buffers"
        )
    return shapes


def require_same(built: dict[str, tuple[int, ...]], trained: dict[str, tuple[int, ...]]) -> None:
    """Raise ContractError unless a trained model's entries have the names and shapes of the built one's."""
    for name in {**trained, **built}:
        if (shape := trained.get(name)) != (before := built.get(name)):
            found = ["missing" if each is None else f"of shape {each}" for each in (shape, before)]
            raise ContractError(
                f"{name!r} is {found[0]} after training and {found[1]} after build, so that no new model of `build` can"
                " take the weights; return the module that is compiled or averaged inside, and give buffers their size"
                " in `build`"
            )


def _module(result: object, name: str) -> nn.Module:
    if not isinstance(result, nn.Module):
        raise ContractError(f"{name} returned {type(result).__name__}, not a torch.nn.Module")
    return result
