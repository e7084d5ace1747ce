"""Notes on a source of images: names that were skipped, evaluation images that are also training images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from image_classification.preparation.sources import Source
from image_classification.stores.image_folder import counted
from image_classification.stores.store_format import SourceItem, UnusableImage

_BEGINNING = 8192
"""Bytes read of an image whose size occurs in both splits: in most files pixels are among them."""


def source_notes(source: Source) -> list[str]:
    """Return notes on skipped names, and on evaluation images that are also training images. Of most images only the
    size is compared, of some the beginning, and all bytes where these are equal."""
    train, evaluation = source.splits["train"], source.splits["evaluation"]
    for key in (lambda item: item.size, _digest(_BEGINNING), _digest(None)):
        trained, evaluated = _keyed(train, key), _keyed(evaluation, key)
        shared = set(trained.values()) & set(evaluated.values())
        train = [item for item, value in trained.items() if value in shared]
        evaluation = [item for item, value in evaluated.items() if value in shared]
    names = {trained[item]: item.name for item in train}
    return [
        *counted(source.skipped, "names, hidden or left behind by other programs, were skipped: no class and no image"),
        *counted(
            [f"{item.name} (training: {names[evaluated[item]]})" for item in evaluation],
            f"of {len(source.splits['evaluation']):,} evaluation images are also training images, so the quality is"
            " not that on new images; remove them from one of the two and prepare again",
        ),
    ]


def _keyed(items: Sequence[SourceItem], key: Callable[[SourceItem], object]) -> dict[SourceItem, object]:
    """Return the keys of items, computed in the order of their bytes on disk."""
    return {item: key(item) for item in sorted(items, key=lambda item: (item.path, item.offset))}


def _digest(length: int | None) -> Callable[[SourceItem], object]:
    """Return a function of an item: its size and the digest of its first `length` bytes; None: of all."""

    def of(item: SourceItem) -> object:
        try:
            data = replace(item, size=min(item.size, length or item.size)).read()
        except UnusableImage:  # reported where images are decoded; equal to no other
            return item.name
        return item.size, hashlib.blake2b(data, digest_size=16).digest()

    return of
