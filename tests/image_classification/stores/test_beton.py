"""Store of format beton: images, damage, and the same bytes as FFCV's own writer."""

from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from image_classification.preparation.shard_writer import inspect
from image_classification.stores import beton
from image_classification.stores.manifest import StoreConfig
from image_classification.stores.store_format import SourceItem
from judging.ground.errors import DataError
from tests.image_classification.small_stores import NEEDS_FFCV, decoded, encoded, given, label_of, make_store, smooth

SIZES = [(1, 9), (30, 17), (12, 12), (9, 1), (20, 31), (13, 40), (25, 14), (16, 16)]
MIXED = StoreConfig(format="beton", size=24, jpeg_share=0.5)


@NEEDS_FFCV
def test_the_file_does_not_depend_on_the_shards_it_was_made_in(tmp_path):
    images = given(SIZES)
    whole = make_store(tmp_path / "a", MIXED, images, per_shard=8)
    assert make_store(tmp_path / "b", MIXED, images, per_shard=1).files == whole.files
    assert {name.partition(".")[2] for name in whole.files} == {"beton", "rows.npy", "names.txt"}


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


def test_an_image_too_large_for_the_format_is_named():
    image = SimpleNamespace(decoded=Image.new("L", (70_000, 1)), item=SimpleNamespace(name="train/ant/long.png"))
    with pytest.raises(DataError, match=r"train/ant/long\.png: 70000x1 pixels"):
        beton.encode_beton(image, StoreConfig(size=0), "train")


@NEEDS_FFCV
def test_a_shard_that_is_not_what_it_was_stops_the_file_and_leaves_no_draft(tmp_path):
    shard = SimpleNamespace(
        file="train/00000.shard",
        number=0,
        names=("a",),
        labels=np.array([0]),
        offsets=np.array([0, 3]),
        rows=np.array([[1, 1, 1, 1, 1]]),
        stored=SimpleNamespace(bytes=3),
    )
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "00000.shard").write_bytes(b"ab")
    with pytest.raises(DataError, match=r"00000\.shard: truncated"):
        beton.FORMAT.finish(tmp_path, "train", [shard])
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


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
