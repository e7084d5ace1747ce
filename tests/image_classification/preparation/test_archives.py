"""ImageNet's archives are unpacked once, by torchvision, to the devkit's classes; a refusal leaves no split behind."""

import io
import shutil
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.io import savemat

from image_classification.preparation import archives
from image_classification.preparation.archives import ARCHIVES, DEVKIT, WORK, unpack_missing
from judging.ground.errors import DataError
from tests.image_classification.preparation.built_stores import silent
from tests.image_classification.preparation.samples import CLASSES, fingerprint


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """A file into a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def archives_of(folder: Path, out: Path) -> Path:
    """The archives that ImageNet would have of the images in `folder`, in `out`: ILSVRC2012_IDs are not in the order of
    the names of classes, and two synsets stand above them."""
    out.mkdir()
    with tarfile.open(out / ARCHIVES["train"], "w") as outer:
        for name in reversed(CLASSES):
            with io.BytesIO() as content, tarfile.open(fileobj=content, mode="w") as inner:
                for path in sorted((folder / "train" / name).iterdir(), reverse=True):
                    add(inner, path.name, path.read_bytes())
                inner.close()
                add(outer, f"{name}.tar", content.getvalue())
    images = sorted((folder / "val").rglob("*.JPEG"), key=lambda path: path.name)
    with tarfile.open(out / ARCHIVES["val"], "w") as archive:
        for path in images:
            add(archive, path.name, path.read_bytes())
    wnids = [CLASSES[2], CLASSES[0], CLASSES[1], "n00001740", "n00002137"]
    rows = [
        (float(number), wnid, "a, b", "gloss", 2.0 * (number > 3), np.arange(2.0 * (number > 3)), 1.0)
        for number, wnid in enumerate(wnids, 1)
    ]
    columns = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height")
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array(rows, dtype=[(name, object) for name in columns]).reshape(-1, 1)})
    truth = "".join(f"{wnids.index(path.parent.name) + 1}\n" for path in images)
    with tarfile.open(out / DEVKIT, "w:gz") as archive:
        add(archive, "ILSVRC2012_devkit_t12/data/meta.mat", meta.getvalue())
        add(archive, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", truth.encode())
    return out


@pytest.fixture
def imagenet(torchvision: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """torchvision's unpacking of archives that are not the real ones."""
    from torchvision.datasets import imagenet

    assert [name for name, _ in imagenet.ARCHIVE_META.values()] == [ARCHIVES["train"], ARCHIVES["val"], DEVKIT]
    monkeypatch.setattr(imagenet, "_verify_archive", lambda *_: None)  # it wants the real archives' MD5
    return imagenet


def test_archives_are_unpacked_once_to_the_images_of_each_class(tmp_path, original, imagenet):
    folder, lines = archives_of(original, tmp_path / "imagenet"), list[str]()
    unpack_missing(folder, lines.append)
    for split in ("train", "val"):
        assert fingerprint(folder / split) == fingerprint(original / split)
    assert "GB are needed" in lines[0] and "GB are free" in lines[0]
    assert not (folder / WORK).exists()
    unpack_missing(folder, lambda line: pytest.fail(line))


def test_the_command_makes_the_same_store_of_archives_and_of_their_images(tmp_path, original, imagenet, told):
    words = ["prepare", "image_classification", "imagenet_baseline", "--workers", 1]
    for images in (original, archives_of(original, tmp_path / "imagenet")):
        store = ["--data-folder", tmp_path / f"of_{images.name}", "--data.store.format", "jpeg"]
        assert told(*words, "--images", images, *store)["train"] == 30
    assert fingerprint(tmp_path / "of_imagenet") == fingerprint(tmp_path / f"of_{original.name}")
    told(*words, *store, "--decode")


def test_an_interrupted_split_begins_anew_and_a_complete_one_is_kept(tmp_path, original, imagenet, monkeypatch):
    folder, unpack = archives_of(original, tmp_path / "imagenet"), imagenet.parse_train_archive

    def interrupted(root: Path, folder: str) -> None:
        unpack(root, folder=folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(imagenet, "parse_train_archive", interrupted)
        unpack_missing(folder, silent)
    assert {path.name for path in folder.iterdir()} == {*ARCHIVES.values(), DEVKIT, "meta.bin", "val"}
    (folder / WORK / "train" / "n01440764").mkdir(parents=True)  # as after SIGKILL
    (folder / WORK / "train" / "n01440764" / "half.JPEG").write_bytes(b"half")
    (folder / ARCHIVES["val"]).unlink()
    unpack_missing(folder, silent)
    assert fingerprint(folder / "train") == fingerprint(original / "train")


def refused(folder: Path, words: str) -> None:
    before = fingerprint(folder)
    with pytest.raises(DataError, match=words):
        unpack_missing(folder, silent)
    assert fingerprint(folder) == before


def test_what_cannot_be_unpacked_is_refused_and_leaves_no_split(tmp_path, original, imagenet, monkeypatch):
    folder = archives_of(original, tmp_path / "imagenet")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "torchvision.datasets", None)
        refused(folder, r"torchvision, .* cannot be used .*nothing was unpacked. pip install 'timedrun\[imagenet\]'")
    with monkeypatch.context() as patched:
        usage = shutil.disk_usage(folder)
        patched.setattr(archives.shutil, "disk_usage", lambda _: usage._replace(free=1000))
        refused(folder, "GB are needed, 0.0 GB are free; nothing was unpacked. Free disk space")
    monkeypatch.undo()  # the MD5 counts again
    refused(folder, f"{DEVKIT} is not present in the root directory or is corrupted.*Run the same command again")
    (folder / DEVKIT).unlink()
    refused(folder, f"{DEVKIT} missing beside ImageNet's archives; nothing was unpacked")
    (folder / "val").mkdir()
    (folder / ARCHIVES["train"]).write_bytes(b"no archive")
    monkeypatch.setattr(imagenet, "_verify_archive", lambda *_: None)
    refused(folder, "cannot be unpacked there")
    assert not (folder / "train").exists()
