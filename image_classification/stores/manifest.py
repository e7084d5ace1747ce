"""What a store of prepared images holds and how it was made; written last, so a folder without it holds no store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import cattrs
import numpy as np
from numpy.typing import NDArray

from timedrun.errors import DataError
from timedrun.storage.atomic_file import StoredFile, is_inside

VERSION = 1
MANIFEST = "timedrun_images.json"
SHORT_SIDE = "evaluation_"
"""Begin of the name of an evaluation split of format raw, before the pixels of its short side."""
Format = Literal["folder", "jpeg", "raw", "beton"]

_converter = cattrs.Converter(forbid_extra_keys=True)


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """How images lie on disk: what `prepare` makes, and what a run expects to find."""

    format: Format = "folder"
    """folder: train/<class>/* and val/<class>/* with an index. jpeg: their files as they are, in shards. raw: decoded
    and resized, 8 bits a channel. beton: FFCV's."""
    size: int = 0
    """Pixels. raw: short side, or side of the square. beton: the longest side, larger images are made smaller. 0: as
    it is (not for raw)."""
    shape: Literal["short_side", "square"] = "short_side"
    """raw: keep the proportions, or scale both sides to `size` (crops are drawn on the original's proportions)."""
    evaluation_resizes: tuple[int, ...] = ()
    """raw: the short sides that evaluation images are stored at, resized as the reference does; empty: the config's
    `eval_resize`."""
    jpeg_quality: int = 90
    """beton."""
    jpeg_share: float = 0.5
    """beton: the share of images kept as JPEG; the others are raw. 0.5 is what ffcv-imagenet and MosaicML used."""


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """Counts of one split ("train", "evaluation"; raw: "train", "evaluation_256" ...)."""

    images: int
    per_class: tuple[int, ...]
    """Images of each class, in the order of `Manifest.classes`."""
    bytes: int
    """Of pixels or encoded images, without index files."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a store holds."""

    version: int = VERSION
    settings: StoreConfig
    classes: tuple[str, ...]
    """Sorted names; a label is a place in this list."""
    splits: Mapping[str, SplitFacts]
    source_sha256: str
    """Of names, labels and byte counts of everything that went in, in order."""
    findings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of images that are not plain RGB JPEG, by what they are: corrupt (left out), grayscale, cmyk, rotated
    (EXIF; stored as they lie, like the reference reads them), png ..."""
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    """By path within the store, with forward slashes."""

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest's text, which holds those of all files."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The text of the manifest's file."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the store in `folder`.

    Raises:
        DataError: none there, damaged, or of another version.
    """
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.get("version") != VERSION:
            raise DataError(f"{path}: version {values.get('version')!r} is not read, only {VERSION}; prepare it again.")
        manifest = _converter.structure(values, Manifest)
        if strange := [name for name in manifest.files if not is_inside(name)]:
            raise DataError(f"{path}: lists {strange[0]!r}, which is no file of the store; nothing was read.")
        return manifest
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no {MANIFEST}, so no whole store of images is there. Make one with: timedrun prepare "
            f"image_classification CONFIG --images IMAGES --data-folder {folder}"
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError, cattrs.BaseValidationError) as error:
        raise DataError(f"{path}: damaged or edited ({type(error).__name__}); prepare the store again.") from None


def split_facts(labels: NDArray[np.integer], classes: int, size: int) -> SplitFacts:
    """Facts of a split whose images have these `labels` (n,) of so many `classes`, and `size` bytes in all."""
    counts = np.bincount(labels, minlength=classes).tolist()
    return SplitFacts(images=len(labels), per_class=tuple(counts), bytes=size)


def verify(folder: Path) -> Manifest:
    """Reads every byte of the store and returns its manifest.

    Raises:
        DataError: a file is missing, or its size or SHA-256 differs: all of them are named.
    """
    manifest = read_manifest(folder)
    damaged = []
    for name, stored in manifest.files.items():
        try:
            check_content(folder, name, stored)
        except DataError as error:
            damaged.append(str(error))
    if damaged:
        raise DataError("\n".join(damaged))
    return manifest


def check_size(folder: Path, name: str, stored: StoredFile) -> None:
    """Raises DataError where the file is missing or has another size; reads none of it."""
    path = folder / name
    if not path.is_file():
        raise DataError(f"{path}: missing; copy or prepare the store again.")
    if (size := path.stat().st_size) != stored.bytes:
        fault = "cut off" if size < stored.bytes else "too long"
        raise DataError(
            f"{path}: {fault}, {size:,} bytes instead of {stored.bytes:,}; copy or prepare the store again."
        )


def check_content(folder: Path, name: str, stored: StoredFile) -> None:
    """Raises DataError where the file is missing, or its size or SHA-256 differs; reads all of it."""
    check_size(folder, name, stored)
    try:
        with (folder / name).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{folder / name}: cannot be read ({error.strerror}).") from None
    if found != stored.sha256:
        raise DataError(f"{folder / name}: damaged, its SHA-256 is another; copy or prepare the store again.")


def require_format(folder: Path, manifest: Manifest, wanted: Format, splits: Sequence[str]) -> None:
    """Raises DataError where the store is of another format or lacks one of `splits`."""
    if manifest.settings.format != wanted:
        raise DataError(f"{folder}: holds a store of format {manifest.settings.format}, not {wanted}.")
    if found := [words for split in splits if (words := missing_split(folder, manifest, split))]:
        raise DataError(" ".join(found))


def missing_split(folder: Path, manifest: Manifest, split: str) -> str:
    """What to do about `split` not being in the store; empty if it is."""
    if split in manifest.splits:
        return ""
    if not split.startswith(SHORT_SIDE):
        return f"{folder}: has no split {split}, only {', '.join(manifest.splits)}; prepare it with the run's config."
    wanted = int(split.removeprefix(SHORT_SIDE))
    held = sorted(int(name.removeprefix(SHORT_SIDE)) for name in manifest.splits if name.startswith(SHORT_SIDE))
    return (
        f"{folder}: no evaluation images of short side {wanted} (data.eval_resize), only of"
        f" {', '.join(map(str, held)) or 'none'}. Add them: prepare into this folder again with"
        f" --data.store.evaluation-resizes {' '.join(map(str, sorted([*held, wanted])))}"
    )
