"""Notes on a source of images: skipped names, files of other formats, evaluation images that are also for training."""

import hashlib
import sys
from collections import Counter
from operator import attrgetter
from pathlib import PurePath

from image_classification.preparation.sources import Source
from image_classification.stores.image_folder import SPLITS, counted
from image_classification.stores.store_format import SourceItem, UnusableImage

_LENGTHS = (0, 8192, sys.maxsize)
"""Bytes compared of images that agree in size and in fewer bytes: the first 8 KiB of most files have some pixels."""


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
