"""Manifest of a store: round trip, and every damaged file named."""

from pathlib import Path

import pytest

from image_classification.stores.manifest import MANIFEST, read_manifest, require_split, verify
from judging.ground.errors import DataError
from tests.image_classification.small_stores import JPEG, given, make_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_store(tmp_path, JPEG, given([(9, 7)] * 7), given([(8, 8)] * 4))
    return tmp_path


def test_verify_returns_the_manifest_or_names_every_file_that_differs(store):
    assert verify(store).to_json() == (store / MANIFEST).read_text()
    flipped = store / "train" / "00001.jpegs"
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
    cut = store / "train.rows.npy"
    cut.write_bytes(cut.read_bytes()[:-1])
    (store / "evaluation.names.txt").unlink()
    long = store / "evaluation" / "00000.jpegs"
    long.write_bytes(long.read_bytes() + b"x")
    with pytest.raises(DataError) as caught:
        verify(store)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for path, fault in ((flipped, "SHA-256"), (cut, "truncated"), (long, "too long")):
        assert any(line.startswith(f"{path}:") and fault in line for line in lines)
    assert any("evaluation.names.txt: missing" in line for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"version": 1', '"version": 7', "version 7 is not supported"),
        ('"images": 7', '"images": "x"', "damaged or edited"),
    ],
)
def test_a_manifest_of_another_version_or_edited_is_refused(store, old, new, words):
    path = store / MANIFEST
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=words):
        read_manifest(store)


def test_a_store_of_another_format_or_without_a_split_is_refused(store):
    assert require_split(store, "jpeg", "train") == read_manifest(store)
    with pytest.raises(DataError, match="format jpeg, not raw"):
        require_split(store, "raw", "train")
    with pytest.raises(DataError, match="no split test, only train, evaluation"):
        require_split(store, "jpeg", "test")
    with pytest.raises(DataError, match="no evaluation images of short side 256 .* only of none. Add them"):
        require_split(store, "jpeg", "evaluation_256")
