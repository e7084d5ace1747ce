"""Classes of ImageNet's validation images, which their tar file lacks: from the devkit, or from a list."""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path
from typing import Any

from judging.ground.errors import DataError

LARGEST_FILE = 1 << 26
"""Bytes of a file in a devkit, against archives that unpack to any size; ImageNet's have some 100,000."""
_SYNSETS, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"


def read_labels(path: Path) -> dict[str, str]:
    """Return classes (WordNet ids) by file name, from ILSVRC2012_devkit_t12.tar.gz or lines of file name and class.
    Raises DataError if the file is unreadable or neither of these."""
    try:
        return _of_devkit(path) if tarfile.is_tarfile(path) else _of_lines(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the validation labels cannot be read ({error}).") from None


def _of_lines(path: Path) -> dict[str, str]:
    labels: dict[str, str] = {}
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
