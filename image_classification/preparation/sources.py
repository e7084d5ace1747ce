"""Source images of a store: a folder of train/ and val/, and notes on what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path, PurePath

from image_classification.preparation.archives import unpack_missing
from image_classification.stores.image_folder import SPLITS, Index, counted, make_index
from image_classification.stores.store_format import SourceItem, UnusableImage
from judging.ground.errors import DataError
from timedrun.methods.training.sampling import epoch_order

ORDER_SEED = 2012
"""Of the fixed pseudo-random order of stored training images: consecutive samples are of all classes, so a run in
quasi-random order, which reads blocks of them, does not see one class at a time."""

_LENGTHS = (0, 8192, sys.maxsize)
"""Bytes compared of images that agree in size and in fewer bytes: the first 8 KiB of most files have some pixels."""


@dataclass(frozen=True)
class Source:
    """Classes and images of both splits in stored order."""

    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[SourceItem]] = field(repr=False)
    """"train" in a fixed pseudo-random order, "evaluation" by class and name."""
    skipped: Sequence[str] = ()
    """Names that are no class and no image, `image_folder.is_leftover`."""
    unread: Sequence[str] = ()
    """Files of a folder with other endings than `image_folder.SUFFIXES`."""

    @cached_property
    def sha256(self) -> str:
        """Digest of names, labels and byte counts in order; independent of where the images are read from."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for split, items in self.splits.items():
            digest.update(f"{split} {len(items)}\n".encode())
            for item in items:
                digest.update(b"%b\n%d %d\n" % (os.fsencode(item.name), item.label, item.size))
        return digest.hexdigest()


def open_source(folder: Path, report: Callable[[str], None]) -> Source:
    """List the images of a folder of train/ and val/, unpacked from ImageNet's archives in it if these are not there.
    Raises DataError if images or archives are missing, or what `unpack_missing` raises."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; --images is one of train/ and val/, or of ImageNet's archives; nothing was"
            " prepared."
        )
    unpack_missing(folder, report)
    return of_index(make_index(folder, unreadable=[]), folder)  # reading an unreadable image reports it


def of_index(index: Index, folder: Path) -> Source:
    """Return the images of an index of `folder`."""
    splits: dict[str, Sequence[SourceItem]] = {}
    for split, table in index.splits.items():
        rows = zip(map(table.name, range(len(table))), table.labels.tolist(), table.rows["bytes"].tolist(), strict=True)
        items = (SourceItem(name, label, str(folder / name), size) for name, label, size in rows)
        splits[split] = sorted(items, key=lambda item: (item.label, item.name))
    train = splits["train"]
    splits["train"] = [train[position] for position in epoch_order(len(train), ORDER_SEED, 1).tolist()]
    return Source(index.classes, splits, index.skipped, index.unread)


def source_notes(source: Source) -> list[str]:
    """Return notes on skipped names and unread files, and on evaluation images that are also training images."""
    splits = source.splits
    for length in _LENGTHS:
        on_disk = {split: sorted(splits[split], key=attrgetter("path")) for split in SPLITS}
        digests = {split: {item: _digest(item, length) for item in on_disk[split]} for split in SPLITS}
        shared = set(digests["train"].values()) & set(digests["evaluation"].values())
        splits = {split: [item for item in digests[split] if digests[split][item] in shared] for split in SPLITS}
    endings = Counter(PurePath(name).suffix.lower() or "no ending" for name in source.unread)
    shown = ", ".join(f"{ending}: {count:,}" for ending, count in sorted(endings.items()))
    names = {digests["train"][item]: item.name for item in splits["train"]}
    return [
        *counted(source.skipped, "names, hidden or left behind by other programs, were skipped: no class and no image"),
        *counted(source.unread, f"files in folders of classes were not read for their endings ({shown})"),
        *counted(
            [f"{item.name} (training: {names[digests['evaluation'][item]]})" for item in splits["evaluation"]],
            f"of {len(source.splits['evaluation']):,} evaluation images are also training images, so the quality is"
            " not that on new images; remove them from one of the two and prepare again",
        ),
    ]


def _digest(item: SourceItem, length: int) -> tuple[int, bytes] | str:
    """Return the size of an image and a digest of its first bytes; its name, equal to no other, if it is unreadable,
    which is reported where images are decoded."""
    try:
        data = item.read(length) if length else b""
    except UnusableImage:
        return item.name
    return item.size, hashlib.blake2b(data, digest_size=16).digest()
