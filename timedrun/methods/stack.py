"""Ordered methods applied to one model and one training run."""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from judging.ground.errors import TimedrunError
from timedrun.methods.method import PLACES, Compute, Hooks, Losses, Method, NoEffect, Position, masks, moved, unwrapped
from timedrun.methods.training.sampling import Indices


class Stack:
    """Apply methods at the places of one training run, in the order of their stages.

    Args:
        methods: at most one of a name.
        seed: of all that methods draw.
        rank: of this process; each rank has its own random streams.
        places: calls that the training loop makes; None: all of them.

    Raises ValueError for methods that clash, or that act at a place that the training loop does not call.

    Examples:
        >>> from timedrun.methods import EMA, LabelSmoothing
        >>> speed = Stack(LabelSmoothing(smoothing=0.1), EMA(half_life=4, update_interval=1))
        >>> model = speed.model(nn.Linear(4, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for step in range(10):
        ...     speed.before_step(model, step, progress=step / 10)
        ...     inputs, targets = speed.batch(torch.rand(8, 4), torch.randint(2, (8,)), classes=2)
        ...     nn.functional.cross_entropy(model(inputs), targets).backward()
        ...     speed.gradients(model)
        ...     optimizer.step()
        ...     speed.after_step(model)
        >>> with speed.evaluation(model):
        ...     outputs = model(torch.rand(8, 4))
        >>> speed.report
        ['label_smoothing: 10 batches of targets smoothed by 0.1', 'ema: 10 updates of the moving average']
        >>> speed.verify()
    """

    def __init__(self, *methods: Method, seed: int = 0, rank: int = 0, places: Collection[str] | None = None) -> None:
        if wrong := [method for method in methods if not isinstance(method, Method)]:
            raise TypeError(f"stack takes methods, as in stack(BlurPool(), EMA(half_life=8)), not {wrong[0]!r}")
        names = [method.name for method in methods]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"methods given more than once: {', '.join(repeated)}; two of the same name would change the run twice "
                "and share one entry in its state; keep one of each"
            )
        for method in methods:
            for other in method.clashes.keys() & set(names):
                raise ValueError(f"{method.name} and {other} {method.clashes[other]}; remove one of them")
        self.methods = tuple(sorted(methods, key=lambda method: method.stage))
        self.position = Position(0, 0.0, seed, rank)
        """Place of the current step; `before_step` sets it."""
        self._hooks = {method.name: method.hooks() for method in self.methods}
        self._at = {
            place: [hooks for hooks in self._hooks.values() if getattr(type(hooks), place) is not getattr(Hooks, place)]
            for place in PLACES
        }  # a place without methods costs nothing
        self.require_places(PLACES if places is None else places)
        acting = {*self.acting_at("input_size"), *self.acting_at("augment"), *self.acting_at("batch")}
        self._following = [name for name, hooks in self._hooks.items() if type(hooks).move is not Hooks.move]
        """Methods that move targets with the pixels of images; `_alone`: that move the pixels alone."""
        others = [method for method in self.methods if method.name in acting.difference(self._following)]
        self._alone = [method.name for method in others if method.moves_pixels]
        self._network: nn.Module | None = None
        """The changed model, until a batch tries the sizes of images on it."""
        self._surgery: dict[str, str] = {}
        self._new: dict[str, Tensor] = {}
        self._unchanged: dict[str, tuple[Tensor, RemovableHandle]] | None = None
        """Values that trainable parameters of `_new` had at the first step and still have; None before it."""
        self._graded: set[str] = set()
        self._stepped = True
        self._idle: set[str] | None = None
        """Methods whose layers have changed no forward pass; None before the first step."""

    @property
    def skips_parameters(self) -> bool:
        """Return `find_unused_parameters` for DDP: True if some parameters get no gradient in some steps."""
        return any(method.skips_parameters for method in self.methods)

    def model(self, model: nn.Module) -> nn.Module:
        """Apply every method's surgery, in order, before you build the optimizer, compile the model or wrap it in DDP.

        Raises NoEffect if a method finds nothing to change, ValueError for lazy layers and models of one image size.
        """
        if lazy := [name for name, value in (*model.named_parameters(), *model.named_buffers()) if is_lazy(value)]:
            raise ValueError(
                f"lazy layers have no {', '.join(lazy)} yet; nothing was changed; run a batch through them"
            )
        declared = (getattr(part, name, None) for part in model.modules() for name in ("img_size", "image_size"))
        size = next(filter(None, declared), None) if self._following else None
        if size and (stem := next((weight for weight in model.parameters() if weight.dim() == 4), None)) is not None:
            channels, (height, width) = stem.shape[1], (size, size) if isinstance(size, int) else size
            self._require_sizes(model, (channels, height, width), [(channels, 2 * height, 2 * width)])
        before = set(model.parameters())
        for method in self.methods:
            model, change = method.model(model)
            self._surgery[method.name] = change
        self._new = {name: parameter for name, parameter in model.named_parameters() if parameter not in before}
        self._network = model
        return model

    def require_places(self, places: Collection[str]) -> None:
        """Raise ValueError if a method acts at a place that the training loop does not call, or needs tensors in a loop
        that calls "batch_dict" in place of "batch".

        Examples:
            >>> from timedrun.methods import SAM
            >>> Stack(SAM()).require_places(["before_step", "batch", "after_step"])
            Traceback (most recent call last):
                ...
            ValueError: sam acts on `backward`, which this training loop does not call; remove it from the methods
        """
        by_dict = "batch_dict" in places
        for method in self.methods:
            if by_dict and (needed := method.needs_tensors):
                raise ValueError(
                    f"{method.name} {needed}, but this training loop passes a dict to its model; remove it from the"
                    " methods, or write a loop of your own that calls `batch`"
                )
        for place in set(PLACES).difference(places, ["batch"] * by_dict):
            if acting := ", ".join(self.acting_at(place)):
                raise ValueError(
                    f"{acting} acts on `{place}`, which this training loop does not call; remove it from the methods"
                )

    def acting_at(self, place: str) -> dict[str, Hooks]:
        """Return the hooks of each method that acts at `place`, by the method's name.

        Examples:
            >>> from timedrun.methods import SAM, GradientClipping
            >>> list(Stack(SAM(), GradientClipping()).acting_at("backward"))
            ['sam']
        """
        return {name: hooks for name, hooks in self._hooks.items() if hooks in self._at[place]}

    def require_reach(self, progress: float, steps: float) -> None:
        """Raise NoEffect for a method without effect in a run of `steps` steps, the last of which begins at `progress`.

        Examples:
            >>> from timedrun.methods import SWA
            >>> Stack(SWA(end=0.97)).require_reach(progress=0.99, steps=100)
            >>> Stack(SWA(end=0.97)).require_reach(progress=0.9, steps=10)
            Traceback (most recent call last):
                ...
            timedrun.methods.method.NoEffect: swa acts from 0.97 of the run on, but the last step begins at 0.9; ...
        """
        for method in self.methods:
            if method.steps_needed > steps:
                raise NoEffect(
                    f"{method.name} has its first effect after {method.steps_needed} optimizer steps, but the run has"
                    f" {steps:g}; have it act earlier, or train longer"
                )
            if method.acts_from > progress:
                raise NoEffect(
                    f"{method.name} acts from {method.acts_from:g} of the run on, but the last step begins at "
                    f"{progress:.3g}; have it act earlier, or count progress by steps, or train longer"
                )

    def require_in(self, *optimizers: torch.optim.Optimizer) -> None:
        """Raise ValueError unless the optimizers have the trainable parameters that surgery created.

        Examples:
            >>> from timedrun.methods import SqueezeExcite
            >>> speed, net = Stack(SqueezeExcite()), nn.Sequential(nn.Conv2d(128, 128, 3))
            >>> model = speed.model(net)
            >>> speed.require_in(torch.optim.SGD(model.parameters(), lr=0.1))
        """
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        held = {id(parameter) for group in groups for parameter in group["params"]}
        if lacking := [name for name, new in self._new.items() if new.requires_grad and id(new) not in held]:
            raise ValueError(
                f"the optimizer lacks {len(lacking)} parameters that the methods created, for example {lacking[0]}: it "
                "was built before `model` was called, and would not train them; build it from the changed model"
            )

    def input_size(self, size: int, progress: float) -> int:
        """Return the side in pixels at which to load training images: `size` unless a method requests less at
        `progress`. `batch` does not resize images again that are loaded smaller.

        Examples:
            >>> from timedrun.methods import ProgressiveResizing
            >>> Stack(ProgressiveResizing(where="loader", start=0.5)).input_size(224, progress=0.0)
            112
        """
        for hooks in self._at["input_size"]:
            size = hooks.input_size(size, progress)
        return size

    def augment(self, images: Tensor, samples: Indices, epoch: int) -> Tensor:
        """Pass loaded images of 8 bits (N, C, H, W), the training samples `samples`, through every method.

        Examples:
            >>> from timedrun.methods import RandAugment
            >>> import numpy as np
            >>> images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
            >>> Stack(RandAugment()).augment(images, samples=np.array([5, 9]), epoch=0).shape
            torch.Size([2, 3, 8, 8])
        """
        for hooks in self._at["augment"]:
            images = hooks.augment(images, samples, epoch, self.position.seed)
        return images

    def before_step(self, model: nn.Module, step: int, progress: float, samples: Indices | None = None) -> None:
        """Begin optimizer step `step` (from 0); `progress` is the elapsed fraction of the whole run, in [0, 1], and
        `samples` has the numbers of the samples of this rank's batch."""
        self.enter(step, progress, samples)
        if self._unchanged is None:
            self._unchanged = {
                name: (new.detach().clone(), new.register_post_accumulate_grad_hook(partial(self._grade, name)))  # type: ignore[no-untyped-call]
                for name, new in self._new.items()
                if new.requires_grad
            }
        for hooks in self._at["before_step"]:
            hooks.before_step(model, self.position)

    def _grade(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is not None and parameter.grad.any():
            self._graded.add(name)

    def enter(self, step: int, progress: float, samples: Indices | None = None) -> None:
        """Set the position of `batch` and the others, as `before_step` does, without a model.

        Examples:
            >>> speed = Stack(seed=3)
            >>> speed.enter(step=5, progress=0.5)
            >>> speed.position.step
            5
        """
        if not -1e-6 <= progress <= 1 + 1e-6:  # rounding apart
            raise ValueError(
                f"progress is the share of the whole run that is done, 0 to 1, not {progress}; "
                "pass the steps done / the steps of the whole run"
            )
        self.position = replace(self.position, step=step, progress=progress, micro_batch=0, samples=samples)
        self._stepped = False

    def select(self, inputs: Tensor, targets: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
        """Return the samples of a batch to train on; `losses` returns the loss of each sample, without gradients.

        Examples:
            >>> from timedrun.methods import SelectiveBackprop
            >>> speed = Stack(SelectiveBackprop(start=0.0, keep=0.5))
            >>> speed.enter(step=0, progress=0.0)
            >>> inputs, targets = speed.select(torch.rand(8, 4), torch.arange(8), lambda x, y: x.sum(1))
            >>> len(inputs)
            4
        """
        for hooks in self._at["select"]:
            inputs, targets = hooks.select(inputs, targets, losses, self.position)
        return inputs, targets

    def batch(self, inputs: Tensor, targets: Any, classes: int) -> tuple[Tensor, Any]:
        """Pass one training batch of `classes` classes through every method.

        Targets are a tensor, or a tuple, list or dict of tensors. Targets of three or more dimensions beside images,
        such as masks [N, H, W], move with the pixels, or a method that moves pixels raises ValueError.
        """
        if not isinstance(inputs, Tensor):
            raise TypeError(f"batch takes tensors, not {type(inputs).__name__}; batch_dict takes a dict of them")
        maps = inputs.dim() > 3 and masks(targets)
        if maps and self._alone:
            raise _left_behind(self._alone, inputs, maps[0])
        if self._at["batch"]:
            if self._stepped:
                raise RuntimeError("`before_step` was not called for this step; call it before `batch`")
            if self._following and self._network is not None and inputs.dim() == 4:
                self._require_sizes(self._network, inputs.shape[1:], self._sizes(inputs.shape[1:]))
            self._network, size = None, inputs.shape[-2:]
            for hooks in self._at["batch"]:
                inputs, targets = hooks.batch(inputs, targets, self.position, classes)
                targets = moved(targets, partial(hooks.move, at=self.position)) if maps else targets
            for part in masks(targets) if maps and inputs.shape[-2:] != size else ():
                if part.shape[-2:] != inputs.shape[-2:]:
                    raise _left_behind(self.acting_at("batch"), inputs, part)
            self.position = replace(self.position, micro_batch=self.position.micro_batch + 1)
        return inputs, targets

    def _sizes(self, shape: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield [C, H, W] of what the methods make, in a run, of images of `shape`."""
        for step in range(101):
            images, at = torch.empty(2, *shape, device="meta"), replace(self.position, progress=step / 100)
            for hooks in (method.hooks() for method in self.methods if method.name in self._following):
                images, _ = hooks.batch(images, images, at, 0)
            yield images.shape[1:]

    def _require_sizes(self, network: nn.Module, shape: Sequence[int], sizes: Iterable[Sequence[int]]) -> None:
        """Raise ValueError if `network` takes images of `shape`, but not of all `sizes`. A copy without values is tried
        and, if it does not take `shape`, as one of several inputs, not judged."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                sizes = dict.fromkeys(sizes)
                values = {id(value): value.detach().to("meta") for value in (*network.parameters(), *network.buffers())}
                network = copy.deepcopy(network, values)
                images = torch.empty(2, *shape, dtype=next(network.parameters()).dtype, device="meta")
                network(images)
            except Exception:  # of any model
                return
            for size in sizes:
                try:
                    network(images.new_empty(2, *size))
                except Exception as error:
                    raise ValueError(
                        f"{', '.join(self._following)} makes images of other sizes than {list(shape)}, and the model"
                        f" does not take {list(size)} ({error}); no step was taken; remove it, set sizes that fit, or"
                        " let the model take any (timm: dynamic_img_size=True, transformers: interpolate_pos_encoding)"
                    ) from error

    def batch_dict(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Pass a batch of a transformers model through every method.

        Methods change "pixel_values", or "input_ids" and every other field of their shape (attention_mask, labels,
        ...). If they cut these, they cut each dimension of that length in other fields, such as a mask (B, 1, L, L);
        fields without one stay. Beside "pixel_values", fields of three or more dimensions move with the pixels, as the
        targets of `batch` do.

        Raises ValueError if a method changes targets, or the number of rows that a kept field belongs to, or if it cuts
        off every label.

        Examples:
            >>> from timedrun.methods import SequenceLengthWarmup
            >>> speed = Stack(SequenceLengthWarmup(steps=100, max_length=64))
            >>> speed.enter(step=0, progress=0.0)
            >>> tokens = torch.zeros(2, 64, dtype=torch.long)
            >>> speed.batch_dict({"input_ids": tokens, "labels": tokens})["labels"].shape
            torch.Size([2, 8])
        """
        key = "pixel_values" if "pixel_values" in batch else "input_ids"
        if key not in batch:
            raise ValueError(f"a batch needs pixel_values or input_ids, got {', '.join(batch)}; pass tensors to batch")
        if not isinstance(inputs := batch[key], Tensor):
            raise TypeError(f"{key} must be a tensor, not {type(inputs).__name__}; let the collator return tensors")
        rows = torch.arange(len(inputs), device=inputs.device)
        if key == "pixel_values":
            maps = {name: field for name, field in batch.items() if name != key and masks(field)}
            pixels, targets = self.batch(inputs, (rows, maps) if maps else rows, 0)
            targets, maps = targets if maps else (targets, maps)
            changed, same = {**maps, key: pixels}, targets.dtype == rows.dtype
        else:  # token methods cut and reshape: done to positions, one result serves every field
            positions = torch.arange(inputs.numel(), device=inputs.device).view(inputs.shape)
            chosen, _ = self.batch(positions, positions, 0)
            if chosen is positions:
                return {**batch}
            alike = [name for name, field in batch.items() if getattr(field, "shape", None) == inputs.shape]
            changed = {name: batch[name].flatten()[chosen] for name in alike}
            length, others = chosen.shape[1], {name: batch[name] for name in batch if name not in changed}
            if same := torch.equal(chosen, positions[:, :length]):
                changed |= {name: _cut(others[name], len(inputs), inputs.shape[1], length) for name in others}
            else:  # rows are new ones
                same = not any({*inputs.shape}.intersection(_sizes(field)) for field in others.values())
            if "labels" in alike and bool((changed["labels"] < 0).all()) and not bool((batch["labels"] < 0).all()):
                raise ValueError(
                    f"the methods cut sequences of {inputs.shape[1]} tokens to {length}, and every label that is left "
                    "is ignored (-100), so nothing could be learned; use a larger min_length"
                )
        if not same:
            raise ValueError(
                "the methods change targets or the number of rows, but batch_dict keeps the fields "
                f"{sorted(batch.keys() - changed.keys())}; pass tensors to batch, or remove the method"
            )
        return {**batch, **changed}

    def backward(self, compute: Compute, model: nn.Module) -> Tensor:
        """Compute the gradients of a step and return the loss. A method may call `compute`, which runs the forward and
        backward passes and returns their loss, several times, with False if the ranks need not reduce the gradients.

        Examples:
            >>> from timedrun.methods import SAM
            >>> speed, model = Stack(SAM(rho=0.05)), nn.Linear(4, 1)
            >>> def compute(reduced):
            ...     loss = model(torch.ones(8, 4)).square().mean()
            ...     loss.backward()
            ...     return loss
            >>> speed.before_step(model, 0, progress=0.0)
            >>> speed.backward(compute, model).ndim
            0
        """
        for hooks in reversed(self._at["backward"]):
            compute = _within(hooks, compute, model, self.position)
        return compute(True)

    def outputs(self, outputs: Tensor) -> Tensor:
        """Pass a model's outputs for a batch that `select` returned, or for the next part of it, through every method.
        Call it between the model and the loss."""
        for hooks in self._at["outputs"]:
            outputs = hooks.outputs(outputs, self.position)
        return outputs

    def gradients(self, model: nn.Module) -> None:
        """Change the gradients of a step, reduced over the ranks and unscaled, before the optimizer uses them."""
        for hooks in self._at["gradients"]:
            hooks.gradients(model, self.position)

    def after_step(self, model: nn.Module) -> None:
        """Notify every method that the optimizer took the step begun by `before_step`."""
        if self._stepped and self.methods:
            raise RuntimeError("`before_step` was not called for this step; call it before `after_step`")
        self._stepped = True
        if self._idle is None or self._idle:
            layers = [part for layer in unwrapped(model).modules() for part in (layer, *layer._forward_hooks.values())]
            acted = [part for part in layers if getattr(part, "acted", True)]
            acting = [method for method in self.methods if method.acting and method.name in self._surgery]
            self._idle = {
                method.name for method in acting if not any(isinstance(part, method.acting) for part in acted)
            }
        for name, (before, handle) in [*(self._unchanged or {}).items()]:
            if not torch.equal(new := self._new[name].detach(), before.to(new)):
                handle.remove()
                del (self._unchanged or {})[name]
        for hooks in self._at["after_step"]:
            hooks.after_step(model, self.position.step + 1)

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        """Apply every method's changes for an evaluation and undo them on exit, also after an error."""
        with ExitStack() as contexts:
            for hooks in self._at["evaluation"]:
                contexts.enter_context(hooks.evaluation(model))
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every method by its name.

        Examples:
            >>> from timedrun.methods import LabelSmoothing
            >>> Stack(LabelSmoothing()).state_dict()
            {'label_smoothing': {'batches': 0}}
        """
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
        """Return one line a method, "name: what it did"; a method that has done nothing yet says so."""
        return [f"{name}: {'; '.join(done) or 'nothing yet'}" for name, done in self._done().items()]

    def verify(self) -> None:
        """Raise an error for a run that a result must not describe by its methods.

        Raises:
            NoEffect: a method changed neither the model nor the run, or a trainable parameter that surgery created got
                a gradient other than 0 in some step and no step changed it.
            TimedrunError: a method is for profiling.
        """
        if profiling := [method.name for method in self.methods if method.profiling]:
            raise TimedrunError(
                f"{', '.join(profiling)} is for profiling: no result counts; remove it to train a model"
            )
        if idle := [name for name, done in self._done().items() if not done]:
            raise NoEffect(
                f"changed nothing in this run: {', '.join(idle)}; a result must not name a method that had no part in "
                "it; remove it, or use a model and a schedule on which it acts: batches above ghost_batch, autocast "
                "for low-precision norms, layers that nothing replaces after `Stack.model`"
            )

        if untrained := [name for name in self._unchanged or () if name in self._graded]:
            raise NoEffect(
                f"the methods created {len(untrained)} parameters that had gradients and that no step changed:"
                f" {', '.join(untrained)}; build the optimizer after `Stack.model`, with all parameters of its model"
            )

    def _done(self) -> dict[str, list[str]]:
        idle = self._idle or ()
        return {
            name: [change for change in (self._surgery.get(name), hooks.effect()) if change and name not in idle]
            for name, hooks in self._hooks.items()
        }


def _left_behind(names: Collection[str], images: Tensor, targets: Any) -> ValueError:
    return ValueError(
        f"{', '.join(names)} would move pixels of images {list(images.shape)} without their targets"
        f" {list(targets.shape)}; no step was taken; remove it from the methods, and move both in your loader; a method"
        " of your own defines `Hooks.move`, or has `moves_pixels = False`"
    )


def _sizes(field: Any) -> Sequence[int]:
    return (len(field),) if isinstance(field, list) else getattr(field, "shape", ())


def _cut(field: Any, rows: int, length: int, to: int) -> Any:
    """Return a tensor, or a list of tensors or lists, with every dimension `length` cut to `to`, but not the first one
    if it is that of the rows; anything else as it is."""
    for dimension, size in enumerate(_sizes(field)):
        if size == length and (dimension or size != rows):
            field = field[:to] if dimension == 0 else field[(slice(None),) * dimension + (slice(to),)]
    if isinstance(field, list):
        return [_cut(item, 0, length, to) for item in field]
    return field.contiguous() if isinstance(field, Tensor) else field


def _within(hooks: Hooks, compute: Compute, model: nn.Module, at: Position) -> Compute:
    return lambda reduced: hooks.backward(compute, model, at)


stack = Stack  # `stack(BlurPool(), EMA())` reads as a call
