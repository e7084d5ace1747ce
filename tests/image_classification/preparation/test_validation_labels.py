"""Classes of validation images: the devkit is read as torchvision reads it, lists line by line."""

import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from image_classification.preparation.sources import read_labels
from judging.ground.errors import DataError
from tests.image_classification.preparation.samples import add

DEVKIT = "ILSVRC2012_devkit_t12"
TRUTH = [4, 2, 2, 1, 3, 4, 1]


def write_devkit(folder: Path, truth: list[int]) -> Path:
    """A devkit of four classes and two synsets above them, with the fields of the real meta.mat."""
    scipy_io = pytest.importorskip("scipy.io", reason="needs the extra 'imagenet'")
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height"]
    synsets = np.zeros(6, dtype=[(name, object) for name in fields])
    for number in range(6):
        above = number >= 4
        synsets[number] = (
            float(number + 1),
            f"n{1_440_764 - 1000 * number:08d}",
            "tench, Tinca tinca",
            "a fish",
            2.0 if above else 0.0,
            np.array([1.0, 2.0]) if above else np.array([]),
            float(above),
        )
    buffer = io.BytesIO()
    scipy_io.savemat(buffer, {"synsets": synsets.reshape(-1, 1)})
    path = folder / f"{DEVKIT}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        add(archive, f"{DEVKIT}/readme.txt", b"words")
        add(archive, f"{DEVKIT}/data/meta.mat", buffer.getvalue())
        lines = "".join(f"{number}\n" for number in truth)
        add(archive, f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt", lines.encode())
    return path


def test_the_devkit_is_torchvisions(tmp_path, torchvision, monkeypatch):
    from torchvision.datasets import imagenet

    path = write_devkit(tmp_path, TRUTH)
    monkeypatch.setattr(imagenet, "_verify_archive", lambda *_: None)  # it wants the real devkit's MD5
    imagenet.parse_devkit_archive(tmp_path)
    _, expected = imagenet.load_meta_file(tmp_path)
    found = read_labels(path)
    assert list(found.values()) == expected
    assert len(set(expected)) == 4
    assert list(found)[0] == "ILSVRC2012_val_00000001.JPEG"
    assert list(found)[-1] == f"ILSVRC2012_val_{len(TRUTH):08d}.JPEG"


def test_a_devkit_with_an_unknown_class_is_refused(tmp_path):
    with pytest.raises(DataError, match="line 2: '5' is not the number of a class"):
        read_labels(write_devkit(tmp_path, [1, 5]))


def test_without_scipy_the_extra_is_named(tmp_path, monkeypatch):
    path = write_devkit(tmp_path, TRUTH)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"pip install 'timedrun\[imagenet\]'"):
        read_labels(path)


def test_another_tar_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        add(archive, "other/data/meta.mat.txt", b"")
    with pytest.raises(DataError, match="contains no data/meta.mat"):
        read_labels(path)
    with tarfile.open(path, "w:gz") as archive:
        add(archive, "x/data/meta.mat", b"not one")
        add(archive, "x/data/ILSVRC2012_validation_ground_truth.txt", b"1\n")
    with pytest.raises(DataError, match=r"its data/meta.mat is not ImageNet's"):
        read_labels(path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError):
        read_labels(path)


def test_a_list_gives_each_name_its_class(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("val/a.JPEG n2\n\nb.JPEG\tn1\n")
    assert read_labels(path) == {"a.JPEG": "n2", "b.JPEG": "n1"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a.JPEG\n", "line 1: expected a file name and a class"),
        (b"a.JPEG n1\na.JPEG n2\n", "line 2: a.JPEG has another class above"),
        (b"\n", "contains no line"),
        (b"\xff\xfe\x00", "neither ImageNet's devkit nor a list"),
    ],
)
def test_an_invalid_list_is_refused_with_its_line(tmp_path, content, words):
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_labels(path)
