"""ImageNet's layout, `train/<class>/*` and `val/<class>/*`: its index, and decoding with Pillow in worker processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from image_classification.augmentation import random_resized_crop_box
from timedrun.errors import DataError
from timedrun.order import random_uniform

INDEX = "timedrun_index.json"
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
SPLITS = {"train": "train", "evaluation": "val"}


@dataclass(frozen=True)
class Index:
    """What is in the folder: class names, and per split the relative path and class number of every image."""

    classes: tuple[str, ...]
    files: dict[str, list[tuple[str, int]]]

    @property
    def digest(self) -> str:
        """SHA-256 over class names, paths and labels."""
        return hashlib.sha256(json.dumps([self.classes, self.files], sort_keys=True).encode()).hexdigest()


def make_index(folder: Path) -> Index:
    """List `folder`; classes are the sorted sub-folders of train/, as in torchvision's ImageFolder.

    Raises:
        DataError: a split or its images are missing, or val/ has a class that train/ has not.
    """
    for sub in SPLITS.values():
        if not (folder / sub).is_dir():
            raise DataError(f"{folder}: no {sub}/ folder; expected train/<class>/*.jpg and val/<class>/*.jpg.")
    classes = tuple(sorted(entry.name for entry in (folder / "train").iterdir() if entry.is_dir()))
    numbers = {name: number for number, name in enumerate(classes)}
    files: dict[str, list[tuple[str, int]]] = {}
    for split, sub in SPLITS.items():
        files[split] = []
        for entry in sorted((folder / sub).iterdir()):
            if entry.is_dir():
                if entry.name not in numbers:
                    raise DataError(f"{entry}: class '{entry.name}' is not among the {len(classes)} classes of train/.")
                found = sorted(path for path in entry.rglob("*") if path.suffix.lower() in SUFFIXES)
                files[split] += [(path.relative_to(folder).as_posix(), numbers[entry.name]) for path in found]
        if not files[split]:
            raise DataError(f"{folder / sub}: no image ({', '.join(SUFFIXES)}) in any class folder.")
    return Index(classes, files)


def write_index(index: Index, folder: Path) -> Path:
    """Write `index` into `folder`, whole or not at all."""
    path = folder / INDEX
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"classes": index.classes, "files": index.files, "sha256": index.digest}))
    part.replace(path)
    return path


def read_index(folder: Path) -> Index:
    """The index that `prepare` wrote.

    Raises:
        DataError: there is none, or it was changed.
    """
    path = folder / INDEX
    if not path.is_file():
        raise DataError(
            f"{folder}: no {INDEX}. Run: timedrun prepare image_classification --data imagenet --data-folder {folder}"
        )
    try:
        stored = json.loads(path.read_text())
        files = {split: [(str(file), int(label)) for file, label in rows] for split, rows in stored["files"].items()}
        index = Index(tuple(stored["classes"]), files)
        intact = stored["sha256"] == index.digest and set(files) == set(SPLITS)
    except (ValueError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise DataError(f"{path}: damaged or edited; run prepare again.")
    return index


def decode(path: Path) -> object:
    """The image as RGB (Pillow's Image).

    Raises:
        DataError: unreadable; the file is named.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be decoded ({error}); remove or replace it and run prepare again.") from None


class Decoded(Dataset[tuple[Tensor, int]]):
    """Decodes one image a call, keyed by (epoch, sample) so that its crop depends on nothing else."""

    def __init__(
        self, folder: Path, files: list[tuple[str, int]], *, train: bool, seed: int, resize: int, size: int
    ) -> None:
        self.folder, self.files = folder, files
        self.train, self.seed, self.resize, self.size = train, seed, resize, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        from PIL import Image

        epoch, sample = key
        name, label = self.files[sample]
        image = decode(self.folder / name)
        assert isinstance(image, Image.Image)
        if self.train:
            draws = random_uniform(self.seed, epoch, np.array([sample]), stream="random_resized_crop", count=41)[0]
            top, left, height, width = random_resized_crop_box(image.height, image.width, draws[:40].reshape(10, 4))
            image = image.crop((left, top, left + width, top + height))
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
            if draws[40] < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            image = centre_crop(image, self.resize, self.size)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous(), label


def centre_crop(image: object, resize: int, size: int) -> object:
    """Short side to `resize` (bilinear), then the central `size` x `size`, as torchvision's Resize and CenterCrop."""
    from PIL import Image

    assert isinstance(image, Image.Image)
    short = min(image.size)
    width, height = (resize if side == short else int(resize * side / short) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


class FolderImages:
    """Batches of a split, decoded by worker processes that live as long as the run."""

    def __init__(
        self, folder: Path, index: Index, *, train: bool, seed: int, resize: int, size: int, workers: int, pin: bool
    ) -> None:
        files = index.files["train" if train else "evaluation"]
        self.dataset = Decoded(folder, files, train=train, seed=seed, resize=resize, size=size)
        self.plan: list[list[tuple[int, int]]] = []
        self.loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            self.dataset,
            batch_sampler=self.plan,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
            pin_memory=pin,
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, parts: Sequence[npt.NDArray[np.int64]], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (n, 3, size, size) uint8 and labels (n,) int64 for each array of sample numbers in `parts`."""
        self.plan[:] = [[(epoch, int(sample)) for sample in part] for part in parts]
        yield from self.loader
