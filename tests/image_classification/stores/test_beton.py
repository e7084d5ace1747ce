"""Store of format beton: which images are JPEGs, and the same bytes as FFCV's own writer."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from image_classification.preparation.shard_writer import inspect
from image_classification.stores import beton
from image_classification.stores.manifest import StoreConfig
from image_classification.stores.store_format import SourceItem
from tests.image_classification.small_stores import NEEDS_FFCV, decoded, encoded, given, label_of, make_store, smooth

SIZES = [(1, 9), (30, 17), (12, 12), (9, 1), (20, 31), (13, 40), (25, 14), (16, 16)]


def test_the_share_of_jpegs_is_kept_and_a_larger_one_holds_a_smaller():
    drawn = {share: {place for place in range(2000) if beton.is_jpeg(place, share)} for share in (0.0, 0.25, 0.5, 1.0)}
    assert [len(drawn[share]) for share in (0.0, 1.0)] == [0, 2000]
    assert abs(len(drawn[0.5]) / 2000 - 0.5) < 4 * 0.5 / 2000**0.5
    assert drawn[0.25] < drawn[0.5]


def test_only_a_jpeg_that_needs_no_change_is_kept_byte_for_byte():
    item, untouched = SourceItem("train/ant/1.jpg", 0, "-", 0), StoreConfig(format="beton", size=0, jpeg_share=1.0)
    plain, gray, png = (encoded(smooth(20, 30), *kind) for kind in ((), ("JPEG", "L"), ("PNG",)))
    assert beton.encode_beton(inspect(item, 0, plain), untouched, "train")[0] == plain
    for image, config in ((gray, untouched), (png, untouched), (plain, StoreConfig(size=500, jpeg_share=1.0))):
        data = beton.encode_beton(inspect(item, 0, image), config, "train")[0]
        assert data != image
        assert (Image.open(BytesIO(data)).format, Image.open(BytesIO(data)).mode) == ("JPEG", "RGB")


@NEEDS_FFCV
@pytest.mark.processes
@pytest.mark.parametrize(("sizes", "page"), [([(900, 1100), *SIZES, (1200, 1400)], 1), ([(1700, 1700)], 2)])
def test_the_file_is_that_of_ffcvs_own_writer(tmp_path, sizes, page):
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    images, settings = given([*sizes, (5, 5)]), StoreConfig(format="beton", size=0, jpeg_share=0.0)  # two pages
    make_store(tmp_path, settings, images, given([(5, 5)]))
    reference = tmp_path / "reference.beton"
    fields = {"image": RGBImageField("raw"), "label": IntField()}
    writer = DatasetWriter(str(reference), fields, page_size=page * beton.PAGE, num_workers=1)
    writer.from_indexed_dataset([(np.asarray(decoded(data)), label_of(name)) for name, data in images.items()])
    assert reference.stat().st_size > 2 * beton.PAGE
    assert reference.read_bytes() == (tmp_path / "train.beton").read_bytes()
