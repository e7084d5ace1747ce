"""An interrupted build, killed at any point, is resumed to the bytes of an undisturbed one; finished shards are reused
for the same plan and images only."""

import errno
import os
import signal
import sys
import traceback
from pathlib import Path
from random import Random
from typing import Any

import pytest

from image_classification.stores.manifest import MANIFEST, StoreConfig, verify
from judging.ground import atomic_file
from judging.ground.errors import DataError
from tests.image_classification.preparation.built_stores import BETON, FORMATS, JPEG, RAW, build, interrupt
from tests.image_classification.preparation.samples import fingerprint, image_folder, tars_of

SEED = int(os.environ.get("TIMEDRUN_TEST_SEED", "5"))
POINTS = 6
TWO_SIZES = StoreConfig(format="raw", size=16, evaluation_resizes=(16, 20))


class Moments:
    """Count the file operations in a folder; kill this process group at number `last`."""

    def __init__(self, store: Path, last: int) -> None:
        self.count, self.last, self.store, self.half_manifest = 0, last, str(store), 0
        write, complete = atomic_file.FileWriter.write, atomic_file.FileWriter.complete

        def written(writer: atomic_file.FileWriter, data: bytes | memoryview) -> None:
            whole = memoryview(data).cast("B")
            for half in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
                write(writer, half)
                writer._stream.flush()  # or nothing of it were on the disk at this moment
                self.moment()
                if writer.path.name == MANIFEST:
                    self.half_manifest = self.half_manifest or self.count

        def completed(writer: atomic_file.FileWriter) -> atomic_file.StoredFile:
            stored = complete(writer)
            self.moment()
            return stored

        atomic_file.FileWriter.write = written  # type: ignore[method-assign]
        atomic_file.FileWriter.complete = completed  # type: ignore[method-assign]
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


def built_in_child(tars: Path, store: Path, settings: StoreConfig, last: int = 0) -> bool:
    """Build in a forked process group that kills itself at operation `last`; return False if it did."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.fsync = lambda _: None  # type: ignore[assignment]  # what a killed process wrote is in the system's hands
        code = 255
        try:
            moments = Moments(store, last)
            build(tars, store, settings)
            store.with_name("moments").write_text(f"{moments.count} {moments.half_manifest}")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


@pytest.mark.processes
@pytest.mark.parametrize("settings", [JPEG, TWO_SIZES, BETON], ids=lambda settings: settings.format)
def test_a_build_killed_anywhere_ends_in_the_same_bytes(tmp_path, settings):
    tars_of(image_folder(tmp_path / "images", train=6, evaluation=3), tmp_path / "tars", nested_validation=True)
    assert built_in_child(tmp_path / "tars", tmp_path / "whole", settings)
    count, half_manifest = map(int, (tmp_path / "moments").read_text().split())
    whole, random, incomplete = fingerprint(tmp_path / "whole"), Random(f"{SEED} {settings.format}"), 0
    for point in range(POINTS):
        store = tmp_path / f"{point}"
        # every second time at the end too, where indices and the manifest are written and the work folder goes
        kills = [random.randint(1, count), random.randint(count * 3 // 4, count)][: 1 + point % 2]
        if point == 0:
            kills = [half_manifest]
        assert not built_in_child(tmp_path / "tars", store, settings, kills[0])
        incomplete += not (store / MANIFEST).exists()
        for last in kills[1:]:
            built_in_child(tmp_path / "tars", store, settings, last)
        assert built_in_child(tmp_path / "tars", store, settings)
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
