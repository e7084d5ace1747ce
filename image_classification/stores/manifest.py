"""Manifest of an image store. Preparation writes it last, so a folder without a manifest is not a store."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

import tyro

from judging.ground.atomic_file import StoredFile, check_size, failures
from judging.ground.errors import DataError
from timedrun.runner.storage import store_files

VERSION = 1
MANIFEST = "timedrun_images.json"
RESIZED = "evaluation_"
"""Prefix of the evaluation splits of format raw; the short side in pixels follows."""
Format = Literal["folder", "jpeg", "raw", "beton"]

FORMAT_SETTINGS: Final[Mapping[Format, tuple[str, ...]]] = {
    "folder": (),
    "jpeg": (),
    "raw": ("size", "evaluation_resizes"),
    "beton": ("size", "jpeg_quality", "jpeg_share"),
}
"""Fields of `StoreConfig` that each format uses."""


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Frozen description of a store: what `prepare` writes and what a run expects."""

    format: Format = "folder"
    """folder: none, for sources without a store. jpeg: the original files in shards. raw: decoded and resized, 8 bits
    per channel. beton: FFCV's format."""
    size: int = 0
    """Pixels. raw: short side. beton: longest side; larger images are shrunk. 0: original size (not for raw)."""
    shape: tyro.conf.Fixed[Literal["short_side"]] = "short_side"
    """Ended; it stays for the digests of runs in results/."""
    evaluation_resizes: tuple[int, ...] = ()
    """raw: short sides at which evaluation images are stored, resized as the reference does; empty: the config's
    `eval_resize`."""
    jpeg_quality: int = 90
    """beton."""
    jpeg_share: float = 0.5
    """beton: fraction of images stored as JPEG; the others are raw. ffcv-imagenet and MosaicML used 0.5."""


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Counts of one split ("train", "evaluation"; raw: "train", "evaluation_256" ...)."""

    images: int
    per_class: tuple[int, ...]
    """Images of each class, in the order of `ImageManifest.classes`."""
    bytes: int
    """Of pixels or encoded images, without index files."""


@dataclass(frozen=True, kw_only=True)
class ImageManifest:
    """Contents of a store."""

    version: int = VERSION
    settings: StoreConfig
    classes: tuple[str, ...]
    """Sorted names; a label is an index into this list."""
    splits: Mapping[str, SplitCounts]
    source_sha256: str
    """Digest of names, labels and byte counts of all source images, in order."""
    findings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ended; stores of before name images here that are not plain RGB JPEG."""
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    """By path within the store, with forward slashes."""

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest's text, which holds those of all files."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def describe_store(store: StoreConfig) -> str:
    """Return format and size as text, for messages and the log."""
    if store.format == "raw":
        return f"raw, short side {store.size} px"
    if store.format == "beton":
        size = f"longest side {store.size} px" if store.size else "original size"
        return f"beton, {size}, {store.jpeg_share:.0%} JPEG of quality {store.jpeg_quality}"
    return f"{store.format}, original size"


def run_splits(store: StoreConfig, eval_resize: int) -> tuple[str, str]:
    """Return the names of the splits that a run trains and evaluates on."""
    return "train", f"{RESIZED}{eval_resize}" if store.format == "raw" else "evaluation"


def read_manifest(folder: Path) -> ImageManifest:
    """Return the manifest of the store in `folder`. Raises DataError if it is missing, damaged or of other version."""
    return store_files.read_manifest(
        folder / MANIFEST,
        ImageManifest,
        VERSION,
        absent=f"no {MANIFEST}, so this is not a complete image store. Make one with: timedrun prepare"
        f" image_classification CONFIG --images IMAGES --data-folder {folder}",
    )


def verify(folder: Path) -> ImageManifest:
    """Check the SHA-256 of every file of the store and return its manifest; raise DataError naming all that differ."""
    return store_files.verify(folder, read_manifest(folder))


def store_problems(folder: Path, wanted: StoreConfig, eval_resize: int) -> list[str]:
    """Return what keeps a run from using the store in `folder`; file sizes are checked, file contents are not."""
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        return [str(error)]
    return [*differences(folder, manifest, wanted, eval_resize), *failures(check_size, folder, manifest.files)]


def differences(folder: Path, manifest: ImageManifest, wanted: StoreConfig, eval_resize: int) -> list[str]:
    """Return how the store in `folder` differs from `wanted`: its format, or its settings and missing splits."""
    held = manifest.settings
    if held.format != wanted.format:
        return [
            f"{folder} holds {describe_store(held)}; the config needs format {wanted.format}. Use another"
            f" --data-folder, prepare a store, or use --data.store.format {held.format} with a loader that reads it."
        ]
    problems = []
    for name in FORMAT_SETTINGS[wanted.format]:
        ours, theirs = getattr(wanted, name), getattr(held, name)
        if ours != theirs and name != "evaluation_resizes":  # a run only needs the split that it evaluates on
            problems.append(
                f"{folder} was made with {name} {theirs}, but the config has {ours}; use"
                f" --data.store.{name.replace('_', '-')} {theirs}, or prepare a store with the config's."
            )
    return problems + missing_splits(folder, manifest, run_splits(wanted, eval_resize))


def missing_splits(folder: Path, manifest: ImageManifest, splits: Sequence[str]) -> list[str]:
    """Return a message for each of `splits` that the store lacks."""
    problems = []
    for split in splits:
        if split in manifest.splits:
            continue
        if not split.startswith(RESIZED):
            held = ", ".join(manifest.splits)
            problems.append(f"{folder}: has no split {split}, only {held}; prepare it with the run's config.")
            continue
        wanted = int(split.removeprefix(RESIZED))
        sizes = sorted(int(name.removeprefix(RESIZED)) for name in manifest.splits if name.startswith(RESIZED))
        problems.append(
            f"{folder}: no evaluation images of short side {wanted} (data.eval_resize), only of"
            f" {', '.join(map(str, sizes))}. Prepare a store with --data.store.evaluation-resizes"
            f" {' '.join(map(str, sorted([*sizes, wanted])))}."
        )
    return problems
