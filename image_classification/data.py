"""Where images come from: what is known before the clock, and batches, sharded exactly over ranks, once it runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification import cifar10, digits, image_folder
from image_classification.augmentation import pad_crop_flip
from image_classification.loaders.loader import LoaderName
from image_classification.model import ModelConfig
from image_classification.stores.manifest import StoreConfig
from timedrun import data_folder, order
from timedrun.config import RunConfig
from timedrun.errors import DataError
from timedrun.ranks import Ranks

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A source of images and how a training and an evaluation image are made from it."""

    source: Literal["digits", "cifar10", "image_folder", "synthetic"]
    train_size: int
    """Pixels a side of a training image."""
    eval_size: int
    eval_resize: int = 0
    """image_folder: the short side before the central crop of `eval_size`."""
    padding: int = 0
    """Sources in memory: random crop after padding by so many pixels; 0: none."""
    flip: bool = False
    mean: tuple[float, ...]
    std: tuple[float, ...]
    eval_batch: int = 1000
    """Images in one evaluation forward pass over all ranks."""
    drop_last: bool = True
    """Leave out the incomplete batch at the end of an epoch (another one each epoch)."""
    loader: LoaderName = "pillow"
    """image_folder: what reads the stored images. pillow is the reference, and reads formats folder and jpeg."""
    store: StoreConfig = field(default_factory=StoreConfig)
    """image_folder: how they are stored."""
    workers: int = 4
    """image_folder: decoding processes (pillow) or threads (the others) a rank."""
    prefetch: int = 3
    """image_folder: batches of a rank made ready ahead of the step that takes them; 0: none, in the step's own time."""
    order: Literal["random", "quasi_random"] = "random"
    """quasi_random: blocks of consecutive samples in random order, shuffled within a window: kind to a cold page cache,
    and less random (FFCV's QUASI_RANDOM)."""
    order_block: int = 256
    """quasi_random: consecutive samples in a block."""
    order_window: int = 64
    """quasi_random: blocks that are shuffled together."""
    read_ahead: bool = False
    """image_folder: read the whole store into the page cache from the first step on, inside the timed region."""
    synthetic_train: int = 0
    synthetic_eval: int = 0
    synthetic_classes: int = 10


@dataclass(frozen=True)
class DataFacts:
    """What a run may know of its data before it touches any: counts and shapes, from names and manifests."""

    train_samples: int
    eval_samples: int
    classes: int
    channels: int


def facts(config: DataConfig, folder: Path | None) -> DataFacts:
    """Counts and shapes without reading a single image.

    Raises:
        DataError: the folder is missing or not what the source expects.
    """
    if config.source == "digits":
        digits.require()
        return declared(config)
    if config.source == "synthetic":
        return declared(config)
    folder = require_folder(config, folder)
    if config.source == "cifar10":
        if found := cifar10.problems(folder):
            raise DataError(" ".join(found))
        return declared(config)
    index = image_folder.read_index(folder)
    return DataFacts(len(index.files["train"]), len(index.files["evaluation"]), len(index.classes), 3)


def declared(config: DataConfig) -> DataFacts:
    """Counts and shapes of a source by its definition; of a folder of images, those of ImageNet-1k (ILSVRC 2012)."""
    if config.source == "digits":
        return DataFacts(digits.TOTAL - digits.EVALUATION, digits.EVALUATION, 10, 1)
    if config.source == "synthetic":
        return DataFacts(config.synthetic_train, config.synthetic_eval, config.synthetic_classes, len(config.mean))
    if config.source == "cifar10":
        return DataFacts(50_000, 10_000, 10, 3)
    return DataFacts(1_281_167, 50_000, 1_000, 3)


def preflight(config: RunConfig, folder: Path | None, ranks: int) -> list[str]:
    """What keeps `config` from running on its data, told before any of it is touched."""
    data: DataConfig = config.data  # type: ignore[attr-defined]
    model: ModelConfig = config.model  # type: ignore[attr-defined]
    try:
        known = facts(data, folder)
    except DataError as error:
        return [str(error)]
    found = []
    if known.classes != model.classes:
        found.append(f"the data has {known.classes} classes, the model {model.classes}; --model.classes sets it.")
    if not known.channels == model.channels == len(data.mean) == len(data.std):
        found.append(
            f"the data has {known.channels} channels, the model {model.channels}, mean and std {len(data.mean)} and"
            f" {len(data.std)}: they must agree."
        )
    if config.global_batch > known.train_samples:
        found.append(f"global batch {config.global_batch} is more than the {known.train_samples} training samples.")
    rest = known.train_samples % config.global_batch
    if not data.drop_last and 0 < rest < ranks:
        found.append(f"the last batch of an epoch has {rest} samples for {ranks} ranks; set --data.drop-last.")
    return found


def data_digest(config: RunConfig, folder: Path | None) -> dict[str, str]:
    """SHA-256 of what `config` trains and evaluates on, and what it is of. Reads digits and CIFAR-10, so ask for it
    after run_stop; of an image folder it digests what `prepare` recorded, not 150 GB of images.

    Raises:
        DataError: the data are missing or not what the source expects.
    """
    data: DataConfig = config.data  # type: ignore[attr-defined]
    if data.source == "synthetic":
        names = ("train_size", "eval_size", "synthetic_train", "synthetic_eval", "synthetic_classes")
        recipe = [len(data.mean), *(getattr(data, name) for name in names)]
        digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()
        return {"sha256": digest, "of": "counts and shapes; the noise comes from the run's seed"}
    if data.source == "image_folder":
        return {"sha256": image_folder.read_index(require_folder(data, folder)).digest, "of": "names and labels"}
    content = hashlib.sha256()
    for split in ("train", "evaluation"):
        source = digits.read(split) if data.source == "digits" else cifar10.read(require_folder(data, folder), split)
        for tensor in source:
            content.update(tensor.numpy().data)
    return {"sha256": content.hexdigest(), "of": "images and labels"}


def require_folder(config: DataConfig, folder: Path | None) -> Path:
    """`folder`, once it is given and exists. Raises DataError otherwise."""
    return data_folder.required(folder, f"data source {config.source}")


@dataclass(frozen=True)
class Batch:
    """Normalised images (n, C, H, W) and labels (n,) of this rank, and the samples of the step over all ranks."""

    images: Tensor
    labels: Tensor
    global_samples: int


class ImageSource(Protocol):
    """A split of a dataset."""

    def __len__(self) -> int: ...

    def batches(self, parts: Sequence[npt.NDArray[np.int64]], epoch: int) -> Iterator[tuple[Tensor, Tensor]]: ...


class ResidentImages:
    """A split held in memory, on the training device."""

    def __init__(self, images: Tensor, labels: Tensor, device: torch.device) -> None:
        self.images, self.labels = images.to(device), labels.to(device)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Sequence[npt.NDArray[np.int64]], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (n, C, H, W) uint8 and labels (n,) int64 for each array of sample numbers in `parts`."""
        for part in parts:
            chosen = torch.from_numpy(part).to(self.images.device)
            yield self.images[chosen], self.labels[chosen]


def open_source(
    config: DataConfig, folder: Path | None, device: torch.device, *, train: bool, seed: int
) -> ImageSource:
    """The train or evaluation split; this is where data is first touched.

    Raises:
        DataError: the data is missing, damaged or has a label out of range.
    """
    split = "train" if train else "evaluation"
    if config.source == "digits":
        return ResidentImages(*digits.read(split), device)
    if config.source == "cifar10":
        return ResidentImages(*cifar10.read(require_folder(config, folder), split), device)
    if config.source == "synthetic":
        count = config.synthetic_train if train else config.synthetic_eval
        size = config.train_size if train else config.eval_size
        generator = torch.Generator().manual_seed(order.stream_seed(seed, split))
        images = torch.randint(0, 256, (count, len(config.mean), size, size), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, config.synthetic_classes, (count,), generator=generator)
        return ResidentImages(images, labels, device)
    folder = require_folder(config, folder)
    return image_folder.FolderImages(
        folder,
        image_folder.read_index(folder),
        train=train,
        seed=seed,
        resize=config.eval_resize,
        size=config.train_size if train else config.eval_size,
        workers=config.workers,
        pin=device.type == "cuda",
    )


class ImageData:
    """Training and evaluation batches of one rank. Opening it is the run's first touch of its data."""

    def __init__(self, config: DataConfig, folder: Path | None, ranks: Ranks, *, global_batch: int, seed: int) -> None:
        self.config, self.ranks, self.global_batch, self.seed = config, ranks, global_batch, seed
        device = ranks.device
        self.train_source = open_source(config, folder, device, train=True, seed=seed)
        self.eval_source = open_source(config, folder, device, train=False, seed=seed)
        shape = (1, len(config.mean), 1, 1)
        self._offset = torch.tensor(config.mean, device=device).view(shape) * 255
        self._scale = (torch.tensor(config.std, device=device).view(shape) * 255).reciprocal()

    def train(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of `epoch` (from 1) in an order that (seed, epoch) alone decides, from `first_step` on."""
        whole = order.steps(
            len(self.train_source),
            self.seed,
            epoch,
            self.global_batch,
            self.ranks.world,
            drop_last=self.config.drop_last,
        )[first_step:]
        parts = [order.rank_part(step, self.ranks.rank, self.ranks.world) for step in whole]
        for step, part, (images, labels) in zip(whole, parts, self.train_source.batches(parts, epoch), strict=True):
            if self.config.source != "image_folder" and (self.config.padding or self.config.flip):
                images = pad_crop_flip(
                    images, part, seed=self.seed, epoch=epoch, padding=self.config.padding, flip=self.config.flip
                )
            yield Batch(self._normalise(images), labels.to(self.ranks.device, non_blocking=True), len(step))

    def evaluation(self) -> Iterator[Batch]:
        """Every evaluation image once over all ranks, in order; ranks may have unequal counts."""
        mine = order.evaluation_part(len(self.eval_source), self.ranks.rank, self.ranks.world)
        size = max(1, self.config.eval_batch // self.ranks.world)
        parts = [mine[begin : begin + size] for begin in range(0, len(mine), size)]
        for images, labels in self.eval_source.batches(parts, epoch=0):
            yield Batch(self._normalise(images), labels.to(self.ranks.device, non_blocking=True), len(images))

    def _normalise(self, images: Tensor) -> Tensor:
        return images.to(self.ranks.device, non_blocking=True).float().sub_(self._offset).mul_(self._scale)
