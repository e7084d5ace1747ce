"""A folder and the tars of the same images are the same source: names, labels, bytes and order."""

import io
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from image_classification.preparation.sources import Source, open_source
from judging.ground.errors import DataError, TimedrunError, UsageError
from tests.image_classification.preparation.built_stores import silent
from tests.image_classification.preparation.samples import CLASSES, add, tars_of
from tests.image_classification.stores.small_stores import encoded, smooth


def contents(source: Source) -> dict[str, list[tuple[str, int, bytes]]]:
    return {split: [(item.name, item.label, item.read()) for item in items] for split, items in source.splits.items()}


def opened(tmp_path: Path, *paths: Path, labels: Path | None = None) -> Source:
    return open_source(paths, labels, tmp_path / "cache", silent)


@pytest.mark.parametrize("nested", [False, True])
def test_tars_hold_what_the_folder_holds(tmp_path, images, nested):
    folder = opened(tmp_path, images)
    train, validation, labels = tars_of(images, tmp_path / "tars", nested_validation=nested)
    for paths in ((train, validation), (validation, train), (tmp_path / "tars",)):
        tars = opened(tmp_path, *paths, labels=None if nested else labels)
        assert tars.classes == folder.classes == CLASSES
        assert contents(tars) == contents(folder)
        assert tars.sha256 == folder.sha256


def test_left_over_names_in_tars_are_skipped_and_a_tar_without_images_is_an_empty_class(tmp_path, images):
    train, validation, labels = tars_of(images, tmp_path / "tars")
    with tarfile.open(train, "a") as archive:
        add(archive, "._n01440764.tar", b"resource fork")
        with io.BytesIO() as inner, tarfile.open(fileobj=inner, mode="w") as empty:
            add(empty, "@eaDir/1.JPEG", b"thumbnail")
            empty.close()
            add(archive, "n00000001.tar", inner.getvalue())
    tars, folder = opened(tmp_path, train, validation, labels=labels), opened(tmp_path, images)
    assert tars.classes == ("n00000001", *CLASSES)
    assert [item.name for item in tars.splits["train"]] == [item.name for item in folder.splits["train"]]
    assert tars.skipped == [f"{train.name}: ._n01440764.tar", f"{train.name}: n00000001.tar/@eaDir/1.JPEG"]


def test_a_folder_of_tars_uses_the_devkit_in_it(tmp_path, images):
    _, _, labels = tars_of(images, tmp_path / "tars")
    labels.rename(tmp_path / "tars" / "ILSVRC2012_devkit_t12.tar.gz")
    assert opened(tmp_path, tmp_path / "tars").sha256 == opened(tmp_path, images).sha256


def test_training_images_are_stored_mixed_and_evaluation_images_by_class(tmp_path, images):
    splits = opened(tmp_path, images).splits
    labels = [item.label for item in splits["train"]]
    assert labels != sorted(labels)
    assert Counter(labels) == {0: 10, 1: 10, 2: 10}
    assert min(len(set(labels[begin : begin + 10])) for begin in (0, 10, 20)) > 1
    names = [item.name for item in splits["evaluation"]]
    assert names == sorted(names)
    assert opened(tmp_path, images).splits == splits


def test_the_digest_tells_other_names_labels_and_sizes(tmp_path, images):
    digests = {opened(tmp_path, images).sha256}
    path = images / "train" / CLASSES[0] / f"{CLASSES[0]}_0.JPEG"
    path.write_bytes(path.read_bytes() + b"\0")
    digests.add(opened(tmp_path, images).sha256)
    path.rename(path.with_name("other.JPEG"))
    digests.add(opened(tmp_path, images).sha256)
    path.with_name("other.JPEG").rename(images / "train" / CLASSES[1] / "other.JPEG")
    digests.add(opened(tmp_path, images).sha256)
    assert len(digests) == 4


def test_missing_or_conflicting_inputs_are_reported(tmp_path, images):
    train, validation, labels = tars_of(images, tmp_path / "tars")
    (tmp_path / "empty").mkdir()
    short = tmp_path / "short.txt"
    short.write_text(labels.read_text().splitlines()[0])
    strange = tmp_path / "strange.txt"
    strange.write_text(labels.read_text().replace(CLASSES[2], "n99999999"))
    _, nested, _ = tars_of(images, tmp_path / "nested", nested_validation=True)
    cases: list[tuple[tuple[Path, ...], Path | None, type[TimedrunError], str]] = [
        ((tmp_path / "none",), None, DataError, "none: no such file"),
        ((tmp_path / "empty",), None, DataError, "no train/ folder"),
        ((images, train), None, UsageError, "one folder of train/ and val/, or tar files"),
        ((images,), labels, UsageError, "omit --validation-labels"),
        ((train,), labels, DataError, "expected two tar files"),
        ((train, train.parent / ".." / "tars" / train.name), labels, DataError, "expected two tar files"),
        ((train, validation), None, DataError, "--validation-labels"),
        ((train, validation), short, DataError, "contains no class for ILSVRC2012_val_"),
        ((train, validation), strange, DataError, "class 'n99999999' of ILSVRC2012_val_.* is not among"),
        ((train, nested), labels, UsageError, "omit --validation-labels"),
        ((train, validation), tmp_path / "nowhere", DataError, "nowhere: the validation labels cannot be read"),
    ]
    for paths, given, kind, words in cases:
        with pytest.raises(kind, match=words):
            opened(tmp_path, *paths, labels=given)


def test_a_name_that_occurs_twice_is_refused(tmp_path, images):
    _, validation, labels = tars_of(images, tmp_path / "tars")
    train = tmp_path / "train.tar"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as inner:
        add(inner, "1.JPEG", encoded(smooth(9, 9)))
        add(inner, "1.JPEG", encoded(smooth(9, 9, 1)))
    with tarfile.open(train, "w") as outer:
        for name in CLASSES:
            add(outer, f"{name}.tar", buffer.getvalue())
    with pytest.raises(DataError, match=r"contains train/n01440764/1.JPEG twice"):
        opened(tmp_path, train, validation, labels=labels)
