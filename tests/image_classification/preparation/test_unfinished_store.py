"""An interrupted build, killed at any point, is resumed to the bytes of an undisturbed one; finished shards are reused
for the same plan and images only; images that cannot be read are all named, and omitted only on request."""

import errno
import os
import signal
import sys
import traceback
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from image_classification.preparation import shard_writer
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, StoreConfig, verify
from judging.ground import atomic_file
from judging.ground.errors import DataError
from tests.image_classification.small_stores import (
    CLASSES,
    FORMATS,
    JPEG,
    RAW,
    build,
    fingerprint,
    write_images,
)

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
