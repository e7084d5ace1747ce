"""Index of an image folder: contents, digest, and errors of a changed folder or index."""

import os
from pathlib import Path

import pytest

from image_classification.stores import image_folder
from image_classification.stores.image_folder import INDEX, make_index, read_index, write_index
from judging.ground.errors import DataError
from tests.image_classification.small_stores import write_files

FILES = {
    "train/bee/2.jpg": b"22",
    "train/bee/10.JPEG": b"1",
    "train/ant/deep/3.png": b"333",
    "train/ant/notes.txt": b"no image",
    "val/bee/x.webp": b"4444",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write_files(tmp_path, FILES)
    (tmp_path / "train" / "wasp").mkdir()
    return tmp_path


def test_an_index_lists_images_by_class_with_their_bytes(tree):
    write_index(make_index(tree, []), tree)
    index = read_index(tree)
    assert index.classes == ("ant", "bee", "wasp")
    train = index.splits["train"]
    assert list(map(train.name, range(len(train)))) == ["train/ant/deep/3.png", "train/bee/10.JPEG", "train/bee/2.jpg"]
    assert train.labels.tolist() == [0, 1, 1]
    assert train.rows["bytes"].tolist() == [3, 1, 2]
    facts = index.facts["train"]
    assert (facts.images, facts.per_class, facts.bytes) == (3, (1, 2, 0), 6)
    assert index.facts["evaluation"].per_class == (0, 1, 0)
    assert index.digest == make_index(tree, []).digest


@pytest.mark.parametrize("name", [".ipynb_checkpoints", "__MACOSX", "@eaDir", "#recycle", "lost+found", "$Recycle.Bin"])
def test_what_other_programs_leave_behind_is_no_class_and_no_image(tree, name):
    clean = make_index(tree, [])
    places = (f"train/{name}/1.jpg", f"val/{name}/1.jpg", f"train/bee/{name}/2.jpg", "train/bee/._2.jpg")
    index = make_index(write_files(tree, dict.fromkeys(places, b"left behind")), [])
    assert (index.classes, index.digest) == (clean.classes, clean.digest)
    assert {f"train/{name}", f"val/{name}", f"train/bee/{name}/2.jpg", "train/bee/._2.jpg"} == set(index.skipped)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "train/bee/2.jpg").write_bytes(b"other"),
        lambda tree: (tree / "train/bee/2.jpg").rename(tree / "train/bee/3.jpg"),
        lambda tree: (tree / "train/bee/2.jpg").rename(tree / "train/wasp/2.jpg"),
        lambda tree: (tree / "train/wasp").rename(tree / "train/yak"),
    ],
)
def test_the_digest_changes_with_names_labels_classes_and_sizes(tree, change):
    before = make_index(tree, []).digest
    change(tree)
    assert make_index(tree, []).digest != before


def test_an_index_with_a_wrong_digest_is_refused(tree):
    write_index(make_index(tree, []), tree)
    path = tree / INDEX
    path.write_text(path.read_text().replace('"wasp"', '"hornet"'))
    with pytest.raises(DataError, match=rf"{INDEX}: damaged or edited"):
        read_index(tree)


def test_an_interrupted_write_leaves_no_index(tree, monkeypatch):
    write_index(make_index(tree, []), tree)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(image_folder, "write_file", fail)
    with pytest.raises(OSError, match="disk full"):
        write_index(make_index(tree, []), tree)
    with pytest.raises(DataError, match=f"no {INDEX}. Run: timedrun prepare"):
        read_index(tree)


def test_a_broken_link_and_an_evaluation_class_without_training_images_are_named(tree):
    os.symlink("nowhere.jpg", tree / "train" / "bee" / "link.jpg")
    unreadable: list[str] = []
    make_index(tree, unreadable)
    assert unreadable == ["train/bee/link.jpg: cannot be read (No such file or directory)"]
    (tree / "val" / "yak").mkdir()
    with pytest.raises(DataError, match="class 'yak' is not among the 3 classes"):
        make_index(tree, [])
