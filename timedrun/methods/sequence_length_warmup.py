"""Sequence length warm-up: train on short sequences first and lengthen them over the first part of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from timedrun.methods.method import Hooks, Method, Position, Stage


def warmed_length(step: int, *, steps: int, duration: float, min_length: int, max_length: int, step_size: int) -> int:
    """Return the sequence length in tokens at optimizer step `step` (from 0) of a run of `steps`.

    It is step_size * (step // n), at least `min_length` and at most `max_length`, where n, in steps, is
    int(steps * duration) // ((max_length - min_length) // step_size): MosaicML Composer's staircase, which begins at
    0 and so stays at `min_length` a while, and ends up to one increment and n steps after `duration`.
    Raises ValueError for fewer steps than increments, or no increment at all.
    """
    increments = (max_length - min_length) // step_size
    warming = int(steps * duration)
    if increments < 1 or warming < increments:
        raise ValueError(
            f"sequence_length_warmup grows from {min_length} to {max_length} tokens in {increments} increments of "
            f"{step_size}, but lasts {warming} steps ({duration:g} of {steps}); each increment needs at least one step"
        )
    return min(max(step_size * (step // (warming // increments)), min_length), max_length)


def cut(tokens: Tensor, length: int, *, truncate: bool) -> Tensor:
    """Cut sequences (B, L) to `length`: their beginnings (B, length), or, without `truncate`, all tokens end
    to end in rows (B * L // length, length), those that fill no row dropped. Unchanged where L is not longer.
    """
    if tokens.shape[1] <= length:
        return tokens
    if truncate:
        return tokens[:, :length].contiguous()
    rows = tokens.numel() // length
    return tokens.reshape(-1)[: rows * length].view(rows, length)


class _SequenceLengthWarmupHooks(Hooks):
    saved = ("batches",)

    def __init__(self, method: SequenceLengthWarmup) -> None:
        self._method = method
        self.batches: dict[int, int] = {}  # length in tokens -> batches cut to it

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if inputs.dim() != 2 or inputs.shape != targets.shape:
            raise ValueError(
                "sequence_length_warmup needs tokens and targets [batch, length], got "
                f"{list(inputs.shape)} and {list(targets.shape)}; remove it from the methods of this model"
            )
        length = self._method.length(at.progress)
        if length >= inputs.shape[1]:
            return inputs, targets
        self.batches[length] = self.batches.get(length, 0) + 1
        truncate = self._method.truncate
        return cut(inputs, length, truncate=truncate), cut(targets, length, truncate=truncate)

    def effect(self) -> str | None:
        if not self.batches:
            return None
        return f"{sum(self.batches.values())} batches cut to {min(self.batches)}..{max(self.batches)} tokens"


@dataclass(frozen=True, kw_only=True)
class SequenceLengthWarmup(Method):
    """Curriculum over sequence length (Li, Zhang and He 2021, arXiv 2108.06084), as in MosaicML Composer.

    With `truncate` the rest of each sequence is not trained on. Lengths change with the optimizer step: the caller's
    progress must be the share of `steps` taken.
    """

    name: ClassVar[str] = "sequence_length_warmup"
    stage: ClassVar[Stage] = Stage.SIZE
    steps: int
    """Optimizer steps of the whole run, of which `duration` is a fraction."""
    duration: float = 0.3
    min_length: int = 8
    max_length: int = 1024
    step_size: int = 8
    truncate: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int):
            raise ValueError(f"sequence_length_warmup.steps is a number of optimizer steps, not {self.steps!r}")
        if not 0 < self.duration <= 1:
            raise ValueError(f"sequence_length_warmup.duration must be a share of the run above 0, not {self.duration}")
        if not 1 <= self.min_length < self.max_length or self.step_size < 1:
            raise ValueError(
                f"sequence_length_warmup needs 1 <= min_length < max_length and a step_size of 1 or more, not "
                f"{self.min_length}, {self.max_length}, {self.step_size}"
            )
        self.length(0.0)

    def length(self, progress: float) -> int:
        return warmed_length(
            round(progress * self.steps),
            steps=self.steps,
            duration=self.duration,
            min_length=self.min_length,
            max_length=self.max_length,
            step_size=self.step_size,
        )

    def hooks(self) -> Hooks:
        return _SequenceLengthWarmupHooks(self)
