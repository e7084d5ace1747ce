"""Builds depend on images and settings only; a complete store is kept, repaired or extended, other files are never
touched, and no empty folder is left."""

import errno
import os
import shutil
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from image_classification.preparation import builder, shard_writer
from image_classification.preparation.builder import shard_tasks
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.shard_writer import WORK
from image_classification.preparation.sources import open_source
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, StoreConfig, verify
from image_classification.stores.raw import RawImages
from image_classification.stores.store_format import SourceItem
from judging.ground import atomic_file
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
    write_images,
)


@pytest.mark.processes
def test_two_workers_give_the_same_store(tmp_path, original):
    lines: list[str] = []
    build(original, tmp_path / "one", RAW)
    build(original, tmp_path / "two", RAW, workers=2, report=lines.append)
    assert fingerprint(tmp_path / "two") == fingerprint(tmp_path / "one")
    assert [line.partition(" shards")[0] for line in lines] == ["100.0%  42 images in 6"]


def test_a_store_has_the_images_of_its_source_in_its_order_and_a_manifest_that_counts_them(tmp_path, original):
    manifest = build(original, tmp_path / "jpeg", JPEG).manifest
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
    assert min(len(set(labels[begin : begin + 10])) for begin in (0, 10, 20)) > 1
    names = [item.name for item in splits["evaluation"]]
    assert names == sorted(names)
    assert manifest.classes == CLASSES
    assert [manifest.splits[split].per_class for split in ("train", "evaluation")] == [(10, 10, 10), (4, 4, 4)]
    assert manifest.splits["train"].bytes == sum(item.size for item in splits["train"])
    found = {kind: len(names) for kind, names in manifest.findings.items()}
    assert found == {"cmyk": 5, "grayscale": 5, "png": 4, "rotated": 4}


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


SEED = int(os.environ.get("TIMEDRUN_TEST_SEED", "5"))
POINTS = 6


def interrupt(shards: int, images: Path, out: Path, settings: StoreConfig, **options: bool) -> None:
    """Build, and interrupt the build after `shards` shards."""
    save, saved = shard_writer.save_shard, list[object]()

    def limited(*arguments: object) -> None:
        save(*arguments)
        saved.append(arguments)
        if len(saved) == shards:
            raise KeyboardInterrupt

    with patch.object(shard_writer, "save_shard", limited), pytest.raises(KeyboardInterrupt):
        build(images, out, settings, **options)


class Moments:
    """Count the file operations in a folder, half of each write too; kill this process group at number `last`."""

    def __init__(self, store: Path, last: int) -> None:
        self.count, self.last, self.store = 0, last, str(store)
        write = atomic_file.FileWriter.write

        def written(writer: atomic_file.FileWriter, data: bytes | memoryview) -> None:
            whole = memoryview(data).cast("B")
            write(writer, whole[: len(whole) // 2])
            writer._stream.flush()  # or nothing of it were on the disk at this moment
            self.moment()
            write(writer, whole[len(whole) // 2 :])

        atomic_file.FileWriter.write = written
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Audit hook, called by Python before every change of a file."""
        removed = event in ("os.remove", "os.rmdir")  # within rmtree they get a name without its folder
        changed = event in ("os.rename", "os.mkdir") or (event == "open" and set(str(arguments[1])) & set("wax+"))
        if removed or (changed and str(arguments[0]).startswith(self.store)):
            self.moment()

    def moment(self) -> None:
        """Count, and kill at the last."""
        self.count += 1
        if self.count == self.last:
            os.killpg(0, signal.SIGKILL)


def built_in_child(images: Path, store: Path, settings: StoreConfig, last: int = 0) -> bool:
    """Build in a forked process group that kills itself at operation `last`; return False if it did."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 255
        try:
            moments = Moments(store, last)
            build(images, store, settings)
            store.with_name("moments").write_text(str(moments.count))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


@pytest.mark.processes
@FORMATS
def test_a_build_killed_anywhere_ends_in_the_same_bytes(tmp_path, settings):
    images = write_images(tmp_path / "images", train=6, evaluation=3)
    assert built_in_child(images, tmp_path / "whole", settings)
    count = int((tmp_path / "moments").read_text())
    whole, random, incomplete = fingerprint(tmp_path / "whole"), Random(f"{SEED} {settings.format}"), 0
    for point in range(POINTS):
        store = tmp_path / f"{point}"
        # every second time at the end too, where indices and the manifest are written and the work folder goes
        kills = [random.randint(1, count), random.randint(count * 3 // 4, count)][: 1 + point % 2]
        assert not built_in_child(images, store, settings, kills[0])
        incomplete += not (store / MANIFEST).exists()
        for last in kills[1:]:
            built_in_child(images, store, settings, last)
        assert built_in_child(images, store, settings)
        assert fingerprint(store) == whole, f"TIMEDRUN_TEST_SEED={SEED}, killed at {kills} of {count}"
    assert incomplete > POINTS / 2


@FORMATS
def test_finished_shards_are_kept_for_the_same_plan_only(tmp_path, original, settings):
    store = tmp_path / "store"
    other = RAW if settings.format == "jpeg" else JPEG
    for plan in (other, settings):
        interrupt(3, original, store, plan)
    assert not (store / MANIFEST).exists()
    built = build(original, store, settings)
    assert built.images_made == 42 - 24
    build(original, tmp_path / "clean", settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


def test_an_unfinished_second_size_can_be_left(tmp_path, original):
    store = tmp_path / "store"
    build(original, store, RAW)
    before = fingerprint(store)
    interrupt(1, original, store, StoreConfig(format="raw", size=16, evaluation_resizes=(24,)))
    assert fingerprint(store) != before
    assert verify(store).splits.keys() == {"train", "evaluation_16"}
    build(original, store, RAW)
    assert fingerprint(store) == before


def test_a_file_replaced_by_one_as_large_is_seen(tmp_path, images):
    interrupt(4, images, tmp_path / "store", JPEG)
    for path in (images / "train").rglob("*.JPEG"):
        data = bytearray(path.read_bytes())
        data[-10] ^= 1  # the last pixels'
        path.write_bytes(data)
    assert build(images, tmp_path / "store", JPEG).images_made == 42


@FORMATS
@pytest.mark.parametrize("writes", [1, 52])
def test_a_full_disk_loses_nothing(tmp_path, original, settings, writes, monkeypatch):
    store, done = tmp_path / "store", [0]
    write = atomic_file.FileWriter.write

    def full(writer: atomic_file.FileWriter, data: bytes | memoryview) -> None:
        done[0] += 1
        if done[0] > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(writer, data)

    with monkeypatch.context() as patched:
        patched.setattr(atomic_file.FileWriter, "write", full)
        with pytest.raises(DataError, match="No space left on device.*finished shards are kept. Free"):
            build(original, store, settings)
    assert not (store / MANIFEST).exists()
    built = build(original, store, settings)
    assert writes < 20 or built.images_made < 42
    build(original, tmp_path / "clean", settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


@FORMATS
def test_corrupt_images_are_all_named_and_replaced_ones_stored(tmp_path, images, settings):
    store, paths = tmp_path / "store", sorted((images / "train").rglob("*.JPEG"))
    build(images, tmp_path / "clean", settings)
    broken = {paths[3]: paths[3].read_bytes(), paths[17]: paths[17].read_bytes()}
    for path, data in broken.items():
        path.write_bytes(data[:-30])
    with pytest.raises(DataError, match="2 images cannot be decoded or read; the store is incomplete") as caught:
        build(images, store, settings)
    for path in broken:
        assert path.relative_to(images).as_posix() in str(caught.value)
    assert not (store / MANIFEST).exists()
    assert not list(store.rglob("*.draft"))
    for path, data in broken.items():
        path.write_bytes(data)
    build(images, store, settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


def test_shards_of_skip_broken_need_skip_broken(tmp_path, images):
    for path in (images / "train").rglob("*5.JPEG"):
        path.write_bytes(b"no image")
    interrupt(4, images, tmp_path / "store", JPEG, skip_broken=True)
    with pytest.raises(DataError, match="3 images cannot be decoded"):
        build(images, tmp_path / "store", JPEG)


def test_a_split_without_a_decodable_image_is_refused(tmp_path, images):
    for path in (images / "val").rglob("*.JPEG"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="no image of evaluation can be decoded"):
        build(images, tmp_path / "store", JPEG, skip_broken=True)
    assert not (tmp_path / "store" / MANIFEST).exists()


def test_unreadable_files_are_named_with_the_corrupt_and_left_out_on_request(tmp_path, images):
    store = tmp_path / "store"
    broken = [images / split / name / "x.JPEG" for split in ("train", "val") for name in CLASSES]
    broken[0].symlink_to(tmp_path / "nowhere")
    broken[1].symlink_to(broken[1])
    broken[2].mkdir()
    broken[3].write_bytes(b"no image")
    broken[4].symlink_to("nowhere")
    broken[5].symlink_to(broken[5])
    names = sorted(path.relative_to(images).as_posix() for path in broken)
    with pytest.raises(DataError, match=r"6 images cannot be decoded or read(.|\n)*--skip-broken") as caught:
        build(images, store, JPEG)
    assert [line.strip().partition(": ")[0] for line in str(caught.value).splitlines()[1:]][: len(names)] == names
    built = build(images, store, JPEG, skip_broken=True)
    assert built.manifest.findings["corrupt"] == tuple(names)
    assert built.manifest.splits["train"].per_class == (10, 10, 10)
    assert verify(store) == built.manifest
    stored = JpegShards(store, "train")
    assert len(stored) == 30 and not {stored.name(place) for place in range(30)} & set(names)
    build(images, tmp_path / "again", JPEG, skip_broken=True)
    assert fingerprint(tmp_path / "again") == fingerprint(store)


def test_a_file_that_is_readable_again_is_kept(tmp_path, images, monkeypatch):
    path = str(sorted((images / "train").rglob("*.JPEG"))[0])
    access, opened = os.access, os.open

    def refuse(name: object, *arguments: object, **options: object) -> int:
        if str(name) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        patched.setattr(os, "access", lambda name, mode: str(name) != path and access(name, mode))
        with pytest.raises(DataError, match="Permission denied"):
            build(images, tmp_path / "store", JPEG)
        interrupt(1, images, tmp_path / "store", JPEG, skip_broken=True)  # the others are there
    assert build(images, tmp_path / "store", JPEG, skip_broken=True).manifest.findings.get("corrupt") is None
