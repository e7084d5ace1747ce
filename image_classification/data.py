"""Where images come from: what is known before the clock, and batches, sharded exactly over ranks, once it runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import torch
from torch import Tensor

from image_classification import cifar10, digits, image_folder
from image_classification.augmentation import pad_crop_flip
from image_classification.idle_settings import idle_settings, loader_methods
from image_classification.loaders import choose
from image_classification.loaders.loader import LoadedBatch, Loader, LoaderName
from image_classification.loaders.prefetch import Prefetched
from image_classification.loaders.resident import ResidentImages
from image_classification.model import ModelConfig
from image_classification.stores.manifest import StoreConfig, read_manifest
from mlevents import keys
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
    """Leave out the incomplete batch at the end of an epoch (other samples each epoch); else it is trained on as it is,
    each rank's gradient weighted by its share. No sample is repeated to fill it."""
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
    if config.store.format == "folder":
        index = image_folder.read_index(folder)
        return DataFacts(index.facts["train"].images, index.facts["evaluation"].images, len(index.classes), 3)
    manifest = read_manifest(folder)
    if found := choose.missing_splits(config, manifest, folder):
        raise DataError(" ".join(found))
    train, evaluation = (manifest.splits[choose.split_name(config, train=train)].images for train in (True, False))
    return DataFacts(train, evaluation, len(manifest.classes), 3)


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
    found = idle_settings(data)
    if data.source == "image_folder":
        found += choose.problems(data, folder if folder is not None and folder.is_dir() else None)
    else:
        found += loader_methods(config)
    try:
        known = facts(data, folder)
    except DataError as error:
        return found + [str(error)] * (not any(str(error) in words for words in found))
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
    after run_stop; of stored images it digests what `prepare` recorded, not 150 GB of images.

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
        folder = require_folder(data, folder)
        if data.store.format == "folder":
            return {"sha256": image_folder.read_index(folder).digest, "of": "names, labels and sizes"}
        return {"sha256": read_manifest(folder).digest, "of": "the manifest, with the SHA-256 of every file"}
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


def open_source(config: DataConfig, folder: Path | None, device: torch.device, *, train: bool, seed: int) -> Loader:
    """The train or evaluation split; this is where data is first touched.

    Raises:
        DataError: the data is missing, damaged or has a label out of range, or its loader is not installed.
        UsageError: the loader does not read the store.
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
    return choose.open_loader(config, require_folder(config, folder), train=train, seed=seed, device=device)


def sample_order(config: DataConfig) -> order.Order:
    """The order of samples that `config` names."""
    if config.order == "random":
        return order.epoch_order
    return partial(order.quasi_random_order, block=config.order_block, window=config.order_window)


def logged(config: DataConfig) -> dict[str, str | int]:
    """What the log says of how samples come from disk to the device."""
    words: str = config.order
    if config.order == "quasi_random":
        words += f", {config.order_window} blocks of {config.order_block} samples"
    if config.source != "image_folder":
        return {keys.DATA_LOADER: "memory", keys.DATA_ORDER: words}
    return {
        keys.DATA_LOADER: config.loader,
        keys.DATA_STORE: choose.described(config.store),
        keys.DATA_ORDER: words,
        keys.DATA_WORKERS: config.workers,
        keys.DATA_PREFETCH: config.prefetch,
    }


class ImageData:
    """Training and evaluation batches of one rank. Opening it is the run's first touch of its data; closing it leaves
    no thread and no process.

    Stored images are made ready ahead of the step that takes them, across the end of an epoch too: while its last
    batches are trained on, and during the evaluation, the first of the next epoch are loaded, at that epoch's size.
    """

    def __init__(
        self,
        config: DataConfig,
        folder: Path | None,
        ranks: Ranks,
        *,
        global_batch: int,
        seed: int,
        size_at: Callable[[int], int] | None = None,
        last_epoch: int = 0,
    ) -> None:
        """size_at: the pixels a side in each epoch (from 1), by default `config.train_size`; it is asked by another
        thread. last_epoch: nothing is loaded ahead for any after it; 0: for no other epoch than that under way.

        Raises what `open_source` raises.
        """
        self.config, self.ranks, self.global_batch, self.seed = config, ranks, global_batch, seed
        self._size_at = size_at or (lambda epoch: config.train_size)
        self._last_epoch = last_epoch
        self._order = sample_order(config)
        self._prefetch = config.prefetch if config.source == "image_folder" else 0
        self._ahead: Prefetched | None = None
        self._evaluating: Prefetched | None = None
        self._first_epoch = 0  # that `_ahead` began with
        self._next = (0, 0)  # the epoch and step of the batch that `_ahead` gives next
        device = ranks.device
        self.train_source = open_source(config, folder, device, train=True, seed=seed)
        try:
            self.eval_source = open_source(config, folder, device, train=False, seed=seed)
        except BaseException:
            self.train_source.close()
            raise
        shape = (1, len(config.mean), 1, 1)
        self._offset = torch.tensor(config.mean, device=device).view(shape) * 255
        self._scale = (torch.tensor(config.std, device=device).view(shape) * 255).reciprocal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End threads and processes of both splits. A second call does nothing."""
        try:
            self._drop_ahead()
            if self._evaluating is not None:
                self._evaluating.close()
        finally:
            try:
                self.train_source.close()
            finally:
                self.eval_source.close()

    def train(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of `epoch` (from 1) in an order that (seed, epoch) alone decides, from `first_step` on.

        Batches that were made ready for another epoch or step are dropped.
        """
        count, batch = len(self.train_source), self.global_batch
        number = order.step_count(count, batch, drop_last=self.config.drop_last)
        if not 0 <= first_step < number:
            return
        ahead = self._training(epoch, first_step)
        for step in range(first_step, number):
            try:
                ready = next(ahead, None)
            except BaseException:
                self._drop_ahead()
                raise
            if ready is None:
                raise RuntimeError(f"epoch {epoch} ended at step {step}: another epoch or step was asked for meanwhile")
            images, labels = ready
            self._next = (epoch, step + 1) if step + 1 < number else (epoch + 1, 0)
            yield Batch(self._normalise(images), labels, min(batch, count - step * batch))

    def evaluation(self) -> Iterator[Batch]:
        """Every evaluation image once over all ranks, in order; ranks may have unequal counts."""
        mine = order.evaluation_part(len(self.eval_source), self.ranks.rank, self.ranks.world)
        size = max(1, self.config.eval_batch // self.ranks.world)
        parts = [mine[begin : begin + size] for begin in range(0, len(mine), size)]
        loaded = self.eval_source.batches(parts, 0, self.config.eval_size)
        with Prefetched(loaded, self.ranks.device, self._prefetch) as ready:
            self._evaluating = ready
            for images, labels in ready:
                yield Batch(self._normalise(images), labels, len(images))

    def _training(self, epoch: int, first_step: int) -> Prefetched:
        """Batches from that step on, those that are ready already if they are the ones."""
        if self._ahead is None or self._next != (epoch, first_step) or epoch > max(self._last_epoch, self._first_epoch):
            self._drop_ahead()
            self._first_epoch = epoch
            self._ahead = Prefetched(self._passes(epoch, first_step), self.ranks.device, self._prefetch)
            self._next = (epoch, first_step)
        return self._ahead

    def _passes(self, epoch: int, first_step: int) -> Iterator[LoadedBatch]:
        """The batches of this and all later epochs up to the last."""
        for number in range(epoch, max(epoch, self._last_epoch) + 1):
            whole = order.steps(
                len(self.train_source),
                self.seed,
                number,
                self.global_batch,
                self.ranks.world,
                drop_last=self.config.drop_last,
                order=self._order,
            )[first_step if number == epoch else 0 :]
            parts = [order.rank_part(step, self.ranks.rank, self.ranks.world) for step in whole]
            loaded = self.train_source.batches(parts, number, self._size_at(number))
            for part, batch in zip(parts, loaded, strict=True):
                yield self._augmented(batch, part, number)

    def _augmented(self, batch: LoadedBatch, part: order.Indices, epoch: int) -> LoadedBatch:
        """Padded, cropped and flipped, where images are held in memory; loaders do their own."""
        config = self.config
        if config.source == "image_folder" or not (config.padding or config.flip):
            return batch
        images = pad_crop_flip(
            batch.images, part, seed=self.seed, epoch=epoch, padding=config.padding, flip=config.flip
        )
        return replace(batch, images=images)

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def _normalise(self, images: Tensor) -> Tensor:
        return images.float().sub_(self._offset).mul_(self._scale)
