"""Training and evaluation slices of one rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from image_segmentation.configs import SegmentationConfig
from timedrun.methods.training import sampling
from timedrun.methods.training.prefetch import StepBatches, to_device
from timedrun.runner.distributed.process_group import ProcessGroup


@dataclass(frozen=True)
class Facts:
    """Sizes of the data, known without reading a slice. A training sample is a random slice of a case."""

    train_samples: int
    eval_samples: int
    eval_cases: int
    channels: int
    size: tuple[int, int]
    """Height and width of a slice."""
    classes: int = 4
    """With the background, class 0."""


@dataclass(frozen=True)
class Case:
    """Slices of a scan (n, channels + 1, H, W): normalized channels, and the mask of class numbers as the last one."""

    slices: NDArray[Any]
    with_class: Sequence[Sequence[int]] = ()
    """Numbers of the slices with class 1, 2 ..., if training draws among them."""


class Batch(NamedTuple):
    """Images (n, channels, H, W) and masks (n, H, W) of a rank, and the numbers (n,) of their cases."""

    images: Tensor
    masks: Tensor
    cases: Tensor


class SliceBatches(StepBatches[Batch]):
    """Batches of one rank, of the cases of "train" and "evaluation". Closing it ends its thread."""

    train = StepBatches[Batch].starting

    def __init__(self, config: SegmentationConfig, cases: Mapping[str, Sequence[Case]], ranks: ProcessGroup) -> None:
        super().__init__(self._train_batch, ranks.device)
        self._config, self._ranks = config, ranks
        self._train, self._evaluation = cases["train"], cases["evaluation"]

    def _train_batch(self, step: int) -> Batch:
        """Draw a slice of each case, a function of (seed, epoch, case)."""
        config, samples = self._config, len(self._train)
        epoch, number = divmod(step, config.epoch_steps(samples))
        whole = sampling.steps(samples, config.seed, epoch + 1, config.global_batch)[number]
        mine = sampling.rank_part(whole, self._ranks.rank, self._ranks.world_size)
        drawn = sampling.random_uniform(config.seed, epoch + 1, mine, "slice", 5)
        chosen = []
        for at, (part, which, row, across, along) in zip(mine.tolist(), drawn, strict=True):
            case = self._train[at]
            rows: Sequence[int] = range(len(case.slices))
            if part < config.foreground and (with_class := [rows for rows in case.with_class if rows]):
                rows = with_class[int(which * len(with_class))]
            one = case.slices[rows[int(row * len(rows))]]
            axes = tuple(axis for axis, number in ((-1, across), (-2, along)) if config.flips and number < 0.5)
            chosen.append(np.flip(one, axes))
        return self._batch(chosen, mine.tolist())

    def evaluation(self, batch: int) -> Iterator[Batch]:
        """Yield every slice once over all ranks, in order, `batch` or, at the end, fewer at a time."""
        places = [(number, row) for number, case in enumerate(self._evaluation) for row in range(len(case.slices))]
        mine = sampling.evaluation_part(len(places), self._ranks.rank, self._ranks.world_size).tolist()
        for begin in range(0, len(mine), batch):
            chosen = [places[at] for at in mine[begin : begin + batch]]
            yield self._batch(
                [self._evaluation[case].slices[row] for case, row in chosen], [case for case, _ in chosen]
            )

    def _batch(self, slices: Sequence[NDArray[Any]], cases: Sequence[int]) -> Batch:
        stacked = to_device(torch.from_numpy(np.stack(slices).astype(np.float32)), self._ranks.device)
        return Batch(stacked[:, :-1], stacked[:, -1].long(), to_device(torch.tensor(cases), self._ranks.device))
