"""Manifest of a store: round trip, and every damaged file named."""

import pytest

from image_classification.stores.beton import BetonImages
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, store_problems, verify
from image_classification.stores.raw import RawImages
from judging.ground.errors import DataError
from tests.image_classification.small_stores import FORMATS, given, make_store

OPENED = {"jpeg": JpegShards, "raw": RawImages, "beton": BetonImages}
DAMAGED = {
    "truncated": lambda data: data[:-1],
    "too long": lambda data: data + b"x",
    "SHA-256": lambda data: bytes([data[0] ^ 1]) + data[1:],
}


@pytest.mark.parametrize("fault", ["missing", *DAMAGED])
@FORMATS
def test_every_damaged_file_is_named_by_verify_and_before_an_image_is_read(tmp_path, settings, fault):
    manifest = make_store(tmp_path, settings, given([(9, 7)] * 7), given([(8, 8)] * 4))
    assert verify(tmp_path).to_json() == manifest.to_json() == (tmp_path / MANIFEST).read_text()
    lines: list[str] = []
    for name in manifest.files:
        path = tmp_path / name
        path.write_bytes(DAMAGED[fault](path.read_bytes())) if fault in DAMAGED else path.unlink()
        with pytest.raises(DataError) as caught:
            verify(tmp_path)
        (line,) = {*str(caught.value).splitlines()}.difference(lines)
        assert line.startswith(f"{path}: ") and fault in line
        lines.append(line)
        assert {*store_problems(tmp_path, manifest.settings, 16)} == ({*lines} if fault != "SHA-256" else set())
    for split in manifest.splits:  # whose index is checked to the last byte
        with pytest.raises(DataError, match=rf"{split}\..*{fault}"):
            OPENED[settings.format](tmp_path, split)
