"""Packages, stores, manifests and JSON files of others are refused in words: never unpacked outside, never waited for,
never read beyond what they have."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from image_classification.loaders import crop_kernel
from image_classification.stores import manifest as image_manifest
from image_classification.stores.beton import BetonImages
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import StoreConfig
from image_classification.stores.raw import RawImages
from image_classification.stores.sample_index import index_files
from image_classification.stores.store_format import SourceItem
from judging.ground.atomic_file import StoredFile, write_file
from judging.ground.errors import DataError, TimedrunError
from judging.ground.result_files import read_json
from judging.scoring.recorded_run import recorded_run_of
from language_model.text import store as text_store
from language_model.text.store import RaggedStore
from language_model.text.synthetic_store import write_synthetic_store
from tests.image_classification.small_stores import NEEDS_FFCV, given, make_store
from tests.security.hostile_logs import write_log
from timedrun.evidence.submission.reproduction.claims import ClaimError
from timedrun.evidence.submission.reproduction.reproduce import reproduce


@pytest.mark.timeout(30)
def test_a_pipe_among_images_is_not_waited_for_and_an_image_that_grew_without_end_not_read_to_it(tmp_path):
    os.mkfifo(tmp_path / "x.jpeg")
    with pytest.raises(DataError):
        SourceItem("train/a/x.jpeg", 0, str(tmp_path / "x.jpeg"), 10).read()
    (tmp_path / "y.jpeg").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="bytes"):
        SourceItem("train/a/y.jpeg", 0, str(tmp_path / "y.jpeg"), 10).read()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["manifest.json", "results/system/resnet/scaling.json", "systems/system.json"])
def test_a_pipe_in_a_package_is_refused_and_not_waited_for(name, tmp_path):
    package = tmp_path / "Example"
    log = write_log(package / "results" / "system" / "resnet" / "result_0.txt")
    (package / "systems").mkdir()
    os.mkfifo(package / name)
    if name == "manifest.json":
        with pytest.raises(ClaimError, match="regular file"):
            reproduce(package)
    else:
        assert reproduce(package).figures
    if name.startswith("systems"):
        with pytest.raises(TimedrunError, match="regular file"):
            read_json(recorded_run_of(log).system)


def test_json_of_any_size_is_not_read_into_memory(tmp_path):
    path = tmp_path / "manifest.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(TimedrunError, match="bytes"):
        read_json(path)


@pytest.mark.parametrize("claimed", ["", "0" * 64])
def test_a_link_in_a_package_is_told_as_changed_and_not_followed(claimed, tmp_path):
    package = tmp_path / "Example"
    write_log(package / "results" / "system" / "resnet" / "result_0.txt")
    secret = tmp_path / "secret"
    secret.write_text("x")
    (package / "LICENSE").symlink_to(secret)
    (package / "manifest.json").write_text(json.dumps({"scores": [], "files": {"LICENSE": claimed}}))
    changes = {change.file: change.change for change in reproduce(package).files}
    assert changes["LICENSE"] == "changed"


STORES: dict[str, tuple[StoreConfig, Callable[[Path], object]]] = {
    "raw": (StoreConfig(format="raw", size=16), lambda folder: RawImages(folder, "train")),
    "jpeg": (StoreConfig(format="jpeg"), lambda folder: JpegShards(folder, "train")),
    "beton": (StoreConfig(format="beton", size=16), lambda folder: BetonImages(folder, "train")),
}


def as_npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def not_tables() -> list[bytes]:
    """An archive of arrays, and an array of objects."""
    archive = io.BytesIO()
    np.savez(archive, a=np.zeros(3))
    return [archive.getvalue(), as_npy(np.array([{}], dtype=object))]


def write_table(folder: Path, made: image_manifest.ImageManifest, content: bytes, **files: StoredFile) -> None:
    """Give a store a table of images, with a manifest that fits it: nothing but sense can tell."""
    name, _ = index_files("train")
    stored = {name: write_file(folder / name, content), **files}
    write_file(folder / image_manifest.MANIFEST, replace(made, files={**made.files, **stored}).to_json().encode())


OUTSIDE = [("offset", (1 << 64) - 10), ("offset", 1 << 63), ("offset", 1 << 40), ("bytes", (1 << 32) - 1)]
SIDES = ("height", "width", "original_height", "original_width")
SIZES = [(side, size) for side in SIDES for size in (0, (1 << 32) - 1)]


@pytest.mark.parametrize("kind", ["raw", "jpeg", pytest.param("beton", marks=NEEDS_FFCV)])
def test_a_table_that_points_out_of_its_files_or_has_impossible_sizes_is_refused(kind, tmp_path):
    settings, open_store = STORES[kind]
    made = make_store(tmp_path, settings, given([(20, 24), (30, 20), (16, 16), (40, 18)]))
    rows = np.load(tmp_path / index_files("train")[0])
    for column, value in [*OUTSIDE, ("shard", 1 << 31), *(SIZES if kind != "jpeg" else [])]:
        changed = rows.copy()
        changed[column][1] = value
        write_table(tmp_path, made, as_npy(changed))
        with pytest.raises(DataError):
            pytest.fail(f"{column} = {value}: {open_store(tmp_path)}")


def test_sizes_whose_product_passes_64_bits_are_refused(tmp_path):
    tall, wide, size = (1 << 32) - 1, 1_431_655_766, (1 << 32) - 2
    assert tall * wide * 3 == (1 << 64) + size
    made = make_store(tmp_path, STORES["raw"][0], given([(20, 24)]))
    rows = np.load(tmp_path / index_files("train")[0])
    rows["height"], rows["width"], rows["bytes"] = tall, wide, size
    os.truncate(tmp_path / "train" / "00000.rgb", size)  # a hole
    write_table(tmp_path, made, as_npy(rows), **{"train/00000.rgb": StoredFile(bytes=size, sha256="0" * 64)})
    with pytest.raises(DataError, match="impossible sizes"):
        RawImages(tmp_path, "train")


def test_crops_outside_a_shard_are_an_error_and_no_memory_of_others():
    shard, target = torch.zeros(300, dtype=torch.uint8), torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    for offset in (-10, 290, 1 << 62):
        with pytest.raises(RuntimeError):
            crop_kernel.scripted(crop_kernel.copy_crops)([shard], [[0, offset, 10, 0, 0, 4, 4, 0]], target)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../x", "", "a\nb"])
def test_no_manifest_of_a_store_names_files_outside_it(name, tmp_path):
    images = tmp_path / "images"
    made = make_store(images, STORES["jpeg"][0], given([(20, 24)]))
    hostile = replace(made, files={**made.files, name: StoredFile(bytes=1, sha256="0" * 64)})
    (images / image_manifest.MANIFEST).write_text(hostile.to_json())
    with pytest.raises(DataError, match="no file of the store|outside the store"):
        image_manifest.verify(images)
    text = tmp_path / "text"
    write_synthetic_store(text, 20)
    values = json.loads((text / text_store.MANIFEST).read_text())
    values["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    (text / text_store.MANIFEST).write_text(json.dumps(values))
    with pytest.raises(DataError, match="no file of the store|outside the store"):
        text_store.verify(text)


def test_an_index_that_announces_more_than_it_has_or_is_an_archive_is_refused(tmp_path):
    write_synthetic_store(tmp_path, 20)
    manifest = json.loads((tmp_path / text_store.MANIFEST).read_text())
    head = io.BytesIO()
    shape = (1 << 40, 2)
    np.lib.format.write_array_header_1_0(head, {"descr": "<u2", "fortran_order": False, "shape": shape})
    for content in (head.getvalue(), *not_tables()):
        (tmp_path / "train" / "index.npy").write_bytes(content)
        manifest["files"]["train/index.npy"]["bytes"] = len(content)
        (tmp_path / text_store.MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(DataError):
            RaggedStore(tmp_path, "train")


def test_a_table_of_images_that_is_an_archive_or_holds_objects_is_refused(tmp_path):
    made = make_store(tmp_path, STORES["jpeg"][0], given([(20, 24)]))
    for content in not_tables():
        write_table(tmp_path, made, content)
        with pytest.raises(DataError, match="not an index"):
            JpegShards(tmp_path, "train")
