"""The formats that a store can be made in, and which settings and splits each has."""

from __future__ import annotations

import importlib
from dataclasses import replace

from image_classification.preparation.shard import StoreFormat
from image_classification.stores.manifest import StoreConfig
from timedrun.errors import UsageError

_MODULES = {"jpeg": "encoded", "raw": "raw", "beton": "beton"}
_SETTINGS = {
    "jpeg": (),
    "raw": ("size", "shape", "evaluation_resizes"),
    "beton": ("size", "jpeg_quality", "jpeg_share"),
}


def store_format(name: str) -> StoreFormat:
    """The format of that name; its module is imported here, in a worker process too."""
    found: StoreFormat = importlib.import_module(f"image_classification.stores.{_MODULES[name]}").FORMAT
    return found


def effective(settings: StoreConfig, eval_resize: int) -> StoreConfig:
    """`settings` as they are recorded: what the format does not use is left at its default, resizes are filled in.

    Raises:
        UsageError: settings that cannot be, or format "folder", which is not made.
    """
    if settings.format not in _MODULES:
        raise UsageError(
            f"format {settings.format} is read where it lies and not made; give --data.store.format jpeg, raw or beton."
        )
    kept = {name: getattr(settings, name) for name in _SETTINGS[settings.format]}
    found = replace(StoreConfig(format=settings.format), **kept)
    if settings.format == "raw":
        found = replace(found, evaluation_resizes=tuple(sorted(set(found.evaluation_resizes or (eval_resize,)))))
    wrong = {
        "raw needs --data.store.size, pixels of the short side or square": found.format == "raw" and found.size < 1,
        "--data.store.size must not be negative": found.size < 0,
        "--data.store.evaluation-resizes must be positive": any(resize < 1 for resize in found.evaluation_resizes),
        "--data.store.jpeg-quality must be from 1 to 100": not 1 <= found.jpeg_quality <= 100,
        "--data.store.jpeg-share must be from 0 to 1": not 0 <= found.jpeg_share <= 1,
    }
    if told := [rule for rule, broken in wrong.items() if broken]:
        raise UsageError(f"no store was prepared: {'; '.join(told)}.")
    return found


def splits_of(settings: StoreConfig) -> tuple[str, ...]:
    """Names of the splits of a store with these effective settings."""
    if settings.format == "raw":
        return ("train", *(f"evaluation_{resize}" for resize in settings.evaluation_resizes))
    return ("train", "evaluation")


def source_split(split: str) -> str:
    """The split of the source that it is made from."""
    return split.partition("_")[0]
