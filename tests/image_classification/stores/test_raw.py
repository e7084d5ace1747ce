"""Store of format raw: pixels of the reference's resize, read through a memory map from any thread."""

import numpy as np
from PIL import Image

from image_classification.stores.manifest import StoreConfig
from image_classification.stores.raw import RawImages
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
