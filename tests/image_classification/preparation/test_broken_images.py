"""Images that cannot be decoded or read are all named, and omitted only on request."""

import errno
import os
from pathlib import Path

import pytest

from image_classification.stores.manifest import MANIFEST, StoreConfig, verify
from image_classification.stores.raw import RawImages
from judging.ground.errors import DataError
from tests.image_classification.preparation.built_stores import FORMATS, JPEG, RAW, build, stop_after
from tests.image_classification.preparation.samples import CLASSES, fingerprint


@FORMATS
def test_corrupt_images_are_all_named_and_the_rerun_makes_only_their_shards(
    tmp_path: Path, images: Path, settings: StoreConfig
) -> None:
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
    sizes = build(images, tmp_path / "sizes", settings)
    assert sizes.images_made == 42
    build(images, store, settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


def test_corrupt_images_are_left_out_and_listed_on_request(tmp_path: Path, images: Path) -> None:
    path = images / "train" / CLASSES[1] / f"{CLASSES[1]}_5.JPEG"
    path.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1 images cannot be decoded(.|\n)*--skip-broken"):
        build(images, tmp_path / "store", RAW)
    built = build(images, tmp_path / "store", RAW, skip_broken=True)
    assert built.images_made in (6, 8)  # one shard
    name = path.relative_to(images).as_posix()
    assert built.manifest.findings["corrupt"] == (name,)
    assert built.manifest.splits["train"].per_class == (10, 9, 10)
    stored = RawImages(tmp_path / "store", "train")
    assert len(stored) == 29
    assert name not in {stored.name(place) for place in range(29)}
    build(images, tmp_path / "again", RAW, skip_broken=True)
    assert fingerprint(tmp_path / "again") == fingerprint(tmp_path / "store")


def test_a_shard_made_with_skip_broken_is_not_accepted_without_it(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (images / "train").rglob("*_5.JPEG"):
        path.write_bytes(b"no image")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 4)
        build(images, tmp_path / "store", JPEG, skip_broken=True)
    with pytest.raises(DataError, match="3 images cannot be decoded"):
        build(images, tmp_path / "store", JPEG)


def test_a_split_without_a_decodable_image_is_refused(tmp_path: Path, images: Path) -> None:
    for path in (images / "val").rglob("*.JPEG"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="no image of evaluation can be decoded"):
        build(images, tmp_path / "store", JPEG, skip_broken=True)
    assert not (tmp_path / "store" / MANIFEST).exists()


def test_files_that_cannot_be_read_are_named_with_the_corrupt_and_left_out_on_request(
    tmp_path: Path, images: Path
) -> None:
    store = tmp_path / "store"
    broken = [images / split / name / "x.JPEG" for split in ("train", "val") for name in CLASSES]
    broken[0].symlink_to(tmp_path / "nowhere")
    broken[1].symlink_to(broken[1])
    broken[2].mkdir()
    broken[3].write_bytes(b"no image")
    broken[4].symlink_to("nowhere")
    broken[5].symlink_to(broken[5])
    names = sorted(path.relative_to(images).as_posix() for path in broken)
    with pytest.raises(DataError, match="6 images cannot be decoded or read") as caught:
        build(images, store, JPEG)
    assert [line.strip().partition(": ")[0] for line in str(caught.value).splitlines()[1:]] == names
    built = build(images, store, JPEG, skip_broken=True)
    assert built.manifest.findings["corrupt"] == tuple(names)
    assert built.manifest.splits["train"].per_class == (10, 10, 10)
    assert verify(store) == built.manifest


def test_an_unreadable_file_that_can_be_read_again_is_not_left_out(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(sorted((images / "train").rglob("*.JPEG"))[0])
    access, opened = os.access, os.open

    def refuse(name: object, *arguments: object, **options: object) -> int:
        if str(name) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        patched.setattr(os, "access", lambda name, mode: str(name) != path and access(name, mode))
        with pytest.raises(DataError, match="Permission denied"):
            build(images, tmp_path / "store", JPEG)
        with patched.context() as stopped, pytest.raises(KeyboardInterrupt):
            stop_after(stopped, 1)  # the others are there
            build(images, tmp_path / "store", JPEG, skip_broken=True)
    assert build(images, tmp_path / "store", JPEG, skip_broken=True).manifest.findings.get("corrupt") is None
