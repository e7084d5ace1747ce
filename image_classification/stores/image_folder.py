"""Index of a folder in ImageNet's layout, `train/<class>/*` and `val/<class>/*`."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePath

from image_classification.stores.manifest import SplitCounts, count_split
from image_classification.stores.sample_index import FILE_ROW, SampleIndex
from judging.ground.atomic_file import StoredFile, write_file
from judging.ground.errors import DataError
from timedrun.runner.storage.store_files import read_manifest

INDEX = "timedrun_index.json"
VERSION = 2
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")
SPLITS = {"train": "train", "evaluation": "val"}
_LEFTOVER = re.compile(
    r"\..*|__macosx|__pycache__|@(eadir|recycle|recently-snapshot|tmp)|#(recycle|snapshot)|~snapshot|lost\+found|"
    r"(eh)?thumbs\.db|desktop\.ini|\$recycle\.bin|system volume information|network trash folder|temporary items",
    re.IGNORECASE | re.DOTALL,
)
_LISTED = 20


@dataclass(frozen=True)
class Index:
    """Class names of a folder, and for each split the relative path, bytes and class number of every image."""

    classes: tuple[str, ...]
    splits: Mapping[str, SampleIndex]
    """By "train" and "evaluation"."""
    skipped: tuple[str, ...] = ()
    """Class folders and images that `is_leftover`, as they were found by `make_index`."""
    unread: tuple[str, ...] = ()
    """Files in folders of classes with other endings than SUFFIXES, found alike."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of class names, paths, labels and file sizes."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for split in SPLITS:
            self.splits[split].digest_into(digest)
        return digest.hexdigest()

    @cached_property
    def facts(self) -> dict[str, SplitCounts]:
        """Counts by split; no file is opened."""
        return {
            split: count_split(table.labels, len(self.classes), int(table.rows["bytes"].sum()))
            for split, table in self.splits.items()
        }


@dataclass(frozen=True, kw_only=True)
class IndexHead:
    """Contents of the index's JSON file; rows and names of each split are in other files."""

    version: int
    classes: tuple[str, ...]
    sha256: str
    """`Index.digest`"""
    files: dict[str, StoredFile]


def is_leftover(path: PurePath) -> bool:
    """Return whether a part of a relative path is hidden, or a name that file systems, network storage and archivers
    leave behind: it is no class and no image."""
    return any(_LEFTOVER.fullmatch(part) for part in path.parts)


def counted(names: Sequence[str], what: str) -> tuple[str, ...]:
    """Return a note that begins with the number of `names` and ends with the first 20 of them, or none without any."""
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return (f"{len(names):,} {what}: {', '.join(names[:_LISTED])}{more}",) if names else ()


def make_index(folder: Path, unreadable: list[str]) -> Index:
    """Index `folder`; classes are the sorted sub-folders of train/, as in torchvision's ImageFolder, without those that
    are hidden or left behind by other programs. Raises DataError if a split or its images are missing, or if val/ has a
    class that train/ does not have.

    Args:
        unreadable: images without a readable size are appended, with the reason, and listed with 0 bytes.
    """
    for sub in SPLITS.values():
        if not (folder / sub).is_dir():
            raise DataError(f"{folder}: no {sub}/ folder; expected train/<class>/*.jpg and val/<class>/*.jpg.")
    skipped: list[str] = []
    unread: list[str] = []

    def kept(paths: Iterable[Path]) -> list[Path]:
        ordered = {path: is_leftover(path.relative_to(folder)) for path in sorted(paths)}
        skipped.extend(path.relative_to(folder).as_posix() for path, leftover in ordered.items() if leftover)
        return [path for path, leftover in ordered.items() if not leftover]

    folders = {sub: kept(entry for entry in (folder / sub).iterdir() if entry.is_dir()) for sub in SPLITS.values()}
    classes = tuple(entry.name for entry in folders["train"])
    numbers = {name: number for number, name in enumerate(classes)}
    splits: dict[str, SampleIndex] = {}
    for split, sub in SPLITS.items():
        names: list[str] = []
        labels: list[int] = []
        sizes: list[int] = []
        for entry in folders[sub]:
            if entry.name not in numbers:
                raise DataError(f"{entry}: class '{entry.name}' is not among the {len(classes)} classes of train/.")
            found = sorted(entry.rglob("*"))
            images = kept(path for path in found if path.suffix.lower() in SUFFIXES)
            others = (path.relative_to(folder) for path in found if path.suffix.lower() not in SUFFIXES)
            unread += [name.as_posix() for name in others if (folder / name).is_file() and not is_leftover(name)]
            names += [path.relative_to(folder).as_posix() for path in images]
            labels += [numbers[entry.name]] * len(images)
            for path in images:
                try:
                    sizes.append(path.stat().st_size)
                except OSError as error:
                    unreadable.append(f"{path.relative_to(folder).as_posix()}: cannot be read ({error.strerror})")
                    sizes.append(0)
        if not names:
            raise DataError(f"{folder / sub}: no image ({', '.join(SUFFIXES)}) in any class folder.")
        splits[split] = SampleIndex.of(names, {"label": labels, "bytes": sizes}, FILE_ROW)
    return Index(classes, splits, tuple(skipped), tuple(unread))


def write_index(index: Index, folder: Path) -> None:
    """Write `index` into `folder`, its head last, so that an interrupted write leaves no index."""
    files: dict[str, StoredFile] = {}
    path = folder / INDEX
    path.unlink(missing_ok=True)
    for split, table in index.splits.items():
        files |= table.write(folder, f"{path.stem}.{split}")
    head = IndexHead(version=VERSION, classes=index.classes, sha256=index.digest, files=files)
    write_file(path, (json.dumps(asdict(head), indent=1) + "\n").encode())


def read_index(folder: Path) -> Index:
    """Memory-map the index that `prepare` wrote; no image is read. Raises DataError if there is no index, or if it was
    changed."""
    path = folder / INDEX
    absent = f"no {INDEX}. Run: timedrun prepare image_classification CONFIG --data-folder {folder}"
    head = read_manifest(path, IndexHead, VERSION, absent=absent)
    splits = {split: SampleIndex.open(folder, f"{path.stem}.{split}", head.files, FILE_ROW) for split in SPLITS}
    index = Index(head.classes, splits)
    if index.digest != head.sha256:
        raise DataError(f"{path}: damaged or edited; run prepare again.")
    return index
