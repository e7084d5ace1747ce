"""Finished shards of an interrupted build are reused for the same plan and images only."""

import errno
import os
from pathlib import Path

import pytest

from image_classification.stores.manifest import MANIFEST, StoreConfig, verify
from judging.ground import atomic_file
from judging.ground.errors import DataError
from tests.image_classification.preparation.built_stores import FORMATS, JPEG, RAW, build, stop_after
from tests.image_classification.preparation.samples import fingerprint


@FORMATS
def test_finished_shards_are_kept_for_the_same_plan_only(
    tmp_path: Path, original: Path, settings: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    other = RAW if settings.format == "jpeg" else JPEG
    for plan in (other, settings):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            stop_after(patched, 3)
            build(original, store, plan)
    assert not (store / MANIFEST).exists()
    built = build(original, store, settings)
    assert built.images_made == 42 - 24
    build(original, tmp_path / "clean", settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


def test_an_unfinished_second_evaluation_size_can_be_abandoned(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    build(original, store, RAW)
    before = fingerprint(store)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 1)
        build(original, store, StoreConfig(format="raw", size=16, evaluation_resizes=(24,)))
    assert fingerprint(store) != before
    assert verify(store).splits.keys() == {"train", "evaluation_16"}
    build(original, store, RAW)
    assert fingerprint(store) == before


def test_a_file_replaced_by_one_of_the_same_size_is_seen_by_the_rerun(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 4)
        build(images, tmp_path / "store", JPEG)
    for path in (images / "train").rglob("*.JPEG"):
        data = bytearray(path.read_bytes())
        data[-4] ^= 1  # the last pixels'
        path.write_bytes(data)
    assert build(images, tmp_path / "store", JPEG).images_made == 42


@FORMATS
@pytest.mark.parametrize("writes", [1, 12, 35, 48, 52])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, original: Path, settings: StoreConfig, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_unfinished_store_survives_a_rerun_whose_images_cannot_be_used(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 3)
        build(original, tmp_path / "store", JPEG)
    before = fingerprint(tmp_path / "store")
    with pytest.raises(DataError, match="no such file"):
        build(tmp_path / "none", tmp_path / "store", JPEG)
    assert fingerprint(tmp_path / "store") == before
