"""Builds depend on images and settings only; a complete store is kept, other files are never touched, and no empty
folder is left."""

import errno
import itertools
import os
import shutil
import traceback
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from image_classification.preparation import builder
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.shard_writer import WORK
from image_classification.preparation.sources import open_source
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, StoreConfig
from image_classification.stores.raw import RawImages
from judging.ground import atomic_file
from judging.ground.errors import DataError, UsageError
from tests.image_classification.small_stores import (
    CLASSES,
    FORMATS,
    JPEG,
    RAW,
    build,
    fingerprint,
    stored_image,
    write_files,
    write_images,
)


@pytest.mark.processes
def test_two_workers_give_the_same_store(tmp_path, forked_workers):
    images, lines = write_images(tmp_path / "images", train=6, evaluation=3), list[str]()
    build(images, tmp_path / "one", JPEG)
    build(images, tmp_path / "two", JPEG, workers=2, report=lines.append)
    assert fingerprint(tmp_path / "two") == fingerprint(tmp_path / "one")
    assert lines[-1].startswith("100.0%  27 images in 5 shards")


def test_a_store_has_the_images_of_its_source_in_its_order_and_a_manifest_that_counts_them(tmp_path, original):
    manifest = build(original, tmp_path / "jpeg", JPEG).manifest
    build(original, tmp_path / "raw", RAW)
    splits = open_source(original).splits
    stored, pixels = JpegShards(tmp_path / "jpeg", "train"), RawImages(tmp_path / "raw", "train")
    assert len(stored) == len(pixels) == len(splits["train"])
    for place, item in enumerate(splits["train"]):
        assert stored.read(place) == item.read()
        assert min(stored_image(pixels, place).shape[:2]) == 16
        for images in (stored, pixels):
            assert (images.name(place), int(images.labels[place])) == (item.name, item.label)
    # The training images are mixed, the others by class.
    labels = [item.label for item in splits["train"]]
    assert min(len(set(labels[begin : begin + 10])) for begin in (0, 10, 20)) > 1
    names = [item.name for item in splits["evaluation"]]
    assert names == sorted(names) and manifest.classes == CLASSES
    assert [manifest.splits[split].per_class for split in ("train", "evaluation")] == [(10, 10, 10), (4, 4, 4)]
    assert manifest.splits["train"].bytes == sum(item.size for item in splits["train"])


@FORMATS
def test_a_complete_store_is_kept_and_a_damaged_or_other_one_refused(tmp_path, images, settings):
    store, lines = tmp_path / "store", list[str]()
    if settings.format == "raw":
        settings = replace(settings, evaluation_resizes=(16, 24))
    build(images, store, settings)
    times = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    wanted = replace(settings, evaluation_resizes=settings.evaluation_resizes[:1])  # for a run that needs one of both
    assert build(images, store, wanted, report=lines.append).images_made == 0
    assert lines == ["already prepared from the same images and settings"]
    other = RAW if settings.format == "jpeg" else JPEG
    with pytest.raises(DataError, match=f"format is {settings.format} there but {other.format} now.*was not modified"):
        build(images, store, other)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == times
    os.truncate(next(path for path in sorted(store.rglob("*")) if path.is_file() and path.name != MANIFEST), 3)
    (images / "train/ant/train_00000001.JPEG").unlink()
    with pytest.raises(DataError, match="the images differ.*truncated"):
        build(images, store, settings)
    assert not (store / WORK).exists()


def test_what_cannot_be_prepared_is_refused_before_anything_changes(tmp_path, images, monkeypatch):
    write_files(tmp_path, {"other/precious": b"data"})
    before, cannot = fingerprint(tmp_path), "nothing was prepared. Choose another --data-folder"
    for out, words in (
        ("other", "holds precious but no store; nothing was prepared or changed"),
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
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


SEED = int(os.environ.get("TIMEDRUN_TEST_SEED", "5"))
POINTS = 4


def built_in_child(images: Path, store: Path, settings: StoreConfig, last: int = 0) -> int:
    """Build in a fork that ends at its file operation `last`: amid a write, or before a file gets its name or the work
    folder goes. Return the number of operations, or 255 if the fork ended at one."""
    child = os.fork()
    if child == 0:
        operations = itertools.count(1)
        write, rename, remove = atomic_file.FileWriter.write, os.replace, shutil.rmtree

        def moment() -> None:
            if next(operations) == last:
                os._exit(255)

        def write_halves(writer: atomic_file.FileWriter, data: bytes | memoryview) -> None:
            whole = memoryview(data).cast("B")
            write(writer, whole[: len(whole) // 2])
            writer._stream.flush()  # or nothing of it were on the disk at this moment
            moment()
            write(writer, whole[len(whole) // 2 :])

        atomic_file.FileWriter.write = write_halves
        os.replace = lambda *paths: (moment(), rename(*paths))
        shutil.rmtree = lambda *folder, **options: (moment(), remove(*folder, **options))
        try:
            build(images, store, settings)
        except BaseException:
            traceback.print_exc()
            os._exit(254)
        os._exit(next(operations) - 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != 254
    return code


@pytest.mark.processes
@FORMATS
def test_a_build_killed_anywhere_ends_in_the_same_bytes(tmp_path, settings):
    images = write_images(tmp_path / "images", train=6, evaluation=3)
    count = built_in_child(images, tmp_path / "whole", settings)
    assert 20 < count < 254
    whole, random, incomplete = fingerprint(tmp_path / "whole"), Random(f"{SEED} {settings.format}"), 0
    for point in range(POINTS):
        store = tmp_path / f"{point}"
        # every second time at the end too, where indices and the manifest are written and the work folder goes
        kills = [random.randint(1, count), random.randint(count * 3 // 4, count)][: 1 + point % 2]
        assert built_in_child(images, store, settings, kills[0]) == 255
        incomplete += not (store / MANIFEST).exists()
        for last in kills[1:]:
            built_in_child(images, store, settings, last)
        assert built_in_child(images, store, settings) < 254
        assert fingerprint(store) == whole, f"TIMEDRUN_TEST_SEED={SEED}, killed at {kills} of {count}"
    assert incomplete > POINTS / 2


@FORMATS
def test_finished_shards_survive_a_full_disk_and_are_kept_for_the_same_settings_only(
    tmp_path, original, settings, monkeypatch
):
    store, done = tmp_path / "store", [0]
    write = atomic_file.FileWriter.write

    def full(writer: atomic_file.FileWriter, data: bytes | memoryview) -> None:
        done[0] += 1
        if done[0] > 52:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(writer, data)

    with monkeypatch.context() as patched:
        patched.setattr(atomic_file.FileWriter, "write", full)
        with pytest.raises(DataError, match="No space left on device.*finished shards are kept. Free"):
            build(original, store, settings)
    assert not (store / MANIFEST).exists()
    with pytest.raises(DataError, match="an unfinished store of other settings; it was not modified"):
        build(original, store, RAW if settings.format == "jpeg" else JPEG)
    assert build(original, store, settings).images_made < 42
    build(original, tmp_path / "clean", settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


FAULTS = [
    lambda path: path.write_bytes(b"no image"),
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.mkdir(),
]


@FORMATS
def test_corrupt_and_unreadable_images_are_all_named_and_the_others_stored_without_them(tmp_path, images, settings):
    store = tmp_path / "store"
    broken = [*sorted((images / "train").rglob("*.JPEG"))[3::7], *sorted((images / "val").rglob("*.JPEG"))[:2]]
    for number, path in enumerate(broken):
        path.unlink()
        FAULTS[number % len(FAULTS)](path)
    with pytest.raises(DataError, match="6 images cannot be decoded or read; the store is incomplete") as caught:
        build(images, store, settings, per_shard=4)
    named = [line.strip().partition(": ")[0] for line in str(caught.value).splitlines()[1:]]
    assert named == sorted(path.relative_to(images).as_posix() for path in broken)
    assert not (store / MANIFEST).exists() and not list(store.rglob("*.draft"))
    for path in broken:
        path.rmdir() if path.is_dir() else path.unlink()
    build(images, store, settings, per_shard=4)
    build(images, tmp_path / "clean", settings, per_shard=4)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")
