"""Sequence length warm-up: train on short sequences first and lengthen them over the first part of the run."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from timedrun.methods.method import Count, Method, Position, Rule, SizeHooks, Stage

Pacing = Literal["linear", "composer_2022"]


def cut(tokens: Tensor, length: int, *, truncate: bool) -> Tensor:
    """Cut sequences (B, L) to `length`; return them unchanged if L is not longer.

    Args:
        truncate: keep the beginnings (B, length). Otherwise keep all tokens, end to end in rows (B * L // length,
            length), and drop those that fill no row.

    Examples:
        >>> tokens = torch.arange(8).view(1, 8)
        >>> cut(tokens, 3, truncate=True), cut(tokens, 3, truncate=False)
        (tensor([[0, 1, 2]]), tensor([[0, 1, 2],
                [3, 4, 5]]))
    """
    if tokens.shape[1] <= length:
        return tokens
    if truncate:
        return tokens[:, :length].contiguous()
    rows = tokens.numel() // length
    return tokens.reshape(-1)[: rows * length].view(rows, length)


class _SequenceLengthWarmupHooks(SizeHooks):
    _method: SequenceLengthWarmup
    done = "cut to {least}..{most} tokens"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        if inputs.dim() != 2 or inputs.shape != targets.shape:
            raise ValueError(
                "sequence_length_warmup needs tokens and targets [batch, length], got "
                f"{list(inputs.shape)} and {list(targets.shape)}; remove it from the methods of this model"
            )
        length = self._method.length(at.progress)
        if length >= inputs.shape[1]:
            return inputs, targets
        self.count(length)
        truncate = self._method.truncate
        return cut(inputs, length, truncate=truncate), cut(targets, length, truncate=truncate)


class SequenceLengthWarmup(Method, name="sequence_length_warmup", stage=Stage.SIZE, hooks=_SequenceLengthWarmupHooks):
    """Train on short sequences first (Li, Zhang and He 2021, arXiv 2108.06084), by default with their linear pacing.

    With `truncate` the rest of each sequence is not trained on. Lengths change with the optimizer step: the caller's
    progress must be the share of `steps` taken.

    Examples:
        >>> method = SequenceLengthWarmup(steps=1000, duration=0.3, min_length=8, max_length=1024)
        >>> [method.length(progress) for progress in (0.0, 0.15, 0.3)]
        [8, 512, 1024]
    """

    steps: Annotated[int, Rule(lambda steps: isinstance(steps, int), "a number of optimizer steps")]
    """Optimizer steps of the whole run, of which `duration` is a fraction."""
    duration: Annotated[float, Rule(lambda share: 0 < share <= 1, "a share of the run above 0")] = 0.3
    min_length: int = 8
    max_length: int = 1024
    step_size: Count = 8
    """Lengths are multiples of it; `composer_2022` grows by it."""
    truncate: bool = True
    pacing: Pacing = "linear"
    """composer_2022: the staircase of MosaicML's published runs, see `length`."""

    def check(self) -> None:
        self.require("min_length", 1 <= self.min_length < self.max_length, f"1 or more and below {self.max_length}")
        increments = (self.max_length - self.min_length) // self.step_size
        if increments < 1 or self.warming < (1 if self.pacing == "linear" else increments):
            raise ValueError(
                f"sequence_length_warmup grows from {self.min_length} to {self.max_length} tokens in {increments} "
                f"increments of {self.step_size}, but lasts {self.warming} steps ({self.duration:g} of {self.steps}); "
                "that is too few for an increment, or for each of them with composer_2022"
            )

    @property
    def warming(self) -> int:
        """Return the optimizer steps of the warm-up."""
        return int(self.duration * self.steps + 1e-9)  # 0.29 x 100 = 28.999999999999996

    def length(self, progress: float) -> int:
        """Return the sequence length in tokens at `progress` of the run.

        linear: min_length + (max_length - min_length) * step / warming, rounded down to a multiple of `step_size` (8 in
        the paper) but not below `min_length`, and `max_length` from optimizer step `warming` on. composer_2022, the
        staircase of MosaicML Composer 0.7 and 0.8: step_size * (step // n) within the two ends, where n, in steps, is
        warming // ((max_length - min_length) // step_size). It begins at 0 and so stays at `min_length` a while, and
        ends up to one increment and n steps late.
        """
        step, growth = round(progress * self.steps), self.max_length - self.min_length
        if self.pacing == "composer_2022":
            every = self.warming // (growth // self.step_size)
            return min(max(self.step_size * (step // every), self.min_length), self.max_length)
        if step >= self.warming:
            return self.max_length
        length = self.min_length + growth * step // self.warming
        return max(length - length % self.step_size, self.min_length)
