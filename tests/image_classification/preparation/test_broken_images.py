"""Images that cannot be decoded or read are all named, and omitted only on request."""

import errno
import os

import pytest

from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, verify
from judging.ground.errors import DataError
from tests.image_classification.preparation.built_stores import FORMATS, JPEG, build, interrupt
from tests.image_classification.preparation.samples import CLASSES, fingerprint


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
    for path in (images / "train").rglob("*_5.JPEG"):
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
        return opened(name, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        patched.setattr(os, "access", lambda name, mode: str(name) != path and access(name, mode))
        with pytest.raises(DataError, match="Permission denied"):
            build(images, tmp_path / "store", JPEG)
        interrupt(1, images, tmp_path / "store", JPEG, skip_broken=True)  # the others are there
    assert build(images, tmp_path / "store", JPEG, skip_broken=True).manifest.findings.get("corrupt") is None
