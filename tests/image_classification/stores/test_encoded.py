"""Encoded images in folders and shards: identical bytes from any thread, no image read on opening."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from image_classification.stores import encoded as module
from image_classification.stores.encoded import JpegShards
from tests.image_classification.small_stores import JPEG, encoded, given, label_of, make_store, smooth

SIZES = [(1, 9), (9, 1), (5, 7), (16, 16), (3, 2), (8, 31), (2, 2)]


FILES = given(SIZES) | {"train/wasp/p.png": encoded(smooth(4, 6), "PNG", "L")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_store(tmp_path, JPEG, FILES, {"val/ant/0.jpg": encoded(smooth(4, 4))})
    return tmp_path


def same(opened: JpegShards, files: dict[str, bytes]) -> bool:
    return [opened.read(place) for place in range(len(opened))] == [*files.values()]


def test_every_byte_label_and_name_comes_back(folder):
    opened = JpegShards(folder, "train")
    assert same(opened, FILES)
    assert opened.labels.tolist() == [*map(label_of, FILES)] and opened.labels.dtype == np.int64
    assert [opened.name(place) for place in range(len(opened))] == [*FILES]
    assert all(Path(opened.describe(place).partition(": ")[0]).is_file() for place in range(len(opened)))
    assert JpegShards(folder, "evaluation").name(0) == "val/ant/0.jpg"


def test_threads_read_what_one_thread_reads(folder):
    opened = JpegShards(folder, "train")
    order = np.random.default_rng(0).integers(0, len(FILES), 400).tolist()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(opened.read, order))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[*FILES.values()][place] for place in order]


def shards_open(folder: Path) -> int:
    """Shards of the store in `folder` that this process has open."""
    held = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one of this very listing
            held += os.readlink(link).startswith(str(folder / "train" / "0"))
    return held


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("allowed", "expected"), [(100, 7), (2, 2)])
def test_shards_stay_open_up_to_a_limit_and_are_closed_with_their_reader(tmp_path, monkeypatch, allowed, expected):
    monkeypatch.setattr(module, "HELD_OPEN", allowed)
    files = given(SIZES)
    make_store(tmp_path, JPEG, files, per_shard=1)
    opened = JpegShards(tmp_path, "train")
    assert shards_open(tmp_path) == 0
    assert same(opened, files) and same(opened, files)
    assert shards_open(tmp_path) == expected
    del opened
    assert shards_open(tmp_path) == 0
