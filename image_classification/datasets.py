"""Facts, faults and digests of image data, known without reading an image before the run."""

import hashlib
import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

from torch import Tensor

from image_classification import cifar10, digits
from image_classification.configs import ImageRunConfig
from image_classification.loaders.registry import LOADERS
from image_classification.settings import DataConfig
from image_classification.stores.manifest import FORMAT_SETTINGS, StoreConfig, differences, read_manifest, run_splits
from judging.ground.errors import DataError
from judging.ground.result_files import require_data_folder
from timedrun.methods import ProgressiveResizing

STORED_ONLY = ("eval_resize", "loader", "workers", "prefetch")
MEMORY_ONLY = ("padding", "padding_mode")
SYNTHETIC_ONLY = ("synthetic_train", "synthetic_eval", "synthetic_classes")
FORMER_DEFAULTS = {"workers": 4}
"""Defaults of configs that were recorded before."""
EPOCH_STEPS = 10
"""Fewest optimizer steps in an epoch of images from a folder. Published runs have 25 (airbench on CIFAR-10) to 625
(ResNet-50 on ImageNet). With a step an epoch, the 32 steps of the recipe mild are a third of its EMA's half-life."""
FIXED_SIZES = {"digits": 8, "cifar10": 32}
"""Pixels a side of the images of sources in memory."""


@dataclass(frozen=True)
class DataFacts:
    """Counts and shapes of a dataset, from names and manifests."""

    train_samples: int
    eval_samples: int
    classes: int
    channels: int


def facts(config: DataConfig, folder: Path | None, *, usable: bool = True) -> DataFacts:
    """Return counts and shapes without reading an image. Raises DataError if the folder is missing or not what the
    source expects.

    usable: raise DataError if a run of `config` cannot use the store; otherwise a split that it lacks counts as 0.
    """
    if config.source == "digits":
        digits.require()
    elif config.source == "cifar10":
        cifar10.require(require_folder(config, folder))
    if config.source != "image_folder":
        return declared(config)
    folder = require_folder(config, folder)
    manifest = read_manifest(folder)
    if usable and (problems := differences(folder, manifest, config.store, config.eval_resize)):
        raise DataError(" ".join(problems))
    train, evaluation = map(manifest.splits.get, run_splits(config.store, config.eval_resize))
    return DataFacts(train.images if train else 0, evaluation.images if evaluation else 0, len(manifest.classes), 3)


def declared(config: DataConfig) -> DataFacts:
    """Return counts and shapes by the source's definition; for a folder of images, those of ImageNet-1k."""
    if (held_out := tuning_images(config)) is not None:
        whole = declared(replace(config, split="own"))
        return replace(whole, train_samples=whole.train_samples - held_out, eval_samples=held_out)
    if config.source == "digits":
        return DataFacts(digits.TOTAL - digits.EVALUATION, digits.EVALUATION, 10, 1)
    if config.source == "synthetic":
        return DataFacts(config.synthetic_train, config.synthetic_eval, config.synthetic_classes, len(config.mean))
    if config.source == "cifar10":
        return DataFacts(50_000, 10_000, 10, 3)
    return DataFacts(1_281_167, 50_000, 1_000, 3)


def tuning_images(config: DataConfig) -> int | None:
    """Return the training images that a tuning split evaluates on, None if `config` has none."""
    return {"digits": digits.TUNING, "cifar10": cifar10.TUNING}.get(config.source) if config.split == "tuning" else None


def read(config: DataConfig, folder: Path | None, split: str) -> tuple[Tensor, Tensor]:
    """Return images and labels of "train" or "evaluation" of the digits or CIFAR-10. Raises DataError if the data is
    missing or damaged."""
    held_out = tuning_images(config)
    of = split if held_out is None else "train"
    whole = digits.read(of) if config.source == "digits" else cifar10.read(require_folder(config, folder), of)
    if held_out is None:
        return whole
    images, labels = (part[-held_out:] if split == "evaluation" else part[:-held_out] for part in whole)
    return images, labels


def synthetic(config: ImageRunConfig, folder: Path) -> ImageRunConfig:
    """Return `config` on noise with the counts and the sizes of its data; `folder` stays empty."""
    known = declared(config.data)
    data = replace(config.data, source="synthetic", synthetic_classes=known.classes)
    data = replace(data, synthetic_train=known.train_samples, synthetic_eval=known.eval_samples)
    return replace(config, data=data)


def preflight(config: ImageRunConfig, folder: Path | None, ranks: int) -> list[str]:
    """Return the faults of `config` and its data, without reading an image."""
    data, model = config.data, config.model
    problems = [*unused_settings(data), *config.problems()]
    if data.source == "image_folder":
        problems += LOADERS[data.loader].problems(data, folder)
    else:
        problems += [
            f"progressive_resizing.where loader: images of source {data.source} are held in memory, so no loader can"
            " resize them; use --methods.progressive-resizing.where batch."
            for method in config.methods
            if isinstance(method, ProgressiveResizing) and method.where == "loader" and data.source != "synthetic"
        ]
    try:
        known = facts(data, folder, usable=False)  # the loader reported what keeps a run from using the store
    except DataError as error:
        return problems + [str(error)] * (not any(message in str(error) for message in problems))
    if known.classes != model.classes:
        problems.append(
            f"the data has {known.classes} classes, but the model has {model.classes}; set --model.classes"
            f" {known.classes}."
        )
    if not known.channels == model.channels == len(data.mean) == len(data.std):
        problems.append(
            f"the data has {known.channels} channels, the model {model.channels}, mean and std {len(data.mean)} and"
            f" {len(data.std)}: they must agree."
        )
    if data.split == "tuning" and tuning_images(data) is None:
        problems.append(
            f"source {data.source} has no tuning split, so nothing was run; those of digits and cifar10 have one."
        )
    if config.global_batch > known.train_samples:
        problems.append(f"global batch {config.global_batch} exceeds the {known.train_samples} training samples.")
    elif data.source == "image_folder" and (steps := config.epoch_steps(known.train_samples)) < EPOCH_STEPS:
        fitting = 2 ** max(0, int(math.log2(known.train_samples / EPOCH_STEPS)))
        ratio, own = fitting / config.global_batch, config.optimizer
        decay = f" --optimizer.weight-decay {own.weight_decay * ratio:.3g}" * own.kind.startswith("decoupled")
        problems.append(
            f"global batch {config.global_batch} makes {steps} of the {EPOCH_STEPS} or more optimizer steps that a run"
            f" needs in an epoch of {known.train_samples:,} training images; nothing was run. Use"
            f" --global-batch {fitting} --optimizer.peak-lr {own.peak_lr * ratio:.3g}{decay}."
        )
    if known.eval_samples < ranks:
        problems.append(f"{known.eval_samples} evaluation images cannot be divided over {ranks} ranks.")
    return problems


def unused_settings(data: DataConfig) -> list[str]:
    """Return the settings that differ from their default without effect for this source, and numbers out of range.

    Synthetic data may have the settings of any source, since it stands in for all.
    """
    defaults = {field.name: field.default for field in fields(data)}
    unused: list[str] = []
    if data.source != "synthetic":
        unused = [*SYNTHETIC_ONLY, *(MEMORY_ONLY if data.source == "image_folder" else STORED_ONLY)]
    allowed = {name: (defaults[name], FORMER_DEFAULTS.get(name)) for name in unused}
    changed = [(name, defaults[name]) for name in unused if getattr(data, name) not in allowed[name]]
    if data.source != "synthetic":
        # A run uses one of evaluation_resizes, its eval_resize; the others are for other runs.
        used = ("format", *FORMAT_SETTINGS[data.store.format]) if data.source == "image_folder" else ()
        changed += [
            (f"store.{item.name}", item.default)
            for item in fields(StoreConfig)
            if item.name not in (*used, "evaluation_resizes") and getattr(data.store, item.name) != item.default
        ]
    problems = []
    if changed:
        where = data.source if data.source != "image_folder" else f"image_folder, format {data.store.format}"
        names = ", ".join(f"data.{name} (leave it at {default!r})" for name, default in changed)
        problems.append(f"set, but without effect for {where}: {names}.")
    own = FIXED_SIZES.get(data.source)
    if own and not data.train_size == data.eval_size == own:
        problems.append(f"{data.source} has images of {own} px: set --data.train-size {own} --data.eval-size {own}.")
    if data.prefetch < 0 or data.workers < -1:
        problems.append("data.prefetch must be 0 or more, and data.workers too, or -1 for the cores of this machine.")
    return problems


def data_digest(config: ImageRunConfig, folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the data of `config` and a description of what it covers.

    Digits and CIFAR-10 are read, so call it after run_stop; of stored images, the digest is that of the manifest.
    Raises DataError if the data is missing or not what the source expects.
    """
    data = config.data
    if data.source == "synthetic":
        names = ("train_size", "eval_size", "synthetic_train", "synthetic_eval", "synthetic_classes")
        recipe = [len(data.mean), *(getattr(data, name) for name in names)]
        digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()
        return {"sha256": digest, "of": "counts and shapes; the noise comes from the run's seed"}
    if data.source == "image_folder":
        manifest = read_manifest(require_folder(data, folder))
        return {"sha256": manifest.digest, "of": "the manifest, with the SHA-256 of every file"}
    content = hashlib.sha256()
    for split in ("train", "evaluation"):
        for tensor in read(data, folder, split):
            content.update(tensor.numpy().data)
    return {"sha256": content.hexdigest(), "of": "images and labels"}


def require_folder(config: DataConfig, folder: Path | None) -> Path:
    """Return `folder`. Raises DataFolderMissing if it was not given or does not exist."""
    return require_data_folder(folder, f"data source {config.source}")
