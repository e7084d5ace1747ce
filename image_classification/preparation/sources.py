"""Source images of a store: a folder of train/ and val/, or ImageNet's tar files, read without unpacking."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from image_classification.preparation.tar_listing import Member, list_tar
from image_classification.stores.image_folder import SPLITS, SUFFIXES, Index, is_leftover, make_index
from image_classification.stores.store_format import SourceItem
from judging.ground.errors import DataError, UsageError
from judging.ground.file_kind import require_own_kind
from timedrun.training.sampling import epoch_order

TRAIN_TAR, VALIDATION_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
ORDER_SEED = 2012
"""Of the fixed pseudo-random order of stored training images: consecutive samples are of all classes, so a run in
quasi-random order, which reads blocks of them, does not see one class at a time."""
LARGEST_FILE = 1 << 26
"""Bytes of a file in a devkit, against archives that unpack to any size; ImageNet's have some 100,000."""
_SYNSETS, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"


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

    @classmethod
    def of(cls, classes: Sequence[str], splits: Mapping[str, list[SourceItem]]) -> Source:
        ordered = {split: sorted(items, key=lambda item: (item.label, item.name)) for split, items in splits.items()}
        for items in ordered.values():
            for item, after in zip(items, items[1:], strict=False):
                if item.name == after.name:
                    raise DataError(f"{item.path}: contains {item.name} twice; nothing was prepared.")
        train = ordered["train"]
        ordered["train"] = [train[position] for position in epoch_order(len(train), ORDER_SEED, 1).tolist()]
        return cls(tuple(classes), ordered)


def open_source(
    paths: Sequence[Path], validation_labels: Path | None, cache: Path, report: Callable[[str], None]
) -> Source:
    """List the images of a folder, or of the two tar files, given as files or as their folder. Raises DataError if the
    images are missing, damaged or incomplete; UsageError for conflicting paths.

    Args:
        cache: folder for tar listings.
    """
    if missing := [str(path) for path in paths if not path.exists()]:
        raise DataError(f"{', '.join(missing)}: no such file or folder; nothing was prepared.")
    folders = [path for path in paths if path.is_dir()]
    if not folders:
        return _of_tars(paths, validation_labels, cache, report)
    if len(paths) > 1:
        raise UsageError("--images takes one folder of train/ and val/, or tar files; nothing was prepared.")
    folder = folders[0]
    tars = [folder / TRAIN_TAR, folder / VALIDATION_TAR]
    if all(tar.is_file() for tar in tars) and not (folder / "train").is_dir():
        if validation_labels is None and (folder / DEVKIT).is_file():
            validation_labels = folder / DEVKIT
        return _of_tars(tars, validation_labels, cache, report)
    if validation_labels is not None:
        raise UsageError(f"{folder}: classes are given by its folders; omit --validation-labels.")
    return of_index(make_index(folder, unreadable=[]), folder)  # reading an unreadable image reports it


def of_index(index: Index, folder: Path) -> Source:
    """Return the images of an index of `folder`."""
    splits = {
        split: [
            SourceItem(name, label, str(folder / name), 0, size)
            for name, label, size in zip(
                map(table.name, range(len(table))), table.labels.tolist(), table.rows["bytes"].tolist(), strict=True
            )
        ]
        for split, table in index.splits.items()
    }
    return replace(Source.of(index.classes, splits), skipped=index.skipped, unread=index.unread)


def _of_tars(paths: Sequence[Path], labels: Path | None, cache: Path, report: Callable[[str], None]) -> Source:
    listed: dict[Path, list[Member]] = {}
    class_tars: dict[Path, set[str]] = {path: set() for path in paths}
    skipped: list[str] = []
    for path in paths:
        listed[path] = []
        for member in list_tar(path, cache, report):
            name, is_image = PurePosixPath(member.inner, member.name), Path(member.name).suffix.lower() in SUFFIXES
            is_class = not member.inner and name.suffix == ".tar"
            if is_leftover(name):
                skipped += [f"{path.name}: {name}"] if is_image or is_class else []
            elif is_class:
                class_tars[path].add(name.stem)
            elif is_image:
                listed[path].append(member)
    trains = [path for path, members in listed.items() if any(member.inner for member in members)]
    if len(listed) != 2 or len(paths) != 2 or len(trains) != 1:
        raise DataError(
            f"{', '.join(map(str, paths))}: expected two tar files, {TRAIN_TAR} with a tar for each class and "
            f"{VALIDATION_TAR} with images; nothing was prepared."
        )
    train = trains[0]
    validation = next(path for path in paths if path != train)
    if loose := [member.name for member in listed[train] if not member.inner]:
        raise DataError(f"{train}: {loose[0]} is not in a tar file of a class; nothing was prepared.")
    classes = sorted(class_tars[train])
    numbers = {name: number for number, name in enumerate(classes)}
    items = []
    for member in listed[train]:
        label = PurePosixPath(member.inner).stem
        items.append(_item("train", label, member.name.removeprefix(f"{label}/"), numbers, train, member))
    evaluation = _validation(validation, listed[validation], labels, numbers)
    return replace(Source.of(classes, {"train": items, "evaluation": evaluation}), skipped=skipped)


def _validation(
    path: Path, members: Sequence[Member], labels: Path | None, numbers: Mapping[str, int]
) -> list[SourceItem]:
    """Return the images of the validation tar file, labeled by their class folders if they have any, else `labels`."""
    if not members:
        raise DataError(f"{path}: contains no image ({', '.join(SUFFIXES)}); nothing was prepared.")
    flat = [member for member in members if PurePosixPath(member.name).parent.name not in numbers]
    if flat and labels is None:
        raise DataError(
            f"{path}: {flat[0].name} is not in the folder of a class, so its class is unknown; use "
            f"--validation-labels {DEVKIT}, or a file with lines of file name and class."
        )
    if labels is None:
        known: dict[str, str] = {}
    elif not flat:
        raise UsageError(f"{path}: classes are given by its folders; omit --validation-labels.")
    else:
        known = read_labels(labels)
    items = []
    for member in members:
        name = PurePosixPath(member.name)
        label = known.get(name.name) if labels else name.parent.name
        if label is None:
            raise DataError(f"{labels}: contains no class for {name.name} of {path}; nothing was prepared.")
        if label not in numbers:
            raise DataError(f"{labels}: class '{label}' of {name.name} is not among the training classes.")
        items.append(_item("evaluation", label, name.name, numbers, path, member))
    return items


def _item(split: str, label: str, name: str, numbers: Mapping[str, int], path: Path, member: Member) -> SourceItem:
    return SourceItem(f"{SPLITS[split]}/{label}/{name}", numbers[label], str(path), member.offset, member.size)


def read_labels(path: Path) -> dict[str, str]:
    """Return classes (WordNet ids) by file name, which the tar file of the validation images lacks, from
    ILSVRC2012_devkit_t12.tar.gz or lines of file name and class. Raises DataError if the file is unreadable or neither
    of these."""
    try:
        return _of_devkit(path) if tarfile.is_tarfile(path) else _of_lines(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the validation labels cannot be read ({error}).") from None


def _of_lines(path: Path) -> dict[str, str]:
    labels: dict[str, str] = {}
    require_own_kind(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path}: neither ImageNet's devkit nor a list of file names and classes.") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2:
            raise DataError(
                f"{path}, line {number}: expected a file name and a class, such as n01440764; got '{line}'."
            )
        name = words[0].rpartition("/")[2]
        if labels.setdefault(name, words[1]) != words[1]:
            raise DataError(f"{path}, line {number}: {name} has another class above.")
    if not labels:
        raise DataError(f"{path}: contains no line of file name and class.")
    return labels


def _of_devkit(path: Path) -> dict[str, str]:
    synsets, truth = (_file_in(path, name) for name in (_SYNSETS, _TRUTH))
    classes = _classes(path, synsets)
    labels = {}
    for number, line in enumerate(truth.decode("ascii", "replace").split(), 1):
        try:
            labels[f"ILSVRC2012_val_{number:08d}.JPEG"] = classes[int(line)]
        except (ValueError, KeyError):
            raise DataError(f"{path}: {_TRUTH}, line {number}: '{line}' is not the number of a class.") from None
    return labels


def _classes(path: Path, synsets: bytes) -> dict[int, str]:
    """Return WordNet ids by ILSVRC2012_ID, of synsets without children (devkit's readme, section 2)."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        raise DataError(
            f"{path}: scipy is needed to read its meta.mat; pip install 'timedrun[imagenet]', or use "
            "--validation-labels with a file with lines of file name and class."
        ) from None
    try:
        rows: Any = loadmat(io.BytesIO(synsets), squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows if int(row["num_children"]) == 0}
    except (MatReadError, ValueError, KeyError, IndexError, TypeError, NotImplementedError) as error:
        raise DataError(f"{path}: its {_SYNSETS} is not ImageNet's ({error}).") from None


def _file_in(path: Path, wanted: str) -> bytes:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if not 0 <= member.size <= LARGEST_FILE:  # a negative size makes Python's reader loop forever
                    raise DataError(
                        f"{path}: member {member.name!r} declares {member.size:,} bytes; not ImageNet's devkit."
                    )
                if member.isreg() and member.name.endswith(wanted):
                    stream = archive.extractfile(member)
                    assert stream is not None  # it is a regular file
                    return stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as ImageNet's devkit ({error}).") from None
    raise DataError(f"{path}: contains no {wanted}; expected ILSVRC2012_devkit_t12.tar.gz.")
