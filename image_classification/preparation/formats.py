"""Formats that can be built, with their effective settings and splits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from image_classification.stores import beton, encoded, raw
from image_classification.stores.manifest import FORMAT_SETTINGS, RESIZED, Format, StoreConfig
from image_classification.stores.store_format import StoreFormat
from judging.ground.errors import UsageError

FORMATS: Final[Mapping[Format, StoreFormat]] = {"jpeg": encoded.FORMAT, "raw": raw.FORMAT, "beton": beton.FORMAT}


def effective_settings(settings: StoreConfig, eval_resize: int) -> StoreConfig:
    """Return `settings` as recorded in a manifest: unused fields at their defaults, evaluation resizes filled in.
    Raises UsageError for invalid settings."""
    if settings.format not in FORMATS:
        raise UsageError("no store was prepared: set --data.store.format jpeg, raw or beton.")
    used = {name: getattr(settings, name) for name in FORMAT_SETTINGS[settings.format]}
    store = replace(StoreConfig(format=settings.format), **used)
    if settings.format == "raw":
        store = replace(store, evaluation_resizes=tuple(sorted(set(store.evaluation_resizes or (eval_resize,)))))
    rules = {
        "raw needs --data.store.size, pixels of the short side": store.format != "raw" or store.size >= 1,
        "--data.store.size must not be negative": store.size >= 0,
        "--data.store.evaluation-resizes must be positive": all(resize >= 1 for resize in store.evaluation_resizes),
        "--data.store.jpeg-quality must be from 1 to 100": 1 <= store.jpeg_quality <= 100,
        "--data.store.jpeg-share must be from 0 to 1": 0 <= store.jpeg_share <= 1,
    }
    if broken := [rule for rule, satisfied in rules.items() if not satisfied]:
        raise UsageError(f"no store was prepared: {'; '.join(broken)}.")
    return store


def splits_of(settings: StoreConfig) -> tuple[str, ...]:
    """Return the splits of a store with these effective settings."""
    if settings.format == "raw":
        return ("train", *(f"{RESIZED}{resize}" for resize in settings.evaluation_resizes))
    return ("train", "evaluation")


def source_split(split: str) -> str:
    """Return the split of the source that a split of a store is made from."""
    return split.partition("_")[0]
