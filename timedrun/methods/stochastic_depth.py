"""Stochastic depth: leave out residual branches at random during training."""

from dataclasses import field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from timedrun.methods.method import LATER, Hooks, Method, Position, Probability, unwrapped
from timedrun.methods.training.initialisation import last_norm, residual_blocks

Kind = Literal["sample", "block"]


class _Branch:
    """Forward hook at the end of a residual branch."""

    def __init__(self, keep: float, kind: Kind, divided: bool) -> None:
        self.keep, self.kind, self.divided = keep, kind, divided

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not module.training:
            return output if self.divided else output * self.keep
        if self.kind == "block":
            return output
        drawn = torch.rand(len(output), *[1] * (output.dim() - 1), device=output.device)  # bf16: a grid of 1/256
        kept = output * (drawn < self.keep)
        return kept / self.keep if self.divided else kept


class _Skippable(nn.Module):
    """Base of a residual block that can be reduced to its shortcut for a step."""

    downsample: nn.Module | None
    keep: float
    skipped: bool

    # A graph of each combination of skipped blocks would be compiled otherwise. torch.compiler.disable does the same,
    # but imports Dynamo at once, for more than a second.
    @_disable_dynamo
    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.skipped):
            return super().forward(x)  # type: ignore[no-any-return]
        shortcut = x.clone() if self.downsample is None else self.downsample(x)  # the activation may be in place
        activated: Tensor = _activation(self)(shortcut)  # type: ignore[misc]
        return activated

    def __reduce__(self) -> Any:  # pickle finds no class that is made at run time
        return _empty, (type(self).__bases__[1],), self.__dict__


def _activation(block: nn.Module) -> nn.Module | None:
    """Return what a residual block applies to the sum of its branches."""
    named = (getattr(block, name, None) for name in ("act3", "act2", "relu"))  # timm, others
    return next((layer for layer in named if isinstance(layer, nn.Module)), None)


def _ends_in_norm(block: nn.Module) -> bool:
    """Return True unless a convolution is registered after the last norm, as in a block with activations first."""
    layers, norm = [layer for layer in block.children() if layer is not block.downsample], last_norm(block)
    after = layers[layers.index(norm) :] if norm in layers else []
    return not any(isinstance(layer, nn.Conv2d) for layer in after)


def _skippable(kind: type[nn.Module]) -> type[_Skippable]:
    return type(f"Skippable{kind.__name__}", (_Skippable, kind), {})


def _empty(kind: type[nn.Module]) -> nn.Module:
    return _skippable(kind).__new__(_skippable(kind))


def keep_rates(blocks: int, rate: float, distribution: str) -> list[float]:
    """Return the probability that each of `blocks` keeps its branch: 1 - rate, or falling linearly to it, from 1 in
    the first block if "linear_from_0".

    Examples:
        >>> keep_rates(4, rate=0.2, distribution="linear")
        [0.95, 0.9, 0.85, 0.8]
    """
    if distribution == "linear_from_0":
        return [1 - rate * place / max(1, blocks - 1) for place in range(blocks)]
    return [1 - rate * ((place + 1) / blocks if distribution == "linear" else 1.0) for place in range(blocks)]


class _BlockHooks(Hooks):
    _blocks: list[_Skippable] | None = None

    def before_step(self, model: nn.Module, at: Position) -> None:
        if self._blocks is None:
            self._blocks = [block for block in unwrapped(model).modules() if isinstance(block, _Skippable)]
        drawn = replace(at, rank=0).random(self._method.name).rand(len(self._blocks))  # ranks skip the same blocks
        for block, uniform in zip(self._blocks, drawn, strict=True):
            block.skipped = bool(uniform >= block.keep)


class StochasticDepth(Method, name="stochastic_depth"):
    """Drop residual branches with a probability that grows with depth (Huang et al. 2016, arXiv 1603.09382).

    By sample, each sample's branch is multiplied by 0 or 1, without division by the probability to keep it. By block, a
    whole block is skipped for a step, with its work, and residual blocks run outside of torch.compile. Evaluation
    multiplies each branch by its probability to be kept. This is MosaicML Composer's stochastic depth from 0.8 on;
    layers and weights stay as they are. timm's drop path is `divided`, by sample, with the distribution linear_from_0.

    Examples:
        >>> StochasticDepth(kind="block", rate=0.1).skips_parameters  # `find_unused_parameters` of DDP
        True
    """

    acting: ClassVar[tuple[type, ...]] = (_Branch,)
    kind: Kind = "sample"
    rate: Probability = 0.1
    distribution: Literal["linear", "uniform", "linear_from_0"] = "linear"
    divided: bool = field(default=False, metadata=LATER)
    """By sample: divide kept branches by their probability in training; evaluation leaves all as they are."""

    @property
    def skips_parameters(self) -> bool:
        return self.kind == "block"

    def check(self) -> None:
        self.require("divided", not self.divided or self.kind == "sample", "False unless kind is sample")

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        blocks = residual_blocks(model)
        if not blocks:
            raise self.no_effect("found no residual block of a ResNet (a module with `downsample` and `bn2`)")
        for block in blocks if self.kind == "block" else ():
            if _activation(block) is None or not _ends_in_norm(block):
                raise self.no_effect(
                    f"by block skips branches that end in a norm, before an activation `relu`, `act2` or `act3` that is"
                    f" a module, which this {type(block).__name__} has not",
                    'use kind="sample" or remove it from the methods',
                )
        for block, keep in zip(blocks, keep_rates(len(blocks), self.rate, self.distribution), strict=True):
            excitation = getattr(block, "se", None)  # timm: the branch ends after it
            (excitation or last_norm(block)).register_forward_hook(_Branch(keep, self.kind, self.divided))
            if self.kind == "block":
                block.__class__ = _skippable(type(block))
                block.keep, block.skipped = keep, False  # type: ignore[assignment]
        return model, f"{len(blocks)} residual blocks, dropped at up to {self.rate:g} ({self.kind})"

    def hooks(self) -> Hooks:
        return _BlockHooks(self) if self.kind == "block" else Hooks(self)
