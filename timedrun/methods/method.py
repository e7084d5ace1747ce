"""Interface of a speed-up method: frozen hyper-parameters, model surgery, and hooks at places of a training loop."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, Literal, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map

from judging.ground.errors import TimedrunError
from timedrun.methods.training.sampling import Indices, stream_seed

LATER: Final = {"later": True}
"""Metadata of a field that earlier configs do not have: at its default it is in no dump, so their digests stay."""
Compute = Callable[[bool], Tensor]
"""Forward and backward passes of one optimizer step. Takes False if the gradients need not be reduced over the ranks;
adds to the gradients and returns the loss."""
Losses = Callable[[Tensor, Tensor], Tensor]
"""(inputs, targets) -> the loss of each sample [N], without gradients."""


@dataclass(frozen=True)
class Rule:
    """Limit the values of a field: `Annotated[type, Rule(holds, words)]`.

    A value for which `holds` is False raises ValueError, which says that it must be as `words` have it.

    Examples:
        >>> class Noise(Method):
        ...     scale: Annotated[float, Rule(lambda scale: scale > 0, "above 0")] = 0.1
        >>> Noise(scale=-1.0)
        Traceback (most recent call last):
            ...
        ValueError: timedrun.methods.method:Noise.scale must be above 0, not -1.0
    """

    holds: Callable[[Any], bool]
    words: str


Positive = Annotated[float, Rule(lambda value: value > 0, "above 0")]
NotNegative = Annotated[int, Rule(lambda value: value >= 0, "0 or more")]
Count = Annotated[int, Rule(lambda value: value >= 1, "1 or more")]
Steps = Annotated[int, Rule(lambda value: value >= 1, "1 step or more")]
Finite = Annotated[float, Rule(lambda value: 0 < value < float("inf"), "above 0 and finite")]
Fraction = Annotated[float, Rule(lambda value: 0 <= value <= 1, "a fraction between 0 and 1")]
Part = Annotated[float, Rule(lambda value: 0 < value <= 1, "above 0 and at most 1")]
Probability = Annotated[float, Rule(lambda value: 0 < value < 1, "a probability between 0 and 1")]


class NoEffect(TimedrunError, RuntimeError):
    """Raised if a requested method changed nothing: a result that names the method would be wrong.

    Examples:
        >>> from timedrun.methods import BlurPool, stack
        >>> try:
        ...     stack(BlurPool()).model(nn.Linear(4, 2))
        ... except NoEffect:
        ...     print("nothing to blur")
        nothing to blur
    """


class Stage(IntEnum):
    """Name the part of a run that a method changes. A stack applies its methods in the order of their stages, whatever
    order they are given in, and methods of one stage in the order given.

    Examples:
        >>> Stage.MODEL < Stage.TARGETS < Stage.WEIGHTS
        True
    """

    MODEL = 0
    """Layers and their initial weights."""
    FORMAT = 1
    """Memory format and number format of layers that exist."""
    SAMPLES = 2
    """Each training image on its own, in the loader."""
    SIZE = 3
    """Size of the inputs: resolution, sequence length."""
    REMOVAL = 4
    """Rows, columns and regions left out of images of that size."""
    TARGETS = 5
    MIXING = 6
    """Combination of samples, after their targets are dense."""
    STEP = 7
    """Forward and backward passes, gradients, and which parameters train."""
    WEIGHTS = 8
    """Weights after the optimizer step."""


@dataclass(frozen=True, slots=True)
class Position:
    """Name a place in a run. What a method draws or schedules is a function of it alone, so a resumed run repeats it.

    Examples:
        >>> at = Position(step=10, progress=0.5, seed=1)
        >>> at.random("mixup").rand() == at.random("mixup").rand()
        True
        >>> at.random("mixup").rand() == at.random("cutmix").rand()
        False
    """

    step: int
    """Optimizer steps taken before this one."""
    progress: float
    """Elapsed fraction of the run, in [0, 1], as the loop counts."""
    seed: int = 0
    rank: int = 0
    micro_batch: int = 0
    """Batches of this step that passed through the methods before this one."""
    samples: Indices | None = field(default=None, compare=False)
    """Numbers of the samples of this rank's batch, if the loop tells them."""

    def random(self, name: str) -> np.random.RandomState:
        """Return the random stream of the method `name` at this place. NumPy promises never to change RandomState's
        numbers; those of its newer generators may change."""
        seed = stream_seed(self.seed, name, self.step, self.micro_batch, self.rank)
        return np.random.RandomState(np.array([seed >> 32, seed & 0xFFFFFFFF], dtype=np.uint32))


class Hooks:
    """Hold the run-time state of one method in one run. Hooks have no effect unless a subclass overrides them.

    A training loop calls each hook at the place of the same name, in the order below.

    Examples:
        >>> class Halving(Hooks):
        ...     def gradients(self, model, at):
        ...         for parameter in model.parameters():
        ...             parameter.grad /= 2
        >>> class HalvedGradients(Method, name="halved", stage=Stage.STEP, hooks=Halving):
        ...     done = "gradients halved"
        >>> HalvedGradients().hooks().effect() is None
        True
    """

    saved: ClassVar[tuple[str, ...]] = ()
    """Attributes that a resumed run needs: plain values and tensors."""
    done: ClassVar[str] = ""
    """Description of the effect, once the first of `saved` is true, with fields such as {hooks.steps}, {method.p}."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def input_size(self, size: int, progress: float) -> int:
        """Return the side in pixels at which to load training images at `progress`; `size` is the full side."""
        return size

    def augment(self, images: Tensor, samples: Indices, epoch: int, seed: int) -> Tensor:
        """Change loaded training images (N, C, H, W) of 8 bits: each by its number in `samples`, epoch and seed.

        Called in a loader's thread for images on the training device, ahead of the step that uses them.
        """
        return images

    def before_step(self, model: nn.Module, at: Position) -> None:
        """Prepare `model` for the optimizer step `at`."""

    def select(self, inputs: Tensor, targets: Tensor, losses: Losses, at: Position) -> tuple[Tensor, Tensor]:
        """Return the samples of a batch to train on."""
        return inputs, targets

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        """Change one training batch."""
        return inputs, targets

    def move(self, maps: Tensor, at: Position) -> Tensor:
        """Move `maps` [N, ..., H, W], targets for each pixel of the images, as `batch` moves these. Called after it."""
        return maps

    def backward(self, compute: Compute, model: nn.Module, at: Position) -> Tensor:
        """Compute the gradients of one step by one or more calls of `compute`; return the loss to report."""
        return compute(True)

    def outputs(self, outputs: Tensor, at: Position) -> Tensor:
        """Change the model's outputs for the inputs, or for the next part of them, in a forward pass of training."""
        return outputs

    def gradients(self, model: nn.Module, at: Position) -> None:
        """Change the gradients, which are reduced over the ranks and unscaled, before the optimizer uses them."""

    def after_step(self, model: nn.Module, step: int) -> None:
        """Follow an optimizer step; `step` counts from 1."""

    def evaluation(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context in which the model is evaluated."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the attributes `saved`, which later steps do not change."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the output of `state_dict`. Raises ValueError if the state does not fit this method."""
        if state.keys() != set(self.saved):
            raise ValueError(f"{type(self).__name__} restores {list(self.saved)}, but the state has {sorted(state)}")
        for name, value in state.items():
            setattr(self, name, copy.deepcopy(value))

    def effect(self) -> str | None:
        """Return a description of the effect so far, or None if the hooks have changed nothing."""
        done = self.done and getattr(self, self.saved[0])
        return self.done.format(hooks=self, method=self._method) if done else None


class BatchHooks(Hooks):
    """Count the batches that the hooks change, in `batches`.

    Examples:
        >>> class Negation(BatchHooks):
        ...     done = "{hooks.batches} batches negated"
        ...     def batch(self, inputs, targets, at, classes):
        ...         self.batches += 1
        ...         return -inputs, targets
        >>> hooks = Negation(Method())
        >>> _ = hooks.batch(torch.ones(2), torch.zeros(2), Position(0, 0.0), classes=2)
        >>> hooks.effect()
        '1 batches negated'
    """

    saved = ("batches",)
    batches = 0


class SizeHooks(Hooks):
    """Count the batches of each size, in pixels or tokens. The text `done` may contain {least} and {most}.

    Examples:
        >>> hooks = SizeHooks(Method())
        >>> hooks.done = "of {least} to {most} px"
        >>> for size in (112, 224, 224):
        ...     hooks.count(size)
        >>> hooks.effect()
        '3 batches of 112 to 224 px'
    """

    saved = ("batches",)

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        self.batches: dict[int, int] = {}

    def count(self, size: int) -> None:
        """Count one batch of `size`."""
        self.batches[size] = self.batches.get(size, 0) + 1

    def effect(self) -> str | None:
        if not self.batches:
            return None
        done = self.done.format(least=min(self.batches), most=max(self.batches))
        return f"{sum(self.batches.values())} batches {done}"


PLACES = (
    *("input_size", "augment", "before_step", "select", "batch"),
    *("backward", "outputs", "gradients", "after_step", "evaluation"),
)
"""Places of a training loop that call the hooks."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Method:
    """Describe a published speed-up method by its hyper-parameters, without the state of a run.

    A subclass becomes a frozen dataclass. It states its name (default: `module:X`), its stage and its hooks in `class
    X(Method, name=..., stage=..., hooks=...)`.

    Examples:
        >>> class Halve(Method, name="halve"):
        ...     def model(self, model):
        ...         with torch.no_grad():
        ...             model[-1].bias /= 2
        ...         return model, "bias halved"
        >>> Halve().model(nn.Sequential(nn.Linear(4, 2)))[1]
        'bias halved'
    """

    name: ClassVar[str] = ""
    stage: ClassVar[Stage] = Stage.MODEL
    clashes: ClassVar[dict[str, str]] = {}
    """Methods that cannot be combined with this one, by name, and the reason."""
    profiling: ClassVar[bool] = False
    """For measuring times alone: no result of a run with this method counts."""
    acting: ClassVar[tuple[type, ...]] = ()
    """Layers and forward hooks that surgery adds; one has to be there after a step, with `acted`, if any, set."""
    moves_pixels: ClassVar[bool] = True
    """Its hooks at `input_size`, `augment` or `batch` move pixels. Targets for each pixel are refused unless the hooks
    `move` them, too. False: every pixel stays where it is, whatever its value."""
    _hooks: ClassVar[type[Hooks]] = Hooks

    def __init_subclass__(cls, name: str = "", stage: Stage | None = None, hooks: type[Hooks] | None = None) -> None:
        cls.name = name or f"{cls.__module__}:{cls.__qualname__}"
        cls.stage, cls._hooks = cls.stage if stage is None else stage, hooks or cls._hooks
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            if get_origin(kind) is Literal:
                self.require(name, getattr(self, name) in get_args(kind), f"one of {', '.join(get_args(kind))}")
            for rule in [note for note in notes if isinstance(note, Rule)]:
                self.require(name, rule.holds(getattr(self, name)), rule.words)
        self.check()

    def check(self) -> None:
        """Raise ValueError for hyper-parameters that do not fit together, as `require` does."""

    def require(self, field: str, holds: bool, rule: str) -> None:
        """Raise ValueError unless `holds`: `field` must be as `rule` has it."""
        if not holds:
            raise ValueError(f"{self.name}.{field} must be {rule}, not {getattr(self, field)!r}")

    def no_effect(self, reason: str, remedy: str = "remove it from the methods") -> NoEffect:
        """Return the error of a method that cannot change this model for `reason`, such as "found no convolution"."""
        return NoEffect(f"{self.name} {reason}; {remedy}")

    @property
    def skips_parameters(self) -> bool:
        """Return True if some trainable parameters get no gradient in some steps, for which DDP must search."""
        return False

    @property
    def recompiles(self) -> bool:
        """Return True if the model's graph changes in training, so that torch.compile compiles it on the clock."""
        return False

    @property
    def acts_from(self) -> float:
        """Return the elapsed fraction of a run before which the method has no effect."""
        return 0.0

    @property
    def steps_needed(self) -> int:
        """Return the optimizer steps after which the method first has an effect."""
        return 1

    @property
    def needs_tensors(self) -> str:
        """Return what the method does that a model does not allow that takes a dict by keyword; "" if nothing."""
        return "changes targets" if self.stage in (Stage.TARGETS, Stage.MIXING) else ""

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        """Change the model before the optimizer is built; return it and a description of the change ("": none).

        Raises NoEffect if the model contains nothing to change.
        """
        return model, ""

    def hooks(self) -> Hooks:
        """Return new hooks of this method, for one run."""
        return self._hooks(self)


def masks(targets: Any) -> list[Any]:
    """Return the parts of `targets` that have a value for each pixel of images: tensors of three dimensions or more.
    `targets` is a tensor, or a tuple, list or dict of tensors.

    Examples:
        >>> [part.shape for part in masks((torch.zeros(4), torch.zeros(4, 32, 32)))]
        [torch.Size([4, 32, 32])]
    """
    return [part for part in tree_leaves(targets) if getattr(part, "ndim", 0) > 2]


def moved(targets: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Return `targets` after `move` of the parts that `masks` returns.

    Examples:
        >>> classes, mask = moved((torch.tensor([7]), torch.tensor([[[0, 1]]])), lambda mask: mask.flip(-1))
        >>> classes, mask
        (tensor([7]), tensor([[[1, 0]]]))
    """
    return tree_map(lambda part: move(part) if masks(part) else part, targets)


def left_out(layers: Iterable[nn.Module]) -> str:
    """Describe the layers that a method left unchanged, by type; "" for none.

    Examples:
        >>> left_out([nn.ReLU(), nn.ReLU()])
        '; left as they were: 2 torch.nn.modules.activation.ReLU'
    """
    kinds = Counter(f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in layers)
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    return f"; left as they were: {counts}" if counts else ""


def replace_layers(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Put each layer of `new` in every place of `model` that holds its key.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
        >>> replace_layers(model, {model[1]: nn.GELU()})
        >>> model[1]
        GELU(approximate='none')
    """
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children() hides the second of two uses
            if child is not None and child in new:
                setattr(parent, name, new[child])


def hooked(layer: nn.Module) -> bool:
    """Return True if `layer` has forward or backward hooks, which a new layer would lack.

    Examples:
        >>> layer = nn.ReLU()
        >>> _ = layer.register_forward_hook(lambda module, inputs, output: None)
        >>> hooked(layer), hooked(nn.ReLU())
        (True, False)
    """
    kinds = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    return any(kinds)


def require_images(name: str, inputs: Tensor) -> None:
    """Raise ValueError unless `inputs`, of the method `name`, are images [N, C, H, W].

    Examples:
        >>> require_images("cutmix", torch.rand(2, 3, 8, 8))
    """
    if inputs.dim() != 4:
        raise ValueError(
            f"{name} needs images [batch, channels, height, width], got {list(inputs.shape)}; remove it from the "
            "methods of this model"
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile and DistributedDataParallel, so that parameter names depend on neither.

    Examples:
        >>> model = nn.Linear(4, 2)
        >>> unwrapped(torch.compile(model)) is model
        True
    """
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's part of each DTensor, such as fully_shard makes, and the other tensors unchanged. A part
    shares the memory of its DTensor. Operators on lists take no mixture of the two kinds.

    Examples:
        >>> weight = torch.ones(2)
        >>> local_tensors([weight])[0] is weight
        True
    """
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]  # import: half a second
