"""Makes a dataset ready before any run: checks CIFAR-10's files, lists an ImageNet folder, decodes every image."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from image_classification import cifar10, image_folder
from image_classification.configs import ImageRunConfig
from image_classification.data import facts, require_folder
from timedrun.errors import DataError


def prepare(config: ImageRunConfig, folder: Path | None, *, decode: bool, workers: int) -> dict[str, Any]:
    """Check or index the data of `config` in `folder`; returns what was found, as plain values.

    Raises:
        DataError: missing, damaged; or, with `decode`, the images that cannot be decoded, all of them named.
    """
    source = config.data.source
    if source == "cifar10":
        return {"source": source, "sha1": cifar10.verify(require_folder(config.data, folder))}
    if source == "image_folder":
        root = require_folder(config.data, folder)
        index = image_folder.make_index(root)
        if decode:
            decode_all(root, index, workers)
        image_folder.write_index(index, root)
        counts = {split: len(files) for split, files in index.files.items()}
        smallest = min(Counter(label for _, label in index.files["train"]).values())
        return {
            "source": source,
            "classes": len(index.classes),
            **counts,
            "smallest_class": smallest,
            "sha256": index.digest,
        }
    known = facts(config.data, None)
    return {
        "source": source,
        "train": known.train_samples,
        "evaluation": known.eval_samples,
        "note": "nothing to prepare",
    }


def decode_all(folder: Path, index: image_folder.Index, workers: int) -> None:
    """Decode every image of `index`, in `workers` processes, showing progress.

    Raises:
        DataError: some cannot be decoded; the message names them, and no index was written.
    """
    names = [name for files in index.files.values() for name, _ in files]
    broken: list[str] = []
    with ProcessPoolExecutor(max_workers=max(1, workers)) as pool:
        for number, complaint in enumerate(pool.map(partial(complaint_about, folder), names, chunksize=64), 1):
            if complaint:
                broken.append(complaint)
            if number % 1000 == 0 or number == len(names):
                print(f"decoded {number:,} of {len(names):,}, {len(broken)} broken", file=sys.stderr)
    if broken:
        shown = "\n".join(f"  {line}" for line in broken[:20])
        more = f"\n  and {len(broken) - 20} more" if len(broken) > 20 else ""
        raise DataError(
            f"{len(broken)} of {len(names):,} images cannot be decoded; no index was written:\n{shown}{more}"
        )


def complaint_about(folder: Path, name: str) -> str:
    """What is wrong with one image; empty if nothing is."""
    try:
        image_folder.decode(folder / name)
    except DataError as error:
        return str(error)
    return ""
