"""Where images come from: what is known of them before the clock, and loaders of their splits once it runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from image_classification import cifar10, digits, image_folder
from image_classification.idle_settings import idle_settings, loader_methods
from image_classification.loaders import registry
from image_classification.loaders.in_memory import ResidentImages
from image_classification.loaders.loader import Loader, LoaderName
from image_classification.model import ModelConfig
from image_classification.stores.manifest import Manifest, StoreConfig, read_manifest
from mlevents import keys
from timedrun.config import RunConfig
from timedrun.errors import DataError
from timedrun.storage.result_files import require_data_folder
from timedrun.training import sampling

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
    """image_folder: batches of a rank made ready ahead of the step that takes them. 0: none, in the step's own time; a
    loader's workers decode ahead even so."""
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
    if found := [
        *registry.differences(config.store, manifest, folder),
        *registry.missing_splits(config, manifest, folder),
    ]:
        raise DataError(" ".join(found))
    return counted(config, manifest)


def counted(config: DataConfig, manifest: Manifest) -> DataFacts:
    """Counts of a store; 0 for a split that it has not."""
    train, evaluation = (manifest.splits.get(registry.split_name(config, train=train)) for train in (True, False))
    return DataFacts(train.images if train else 0, evaluation.images if evaluation else 0, len(manifest.classes), 3)


def facts_of_unfit(config: DataConfig, folder: Path | None) -> DataFacts | None:
    """What a store of the right format tells though a run cannot use it (other settings, a split missing), so that all
    that is wrong is told at once."""
    if config.source != "image_folder" or config.store.format == "folder" or folder is None:
        return None
    try:
        manifest = read_manifest(folder)
    except DataError:
        return None
    return counted(config, manifest) if manifest.settings.format == config.store.format else None


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
        found += registry.problems(data, folder if folder is not None and folder.is_dir() else None)
    else:
        found += loader_methods(config)
    try:
        known = facts(data, folder)
    except DataError as error:
        found += [str(error)] * (not any(words in str(error) for words in found))
        unfit = facts_of_unfit(data, folder)
        if unfit is None:
            return found
        known = unfit
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
    return require_data_folder(folder, f"data source {config.source}")


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
        generator = torch.Generator().manual_seed(sampling.stream_seed(seed, split))
        images = torch.randint(0, 256, (count, len(config.mean), size, size), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, config.synthetic_classes, (count,), generator=generator)
        return ResidentImages(images, labels, device)
    return registry.open_loader(config, require_folder(config, folder), train=train, seed=seed, device=device)


def sample_order(config: DataConfig) -> sampling.Order:
    """The order of samples that `config` names."""
    if config.order == "random":
        return sampling.epoch_order
    return partial(sampling.quasi_random_order, block=config.order_block, window=config.order_window)


def logged(config: DataConfig) -> dict[str, str | int]:
    """What the log says of how samples come from disk to the device."""
    words: str = config.order
    if config.order == "quasi_random":
        words += f", {config.order_window} blocks of {config.order_block} samples"
    if config.source != "image_folder":
        return {keys.DATA_LOADER: "memory", keys.DATA_ORDER: words}
    return {
        keys.DATA_LOADER: registry.in_words(config.loader),
        keys.DATA_STORE: registry.described(config.store),
        keys.DATA_ORDER: words,
        keys.DATA_WORKERS: config.workers,
        keys.DATA_PREFETCH: config.prefetch,
    }
