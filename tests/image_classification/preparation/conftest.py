"""The samples of images that stores are built from, and copies that a test may damage."""

import shutil
from pathlib import Path

import pytest

from tests.image_classification.preparation.samples import image_folder


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("original") / "images")


@pytest.fixture
def images(tmp_path: Path, original: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(original, tmp_path / "images")
    return tmp_path / "images"
