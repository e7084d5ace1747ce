"""Synthetic images: repeatable, and written completely or not at all."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from image_classification import synthetic_images
from image_classification.synthetic_images import SyntheticImages, write_images
from tests.image_classification.preparation.samples import fingerprint

SMALL = SyntheticImages(train=40, evaluation=4, classes=3, width=50, height=38)


@pytest.mark.processes
def test_the_same_settings_make_the_same_files_with_any_number_of_workers(tmp_path: Path) -> None:
    write_images(tmp_path / "one", SMALL, workers=1)
    write_images(tmp_path / "two", SMALL, workers=2)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    write_images(tmp_path / "other", replace(SMALL, seed=2), workers=1)
    assert not set(fingerprint(tmp_path / "other").values()) & set(fingerprint(tmp_path / "one").values())


def test_an_interrupted_write_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = synthetic_images.pixels

    def full(settings: SyntheticImages, number: int) -> object:
        if number == 35:
            raise OSError(28, "No space left on device")
        return real(settings, number)

    monkeypatch.setattr(synthetic_images, "pixels", full)
    with pytest.raises(OSError):
        write_images(tmp_path / "images", SMALL, workers=1)
    assert not (tmp_path / "images").exists()
    monkeypatch.setattr(synthetic_images, "pixels", real)
    write_images(tmp_path / "images", SMALL, workers=1)
    assert len(fingerprint(tmp_path / "images")) == 44
