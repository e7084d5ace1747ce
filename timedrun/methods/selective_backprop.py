"""Selective backprop: train on the samples of a batch with the highest losses. InfoBatch: on fewer of the others."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from timedrun.methods.method import BatchHooks, Hooks, Losses, Method, Part, Position, Rule, Stage, moved
from timedrun.methods.progressive_resizing import resize_maps


def keep_probabilities(count: int, keep: float) -> NDArray[np.float64]:
    """Return the weights, summing to 1, with which `count` samples are drawn, by the rank of their loss (0: the
    lowest). They are proportional to ((rank + 0.5) / count)^(1 / keep - 1).

    Examples:
        >>> keep_probabilities(4, keep=0.5).tolist()
        [0.0625, 0.1875, 0.3125, 0.4375]
    """
    weights = ((np.arange(count) + 0.5) / count) ** (1 / keep - 1)
    return weights / weights.sum()  # type: ignore[no-any-return]


class _SelectiveBackpropHooks(BatchHooks):
    _method: SelectiveBackprop
    done = "{hooks.batches} batches cut to {method.keep:g} of their samples"

    def select(self, inputs: Tensor, targets: Tensor, losses: Losses, at: Position) -> tuple[Tensor, Tensor]:
        method, count = self._method, len(inputs)
        kept = int(method.keep * count)
        due = not method.interrupt or (at.step + 1) % method.interrupt
        if not method.start <= at.progress < method.end or not due or not 0 < kept < count:
            return inputs, targets
        scored, scored_targets = inputs, targets
        if method.scale != 1:
            scored = F.interpolate(inputs, scale_factor=method.scale, mode="bilinear", align_corners=False)
            scored_targets = moved(targets, lambda part: resize_maps(part, method.scale))
        scores = losses(scored, scored_targets)
        if scores.numel() != count:
            raise ValueError(
                f"selective_backprop needs one loss a sample, but `losses` returned {list(scores.shape)} for {count}"
                ' samples; no step was taken; use reduction="none" and take the mean of each sample\'s losses'
            )
        order = torch.argsort(scores.flatten(), stable=True)
        drawn = at.random(method.name).choice(count, size=kept, replace=False, p=keep_probabilities(count, method.keep))
        chosen = order[torch.from_numpy(np.sort(drawn)).to(order.device, non_blocking=True)]
        self.batches += 1
        return inputs[chosen], tree_map(lambda part: part[chosen], targets)


class SelectiveBackprop(Method, name="selective_backprop", stage=Stage.STEP, hooks=_SelectiveBackpropHooks):
    """Train on the samples of each batch with the highest losses, between `start` and `end` of the run.

    A forward pass without gradients scores the samples, and `keep` of them are drawn without replacement by the rank of
    their loss (Jiang et al. 2019, arXiv 1910.00762, in the form of MosaicML Composer). The scoring pass runs in
    training mode: batch norm's running statistics see it.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(SelectiveBackprop(start=0.0, keep=0.5))
        >>> speed.enter(step=0, progress=0.0)
        >>> inputs, targets = speed.select(torch.rand(8, 4), torch.arange(8), lambda x, y: x.sum(1))
        >>> inputs.shape
        torch.Size([4, 4])
    """

    start: float = 0.5
    end: Annotated[float, Rule(lambda end: end <= 1, "at most 1")] = 0.9
    keep: Annotated[float, Rule(lambda share: 0 < share < 1, "between 0 and 1")] = 0.5
    scale: Part = 1.0
    """Size of the images that are scored, as a fraction of theirs."""
    interrupt: int = 2
    """Every `interrupt`-th step trains on the whole batch; 0: none does."""

    def check(self) -> None:
        self.require("start", 0 <= self.start < self.end, f"0 or more and below the end, {self.end}")
        self.require("interrupt", self.interrupt == 0 or self.interrupt >= 2, "0, or 2 steps or more")

    @property
    def acts_from(self) -> float:
        return self.start


class _InfoBatchHooks(Hooks):
    _method: InfoBatch
    batches = 0
    saved = ("batches", "losses")
    done = "{hooks.batches} batches without {method.rate:.0%} of their easy samples"

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        self.losses = torch.empty(0)
        """Loss of each sample when it was last trained on; infinite before."""

    def select(self, inputs: Tensor, targets: Tensor, losses: Losses, at: Position) -> tuple[Tensor, Tensor]:
        method, count, device = self._method, len(inputs), inputs.device
        if at.samples is None or targets.shape != (count,):
            raise ValueError(
                f"{method.name} needs the number and the class of each sample, and has targets {list(targets.shape)} of"
                f" samples {at.samples}; no step was taken; give `before_step` their numbers, or remove the method"
            )
        missing = (1 << int(at.samples.max()).bit_length()) - len(self.losses)  # most often the same on all ranks
        self.losses = F.pad(self.losses.to(device), (0, max(0, missing)), value=torch.inf)
        samples, easy = torch.from_numpy(at.samples).to(device), int(method.easy * count)
        chosen, weights = torch.arange(count, device=device), torch.ones(count, device=device)
        kept = easy - int(method.rate * easy)
        if method.start <= at.progress < method.end and 0 < kept < easy:
            order = torch.argsort(self.losses[samples], stable=True)
            drawn = torch.from_numpy(at.random(method.name).permutation(easy)[:kept]).to(device)
            chosen, places = torch.cat([order[drawn], order[easy:]]).sort()
            weights = torch.cat([weights[:kept] * easy / kept, weights[easy:]])[places] * len(chosen) / count
            self.batches += 1
        self._next, self._trained = 0, (samples[chosen], targets[chosen], weights)
        return inputs[chosen], targets[chosen]

    def outputs(self, outputs: Tensor, at: Position) -> Tensor:
        if not outputs.requires_grad:
            return outputs
        first = self._next % len(self._trained[0])  # a method may pass the batch again
        self._next = first + len(outputs)
        samples, classes, weights = (part[first : self._next] for part in self._trained)
        self.losses[samples] = F.cross_entropy(outputs.detach().float(), classes, reduction="none")
        outputs.register_hook(lambda gradient: gradient * weights[:, None].to(gradient))  # type: ignore[no-untyped-call]
        return outputs


class InfoBatch(Method, name="info_batch", stage=Stage.STEP, hooks=_InfoBatchHooks):
    """Train on fewer of the samples of a batch that had the lowest losses, between `start` and `end` of the run.

    The share `easy` of each batch has the lowest cross-entropy of its last passes. `rate` of these are left out at
    random, and the gradients of those that stay are divided by 1 - `rate`, so the mean gradient is the whole batch's
    (Qin et al. 2023, arXiv 2303.04947). There, all samples below the mean loss are easy, and whole epochs are shorter;
    here, the number of samples of a step does not change, so that nothing is compiled anew. Each rank remembers the
    losses of samples that it has seen.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed, net = stack(InfoBatch(start=0.0, easy=0.5)), torch.nn.Linear(4, 3)
        >>> speed.before_step(net, step=0, progress=0.0, samples=np.arange(8))
        >>> inputs, classes = speed.select(torch.rand(8, 4), torch.arange(8) % 3, lambda x, y: y)
        >>> loss = F.cross_entropy(speed.outputs(net(inputs)), classes)
        >>> len(inputs)
        6
    """

    clashes: ClassVar[dict[str, str]] = {
        "selective_backprop": "both choose the samples of a batch by their losses",
        **dict.fromkeys(("mixup", "cutmix"), "give an image parts of two samples, whose losses are not known"),
    }
    start: float = 0.35
    end: Annotated[float, Rule(lambda end: end <= 1, "at most 1")] = 0.875
    easy: Annotated[float, Rule(lambda share: 0 < share < 1, "between 0 and 1")] = 0.7
    rate: Annotated[float, Rule(lambda share: 0 < share < 1, "between 0 and 1")] = 0.5

    def check(self) -> None:
        self.require("start", 0 <= self.start < self.end, f"0 or more and below the end, {self.end}")

    @property
    def acts_from(self) -> float:
        return self.start
