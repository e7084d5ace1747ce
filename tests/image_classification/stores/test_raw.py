"""Store of format raw: pixels of the reference's resize, read through a memory map from any thread."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_classification.centre_crop import resized
from image_classification.stores.manifest import MANIFEST, StoreConfig, read_manifest
from image_classification.stores.raw import FORMAT, RawImages, stored_size
from judging.ground.errors import DataError
from tests.image_classification.small_stores import decoded, given, label_of, make_store, stored_image

SIZES = [(1, 9), (30, 17), (12, 12), (9, 1), (20, 31), (13, 40), (25, 14)]


def test_images_of_any_size_come_back_resized_as_pillow_does(tmp_path):
    sizes = [*SIZES, *map(tuple, np.random.default_rng(0).integers(1, 40, (80, 2)).tolist())]
    images = given(sizes)
    make_store(tmp_path, StoreConfig(format="raw", size=12), images, per_shard=7)
    opened = RawImages(tmp_path, "train")
    assert opened.original_sizes.tolist() == [list(size) for size in sizes]
    assert opened.labels.tolist() == [*map(label_of, images)]
    for place, image in enumerate(images.values()):
        height, width = opened.sizes[place].tolist()
        stored = stored_image(opened, place)
        assert stored.shape == (height, width, 3) and stored.dtype == np.uint8
        if min(sizes[place]) <= 12:
            assert (height, width) == sizes[place]
        else:
            assert min(height, width) == 12
        assert np.array_equal(stored, np.asarray(decoded(image).resize((width, height), Image.Resampling.BILINEAR)))


def test_only_evaluation_makes_an_image_larger():
    config = StoreConfig(format="raw", size=160)
    assert stored_size(100, 50, config, "train") == (100, 50)
    assert stored_size(375, 500, config, "train") == (160, 213)
    assert stored_size(100, 50, config, "evaluation_256") == (512, 256)
    assert resized(375, 500, 256) == (256, 341)


def test_opening_reads_no_pixel_and_a_manifest_of_other_counts_is_named(tmp_path):
    make_store(tmp_path, StoreConfig(format="raw", size=12), given(SIZES))
    shard, manifest = tmp_path / "train" / "00000.rgb", tmp_path / MANIFEST
    size = shard.stat().st_size
    shard.unlink()
    with shard.open("wb") as stream:
        stream.truncate(size)
    opened = RawImages(tmp_path, "train")
    assert not stored_image(opened, 1).any()
    assert shard.resolve() not in map(Path.resolve, Path("/proc/self/fd").glob("*"))  # a store may have thousands
    manifest.write_text(manifest.read_text().replace('"images": 7', '"images": 8'))
    with pytest.raises(DataError, match=r"train\.rows\.npy: does not match the manifest"):
        RawImages(tmp_path, "train")


def test_the_estimate_of_its_bytes_is_that_of_images_of_the_mean_proportions(tmp_path):
    make_store(tmp_path, StoreConfig(format="raw", size=12), given([(30, 40)] * 4))
    held = read_manifest(tmp_path).splits["train"].bytes
    assert FORMAT.bytes_per_image(StoreConfig(format="raw", size=12), "train", 0.0) * 4 == held
