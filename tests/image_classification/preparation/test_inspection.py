"""Inspection of images before they are stored."""

import contextlib
import io
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image

from image_classification.loaders.pillow import decode
from image_classification.preparation.shard_writer import inspect
from image_classification.stores.store_format import SourceItem, UnusableImage
from judging.ground.errors import DataError
from tests.image_classification.small_stores import encoded, rotated, smooth

RGB = smooth(24, 32)
ITEM = SourceItem("train/ant/1.jpg", 0, "nowhere", 0)


@pytest.mark.parametrize(
    "data",
    [
        *(encoded(RGB, mode=mode, progressive=True) for mode in ("RGB", "L", "CMYK")),
        rotated(RGB, 6),
        *(encoded(RGB, "PNG", mode) for mode in ("RGB", "P", "RGBA", "LA", "1")),
        *(encoded(RGB, kind) for kind in ("BMP", "WEBP", "GIF")),
    ],
)
def test_images_of_all_kinds_are_read_as_pillow_converts_them(data):
    image = inspect(ITEM, 3, data)
    assert (image.position, image.data, image.rgb.mode) == (3, data, "RGB")
    assert image.rgb.tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()


def test_16_bit_gray_keeps_its_shades_in_stores_and_loaders():
    shades = np.arange(256, dtype=np.uint16).reshape(16, 16)
    data = encoded(Image.fromarray(shades * 257), "PNG")
    image = inspect(ITEM, 0, data)
    for rgb in (image.rgb, decode(data, ITEM.name)):
        assert np.array_equal(np.asarray(rgb), np.repeat(shades[:, :, None], 3, axis=2))


@pytest.mark.parametrize("data", [b"", b"<html>not found</html>", encoded(RGB)[:-40], encoded(RGB, "PNG")[:-60]])
def test_a_partially_decodable_image_is_corrupt_and_named(data):
    for read in (lambda: inspect(ITEM, 0, data), lambda: decode(data, ITEM.name)):
        with pytest.raises(DataError, match="train/ant/1.jpg: ") as caught:
            read()
        assert "BytesIO" not in str(caught.value)  # with the address of a buffer


def test_no_decoder_starts_a_program(tmp_path, monkeypatch):
    record, gs = tmp_path / "started", tmp_path / "gs"
    gs.write_text(f"#!/bin/sh\necho $0 $@ >> {record}\n")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None, raising=False)  # as long as nobody looked for Ghostscript
    postscript = encoded(RGB, "EPS")
    with contextlib.suppress(OSError):  # this gs makes no image
        Image.open(io.BytesIO(postscript)).load()
    assert record.exists()  # Pillow's own choice
    record.unlink()
    with pytest.raises(UnusableImage, match=r"train/ant/1.jpg: not JPEG or PNG or WEBP or BMP or GIF"):
        inspect(ITEM, 0, postscript)
    with pytest.raises(DataError, match="cannot be decoded"):
        decode(postscript, ITEM.name)
    assert not record.exists()


def test_a_decompression_bomb_is_corrupt(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnusableImage, match="bomb"):
        inspect(ITEM, 0, encoded(RGB))


@settings(max_examples=30)
@given(
    st.sampled_from([encoded(RGB), rotated(RGB, 3), encoded(RGB, "PNG", "P"), encoded(RGB, "WEBP")]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_bytes_are_an_image_or_corrupt_and_nothing_else(data, changes):
    damaged = bytearray(data)
    for place, value in changes:
        damaged[int(place * len(damaged))] = value
    try:
        assert inspect(ITEM, 0, bytes(damaged)).rgb.mode == "RGB"
    except UnusableImage as error:
        assert str(error).startswith("train/ant/1.jpg: ")
