"""Source images of a store: a folder of train/ and val/, and notes on what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path, PurePath

from image_classification.stores.store_format import SourceItem, UnusableImage
from judging.ground.errors import DataError
from timedrun.methods.training.sampling import epoch_order

ORDER_SEED = 2012  # of the fixed pseudo-random order of stored training images: consecutive ones are of all classes

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = {"train": "train", "evaluation": "val"}
_LEFTOVER = re.compile(
    r"\..*|__macosx|__pycache__|@(eadir|recycle|recently-snapshot|tmp)|#(recycle|snapshot)|~snapshot|lost\+found|"
    r"(eh)?thumbs\.db|desktop\.ini|\$recycle\.bin|system volume information|network trash folder|temporary items",
    re.IGNORECASE | re.DOTALL,
)
"""Names that are hidden, or that file systems, network storage and archivers leave behind: no class and no image."""
_LISTED = 20

_LENGTHS = (0, 8192, sys.maxsize)
"""Bytes compared of images that agree in size and in fewer bytes: the first 8 KiB of most files have some pixels."""


@dataclass(frozen=True)
class Source:
    """Classes and images of both splits in stored order."""

    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[SourceItem]] = field(repr=False)
    """"train" in a fixed pseudo-random order, "evaluation" by class and name."""
    unread: Sequence[str] = ()
    """Files in folders of classes with other endings than SUFFIXES."""

    @cached_property
    def sha256(self) -> str:
        """Digest of names, labels and byte counts in order; independent of where the images are read from."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for split, items in self.splits.items():
            digest.update(f"{split} {len(items)}\n".encode())
            for item in items:
                digest.update(b"%b\n%d %d\n" % (os.fsencode(item.name), item.label, item.size))
        return digest.hexdigest()


def open_source(folder: Path) -> Source:
    """List the images of a folder of train/ and val/. Raises DataError if a split or its images are missing, or for a
    class without training images."""
    for sub in SPLITS.values():
        if not (folder / sub).is_dir():
            raise DataError(
                f"{folder}: no {sub}/ folder; --images is a folder of train/<class>/*.jpg and val/<class>/*.jpg, which"
                " torchvision.datasets.ImageNet makes of ImageNet's archives; nothing was prepared."
            )
    classes = tuple(path.name for path in _kept(folder / "train") if path.is_dir())
    unread: list[str] = []
    splits = {split: sorted(_images(folder, sub, classes, unread)) for split, sub in SPLITS.items()}
    items = {
        split: [SourceItem(name, label, str(folder / name), size) for label, name, size in splits[split]]
        for split in splits
    }
    train = items["train"]
    items["train"] = [train[position] for position in epoch_order(len(train), ORDER_SEED, 1).tolist()]
    return Source(classes, items, sorted(unread))


def _kept(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if not _LEFTOVER.fullmatch(path.name)]


def _images(folder: Path, sub: str, classes: Sequence[str], unread: list[str]) -> Iterator[tuple[int, str, int]]:
    """Yield label, name and bytes of each image of a split, 0 bytes if its size cannot be read, which reading it
    reports; other files are added to `unread`. Raises DataError for a class that is not one of `classes`, which are
    sorted as in torchvision's ImageFolder, or if there is no image."""
    numbers, found = {name: number for number, name in enumerate(classes)}, False
    for entry in _kept(folder / sub):
        if not entry.is_dir():
            continue
        if entry.name not in numbers:
            raise DataError(f"{entry}: class '{entry.name}' is not among the {len(classes)} classes of train/.")
        for path in entry.rglob("*"):
            name = path.relative_to(folder)
            if any(map(_LEFTOVER.fullmatch, name.parts)):
                continue
            if path.suffix.lower() in SUFFIXES:
                found = True
                yield numbers[entry.name], name.as_posix(), _size(path)
            elif path.is_file():
                unread.append(name.as_posix())
    if not found:
        raise DataError(f"{folder / sub}: no image ({', '.join(SUFFIXES)}) in any class folder.")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def counted(names: Sequence[str], what: str) -> tuple[str, ...]:
    """Return a note that begins with the number of `names` and ends with the first 20 of them, or none without any."""
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return (f"{len(names):,} {what}: {', '.join(names[:_LISTED])}{more}",) if names else ()


def source_notes(source: Source) -> list[str]:
    """Return notes on unread files, and on evaluation images that are also training images."""
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
