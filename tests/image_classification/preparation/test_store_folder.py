"""Folder of a store: other files are never touched, and no empty folder is left."""

import shutil
from pathlib import Path

import pytest

from image_classification.preparation import builder
from image_classification.stores.manifest import verify
from judging.ground.errors import DataError
from tests.image_classification.preparation.built_stores import JPEG, build
from tests.image_classification.preparation.samples import fingerprint, tars_of


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path, original: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "precious").write_text("data")
    with pytest.raises(DataError, match="holds precious but no store; nothing was prepared or changed"):
        build(original, tmp_path / "store", JPEG)
    with pytest.raises(DataError, match="is a file"):
        build(original, tmp_path / "store" / "precious", JPEG)
    with pytest.raises(DataError, match="holds train|holds val"):
        build(original, original, JPEG)
    assert list(fingerprint(tmp_path / "store")) == ["precious"]


def test_too_little_room_is_found_before_anything_is_written(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(builder.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DataError, match="GB are needed, but only 0.0 GB are free; nothing was written"):
        build(original, tmp_path / "store", JPEG)
    assert not (tmp_path / "store").exists()


def test_a_second_preparation_of_a_folder_is_refused(tmp_path: Path, original: Path) -> None:
    def second(_: str) -> None:
        with pytest.raises(DataError, match="being prepared by another process"):
            build(original, tmp_path / "store", JPEG)
        met.append(True)

    met: list[bool] = []
    build(original, tmp_path / "store", JPEG, report=second)
    assert met
    assert verify(tmp_path / "store")


def test_a_preparation_that_began_no_shard_leaves_no_folder(tmp_path: Path, original: Path) -> None:
    train, validation, labels = tars_of(original, tmp_path / "tars")
    with pytest.raises(DataError, match="validation labels cannot be read"):
        build((train, validation), tmp_path / "store", JPEG, labels=tmp_path / "none")
    assert not (tmp_path / "store").exists()
    validation.write_bytes(validation.read_bytes()[:5000])
    with pytest.raises(DataError, match="again"):
        build((train, validation), tmp_path / "store", JPEG, labels=labels)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("out", ["file/x", "file/x/y", "x" * 300])
def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path, original: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="nothing was prepared. Choose another --data-folder"):
        build(original, tmp_path / out, JPEG)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
