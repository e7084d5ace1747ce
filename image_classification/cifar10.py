"""CIFAR-10's binary batches: a label byte and 3,072 pixel bytes for each image. Pickled batches are not read."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind

RECORD = 1 + 3 * 32 * 32
PER_FILE = 10_000
TUNING = 5_000
"""Training images of the tuning split's evaluation."""
FILES = {
    # SHA-1 of each file, as Apache MXNet's model zoo publishes them for the binary version.
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


def require(folder: Path) -> None:
    """Raise DataError unless `folder` has all binary batches, by names and sizes; no pixel is read."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        pickled = (folder / "data_batch_1").exists()
        hint = " It has the pickled Python version, which is not supported." if pickled else ""
        raise DataError(
            f"{folder}: {', '.join(missing)} missing.{hint} Pass the folder of CIFAR-10's binary version"
            " with --data-folder."
        )
    wrong = [name for name in FILES if (folder / name).stat().st_size != RECORD * PER_FILE]
    for name in wrong:
        require_own_kind(folder / name)
    if wrong:
        raise DataError(
            " ".join(f"{folder / name}: not {RECORD * PER_FILE:,} bytes; fetch it again." for name in wrong)
        )


def read(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 32, 32) uint8 and labels (N,) int64 of "train" or "evaluation". Raises DataError if a file
    is missing, has the wrong size or a label above 9."""
    require(folder)
    names = [name for name in FILES if name.startswith("test") == (split == "evaluation")]
    records = np.concatenate([np.fromfile(folder / name, dtype=np.uint8).reshape(-1, RECORD) for name in names])
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        row = int(labels.argmax())
        raise DataError(
            f"{folder / names[row // PER_FILE]}: image {row % PER_FILE} has label {labels.max()};"
            " CIFAR-10's are 0 to 9."
        )
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels)


def verify(folder: Path) -> dict[str, str]:
    """Compare the SHA-1 of every file with the published one and return them. Raises DataError if a file is missing or
    is not the published one."""
    require(folder)
    for name, published in FILES.items():
        with open(folder / name, "rb") as file:
            actual = hashlib.file_digest(file, "sha1").hexdigest()
        if actual != published:
            raise DataError(f"{folder / name}: SHA-1 {actual} is not the published {published}; fetch it again.")
    return dict(FILES)
