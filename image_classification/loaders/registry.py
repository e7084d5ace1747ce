"""Which loader reads which store: one of them opened, and all that keeps a config from it, told before any image."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from image_classification.loaders.loader import Loader, LoaderName
from image_classification.settings import DataConfig
from image_classification.stores.manifest import Format, Manifest, StoreConfig, check_size, missing_split, read_manifest
from timedrun.errors import DataError, UsageError

READS: Final[Mapping[LoaderName, tuple[Format, ...]]] = {
    "pillow": ("folder", "jpeg"),
    "turbojpeg": ("folder", "jpeg"),
    "raw": ("raw",),
    "ffcv": ("beton",),
    "dali": ("folder", "jpeg"),
}
"""The formats that each loader reads."""

CLASSES: Final[Mapping[LoaderName, tuple[str, str]]] = {
    "pillow": ("pillow", "PillowLoader"),
    "turbojpeg": ("turbojpeg", "TurboJpegLoader"),
    "raw": ("raw", "RawLoader"),
    "ffcv": ("ffcv_loader", "FfcvLoader"),
    "dali": ("dali_loader", "DaliLoader"),
}
"""Module, in this folder, and class of each loader."""

SETTINGS: Final[Mapping[Format, tuple[str, ...]]] = {
    "folder": (),
    "jpeg": (),
    "raw": ("size", "shape"),
    "beton": ("size", "jpeg_quality", "jpeg_share"),
}
"""The fields of StoreConfig that say what a store of a format holds. Of raw, `evaluation_resizes` only says what more
is made: a run needs the one it evaluates with."""


def open_loader(config: DataConfig, folder: Path, *, train: bool, seed: int, device: torch.device) -> Loader:
    """The loader of `config` on the train or evaluation split in `folder`; nothing of an image is read yet.

    Raises:
        UsageError: the loader does not read the format. DataError: it is not installed, or the store is not whole or
            not the one that the config says.
    """
    if found := mismatch(config):
        raise UsageError(found)
    if found := " ".join(store_problems(config, folder)):
        raise DataError(found)
    module, name = CLASSES[config.loader]
    loader: Loader = getattr(importlib.import_module(f"image_classification.loaders.{module}"), name)(
        folder,
        train=train,
        seed=seed,
        workers=config.workers,
        device=device,
        eval_resize=config.eval_resize,
    )
    return loader


def make_ready(loader: LoaderName) -> None:
    """Compile what `loader` compiles, which takes up to seconds; no file of the data is opened.

    Raises:
        DataError: it is not installed.
    """
    if found := unavailable(loader):
        raise DataError(found)
    if loader == "ffcv":
        from image_classification.loaders import ffcv_loader

        ffcv_loader.compile_ahead()
    elif loader == "raw":
        from image_classification.loaders.crop_kernel import cut, cut_and_resize, scripted

        for function in (cut, cut_and_resize):
            scripted(function)


def problems(config: DataConfig, folder: Path | None) -> list[str]:
    """All that keeps the loader of `config` from reading its images; without a folder, all but what its store tells.
    Manifests and sizes of files are looked at, no image.
    """
    found = [unavailable(config.loader), mismatch(config)]
    if config.eval_resize < config.eval_size:
        found.append(
            f"data.eval_resize {config.eval_resize} is less than data.eval_size {config.eval_size}: the central crop"
            " would not fit into the resized image."
        )
    if folder is not None:
        found += store_problems(config, folder)
    return [words for words in found if words]


def unavailable(loader: LoaderName) -> str:
    """What `loader` lacks on this machine; empty if nothing."""
    module = importlib.import_module(f"image_classification.loaders.{CLASSES[loader][0]}")
    words: str = module.unavailable()
    return words


def mismatch(config: DataConfig) -> str:
    """Why the loader does not read the store's format, and which would; empty if it does."""
    wanted, known = config.store.format, READS[config.loader]
    if wanted in known:
        return ""
    others = " or ".join(loader for loader, formats in READS.items() if wanted in formats)
    return (
        f"loader {config.loader} reads format {' or '.join(known)}, not {wanted}; use --data.loader {others}, or"
        f" --data.store.format {known[0]}."
    )


def store_problems(config: DataConfig, folder: Path) -> list[str]:
    """What is wrong with the store in `folder`, or is not as `config` says; a folder of images has an index instead,
    which `data.facts` reads."""
    if config.store.format == "folder":
        return []
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        return [str(error)]
    return [
        *differences(config.store, manifest, folder),
        *missing_splits(config, manifest, folder),
        *damaged_files(manifest, folder),
    ]


def differences(wanted: StoreConfig, manifest: Manifest, folder: Path) -> list[str]:
    """Each setting that the store in `folder` was made with otherwise than `wanted`."""
    held = manifest.settings
    if held.format != wanted.format:
        return [
            f"{folder} holds {described(held)}; the config wants format {wanted.format}. Give another --data-folder,"
            f" prepare one, or use --data.store.format {held.format} with a loader that reads it."
        ]
    found = []
    for name in SETTINGS[wanted.format]:
        ours, theirs = getattr(wanted, name), getattr(held, name)
        if ours != theirs:
            option = name.replace("_", "-")
            found.append(
                f"{folder} was made with {name} {theirs}, the config has {ours}; use --data.store.{option} {theirs}, or"
                " prepare a store with the config's."
            )
    return found


def missing_splits(config: DataConfig, manifest: Manifest, folder: Path) -> list[str]:
    """Splits that a run needs and the store in `folder` has not."""
    if manifest.settings.format != config.store.format:
        return []
    wanted = [split_name(config, train=train) for train in (True, False)]
    return [words for split in wanted if (words := missing_split(folder, manifest, split))]


def damaged_files(manifest: Manifest, folder: Path) -> list[str]:
    """Files of the store in `folder` that are missing or have another size; none is read."""
    found = []
    for name, stored in manifest.files.items():
        try:
            check_size(folder, name, stored)
        except DataError as error:
            found.append(str(error))
    return found


def split_name(config: DataConfig, *, train: bool) -> str:
    """What the split is called in the manifest of the config's store."""
    if train:
        return "train"
    return f"evaluation_{config.eval_resize}" if config.store.format == "raw" else "evaluation"


def in_words(loader: LoaderName) -> str:
    """`loader`, and what it lacks here to be as fast as elsewhere; for the log."""
    if loader == "raw":
        from image_classification.loaders import crop_kernel

        return loader if crop_kernel.SCRIPTED else f"{loader}, not scripted"
    return loader


def described(store: StoreConfig) -> str:
    """Format and size in words, for messages and for the log."""
    if store.format == "raw":
        return f"raw, {store.shape.replace('_', ' ')} {store.size} px"
    if store.format == "beton":
        size = f"longest side {store.size} px" if store.size else "original size"
        return f"beton, {size}, {store.jpeg_share:.0%} JPEG of quality {store.jpeg_quality}"
    return f"{store.format}, original size"
