"""Builds depend on images and settings only; a complete store is kept, repaired or extended, other files are never
touched, and no empty folder is left."""

import os
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from image_classification.preparation import builder
from image_classification.preparation.builder import shard_tasks
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.shard_writer import WORK
from image_classification.preparation.sources import open_source
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, StoreConfig, verify
from image_classification.stores.raw import RawImages
from image_classification.stores.store_format import SourceItem
from judging.ground.errors import DataError, UsageError
from tests.image_classification.small_stores import (
    CLASSES,
    FORMATS,
    JPEG,
    RAW,
    build,
    fingerprint,
    silent,
    stored_image,
    write_files,
)


@pytest.mark.processes
def test_two_workers_give_the_same_store(tmp_path, original):
    lines: list[str] = []
    build(original, tmp_path / "one", RAW)
    build(original, tmp_path / "two", RAW, workers=2, report=lines.append)
    assert fingerprint(tmp_path / "two") == fingerprint(tmp_path / "one")
    assert [line.partition(" shards")[0] for line in lines] == ["100.0%  42 images in 6"]


def test_the_manifest_counts_classes_and_lists_deviating_images(tmp_path, original):
    manifest = build(original, tmp_path / "store", JPEG).manifest
    assert manifest.classes == CLASSES
    assert manifest.splits["train"].per_class == (10, 10, 10)
    assert manifest.splits["evaluation"].per_class == (4, 4, 4)
    assert manifest.splits["train"].bytes == sum(path.stat().st_size for path in (original / "train").rglob("*.JPEG"))
    found = {kind: len(names) for kind, names in manifest.findings.items()}
    assert found == {"cmyk": 5, "grayscale": 5, "png": 4, "rotated": 4}


def test_stored_images_are_those_of_the_source_in_its_order(tmp_path, original):
    build(original, tmp_path / "jpeg", JPEG)
    build(original, tmp_path / "raw", RAW)
    splits = open_source(original, silent).splits
    stored, pixels = JpegShards(tmp_path / "jpeg", "train"), RawImages(tmp_path / "raw", "train")
    assert len(stored) == len(pixels) == len(splits["train"])
    for place, item in enumerate(splits["train"]):
        assert stored.read(place) == item.read()
        assert min(stored_image(pixels, place).shape[:2]) == 16
        for images in (stored, pixels):
            assert (images.name(place), int(images.labels[place])) == (item.name, item.label)
    # The training images are mixed, the others by class.
    labels = [item.label for item in splits["train"]]
    assert Counter(labels) == {0: 10, 1: 10, 2: 10}
    assert min(len(set(labels[begin : begin + 10])) for begin in (0, 10, 20)) > 1
    names = [item.name for item in splits["evaluation"]]
    assert names == sorted(names)


def test_the_digest_of_a_source_tells_other_names_labels_and_sizes(images):
    path, digests = images / "train/ant/train_00000001.JPEG", {open_source(images, silent).sha256}
    path.write_bytes(path.read_bytes() + b"\0")
    for name in (path.name, "x.JPEG", "../bee/x.JPEG"):
        path = path.rename((path.parent / name).resolve())
        digests.add(open_source(images, silent).sha256)
    assert len(digests) == 4


def test_another_evaluation_size_is_added_and_nothing_else_is_made_again(tmp_path, original):
    both = StoreConfig(format="raw", size=16, evaluation_resizes=(24, 16))
    build(original, tmp_path / "both", both)
    build(original, tmp_path / "store", RAW)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.rgb")}
    built = build(original, tmp_path / "store", StoreConfig(format="raw", size=16, evaluation_resizes=(24,)))
    assert built.images_made == 12
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert fingerprint(tmp_path / "store") == fingerprint(tmp_path / "both")
    assert list(built.manifest.splits) == ["train", "evaluation_16", "evaluation_24"]
    assert build(original, tmp_path / "store", RAW).manifest == built.manifest


@FORMATS
def test_a_complete_store_is_kept_and_missing_and_truncated_files_are_rebuilt(tmp_path, original, settings):
    store, lines = tmp_path / "store", list[str]()
    build(original, store, settings)
    whole = fingerprint(store)
    times = {name: (store / name).stat().st_mtime_ns for name in whole}
    assert build(original, store, settings, report=lines.append).images_made == 0
    assert lines == ["already prepared from the same images and settings"]
    assert {name: (store / name).stat().st_mtime_ns for name in fingerprint(store)} == times
    for name in sorted(set(whole) - {MANIFEST})[::2]:
        os.truncate(store / name, 3)
    (store / sorted(set(whole) - {MANIFEST})[1]).unlink()
    build(original, store, settings)
    assert fingerprint(store) == whole


def test_other_settings_or_images_for_a_complete_store_are_refused(tmp_path, images):
    store = tmp_path / "store"
    build(images, store, RAW)
    before = fingerprint(store)
    with pytest.raises(DataError, match=r"prepared differently: size is 16 there but 20 now\. It was not modified"):
        build(images, store, StoreConfig(format="raw", size=20))
    with pytest.raises(DataError, match="format is raw there but jpeg now"):
        build(images, store, JPEG)
    (images / "train/ant/train_00000001.JPEG").unlink()
    with pytest.raises(DataError, match="the images differ"):
        build(images, store, RAW)
    assert fingerprint(store) == before
    assert not (store / WORK).exists()


def test_shards_are_cut_by_count_and_bytes_and_hold_every_image_once(monkeypatch):
    monkeypatch.setattr(builder, "SHARD_BYTES", 100)
    monkeypatch.setattr(builder, "SHARD_IMAGES", 5)
    generator = np.random.default_rng(3)
    for count in (0, 1, 7, 40):
        sizes = generator.integers(1, 130, count).tolist()
        items = [SourceItem(str(place), 0, "", size) for place, size in enumerate(sizes)]
        tasks = list(shard_tasks("train", items))
        assert [item for task in tasks for item in task.items] == items
        assert [task.number for task in tasks] == list(range(len(tasks)))
        assert [task.first for task in tasks] == [int(task.items[0].name) for task in tasks]
        assert all(len(task.items) <= 5 for task in tasks)
        assert all(sum(item.size for item in task.items) <= 100 for task in tasks if len(task.items) > 1)


def test_what_cannot_be_prepared_is_refused_before_anything_changes(tmp_path, images, monkeypatch):
    write_files(tmp_path, {"other/precious": b"data"})
    before, cannot = fingerprint(tmp_path), "nothing was prepared. Choose another --data-folder"
    for out, words in (
        ("other", "holds precious but no store; nothing was prepared or changed"),
        ("other/precious", "is a file"),
        ("images", "holds train|holds val"),
        *((name, cannot) for name in ("other/precious/x", "other/precious/x/y", "x" * 300)),
    ):
        with pytest.raises(DataError, match=words):
            build(images, tmp_path / out, JPEG)
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(builder.shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(DataError, match="GB are needed, but only 0.0 GB are free; nothing was written"):
            build(images, tmp_path / "store", JPEG)
    (images / "val").rename(tmp_path / "moved")
    with pytest.raises(DataError, match="no val/ folder"):
        build(images, tmp_path / "store", JPEG)
    (tmp_path / "moved").rename(images / "val")
    assert {path.name for path in tmp_path.iterdir()} == {"other", "images"} and fingerprint(tmp_path) == before


def test_a_second_preparation_of_a_folder_is_refused(tmp_path, original):
    def second(_: str) -> None:
        with pytest.raises(DataError, match="being prepared by another process"):
            build(original, tmp_path / "store", JPEG)
        met.append(True)

    met: list[bool] = []
    build(original, tmp_path / "store", JPEG, report=second)
    assert met
    assert verify(tmp_path / "store")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (StoreConfig(), "format folder is read in place"),
        (StoreConfig(format="raw"), "raw needs --data.store.size"),
        (StoreConfig(format="beton", jpeg_quality=0), "jpeg-quality must be from 1 to 100"),
        (StoreConfig(format="beton", jpeg_share=1.5), "jpeg-share must be from 0 to 1"),
        (StoreConfig(format="beton", size=-1), "size must not be negative"),
        (StoreConfig(format="raw", size=8, evaluation_resizes=(0,)), "evaluation-resizes must be positive"),
    ],
)
def test_invalid_settings_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        effective_settings(settings, 16)


def test_unused_settings_are_reset_to_their_defaults():
    assert effective_settings(StoreConfig(format="jpeg", size=500, jpeg_quality=80), 16) == JPEG
    settings = StoreConfig(format="raw", size=8, jpeg_share=0.1)
    assert effective_settings(settings, 16).evaluation_resizes == (16,)
    assert effective_settings(replace(settings, evaluation_resizes=(9, 8, 9)), 16).evaluation_resizes == (8, 9)
