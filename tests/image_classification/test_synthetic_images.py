"""Synthetic images: repeatable, as large as photographs, written completely or not at all."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_classification import synthetic_images
from image_classification.synthetic_images import SyntheticImages, pixels, write_images

SMALL = SyntheticImages(train=40, evaluation=4, classes=3, width=50, height=38)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.processes
def test_the_same_settings_make_the_same_files_with_any_number_of_workers(tmp_path: Path) -> None:
    write_images(tmp_path / "one", SMALL, workers=1)
    write_images(tmp_path / "two", SMALL, workers=2)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    write_images(tmp_path / "other", replace(SMALL, seed=2), workers=1)
    assert not set(digests(tmp_path / "other").values()) & set(digests(tmp_path / "one").values())


def test_at_imagenets_size_a_file_is_as_large_as_imagenets() -> None:
    from io import BytesIO

    settings = SyntheticImages(train=4)
    sizes = []
    for number in range(4):
        stream = BytesIO()
        Image.fromarray(pixels(settings, number)).save(stream, "JPEG", quality=settings.quality)
        sizes.append(len(stream.getvalue()))
    assert 85_000 < np.mean(sizes) < 130_000  # ImageNet's mean is about 110 kB


def test_a_class_has_a_colour_of_its_own() -> None:
    settings = SyntheticImages(train=16, width=100, height=100)
    means = np.array([pixels(settings, number).mean(axis=(0, 1)) for number in range(16)])
    same = np.abs(means[:8] - means[8:]).max()
    others = min(np.abs(means[a] - means[b]).max() for a in range(8) for b in range(a))
    assert same < others


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
    assert len(digests(tmp_path / "images")) == 44
