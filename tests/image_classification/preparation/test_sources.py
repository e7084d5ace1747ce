"""Images of a folder in ImageNet's layout: classes, order and digest, and what is no image."""

from dataclasses import astuple
from pathlib import Path

import pytest

from image_classification.preparation.sources import open_source
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


def test_images_are_listed_by_class_with_their_bytes(tree):
    source = open_source(tree)
    assert source.classes == ("ant", "bee", "wasp")
    listed = sorted((item.name, item.label, item.size) for item in source.splits["train"])
    assert listed == [("train/ant/deep/3.png", 0, 3), ("train/bee/10.JPEG", 1, 1), ("train/bee/2.jpg", 1, 2)]
    assert [astuple(item) for item in source.splits["evaluation"]] == [
        ("val/bee/x.webp", 1, str(tree / "val/bee/x.webp"), 4)
    ]
    assert source.unread == ["train/ant/notes.txt"]


@pytest.mark.parametrize("name", [".ipynb_checkpoints", "__MACOSX", "@eaDir", "#recycle", "lost+found", "$Recycle.Bin"])
def test_what_other_programs_leave_behind_is_no_class_and_no_image(tree, name):
    clean = open_source(tree)
    places = (f"train/{name}/1.jpg", f"val/{name}/1.jpg", f"train/bee/{name}/2.jpg", "train/bee/._2.jpg")
    write_files(tree, dict.fromkeys(places, b"left behind"))
    assert open_source(tree) == clean


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
    before = open_source(tree).sha256
    change(tree)
    assert open_source(tree).sha256 != before


def test_an_evaluation_class_without_training_images_and_a_split_without_images_are_named(tree):
    (tree / "val" / "yak").mkdir()
    with pytest.raises(DataError, match="class 'yak' is not among the 3 classes"):
        open_source(tree)
    (tree / "val" / "yak").rmdir()
    (tree / "val/bee/x.webp").unlink()
    with pytest.raises(DataError, match=r"val: no image \(\.jpeg, .*\) in any class folder"):
        open_source(tree)
