"""Small folders and stores of images."""

import gc
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from image_classification import cifar10
from image_classification.stores.manifest import Format, StoreConfig
from tests.image_classification.small_stores import JPEG, build, encoded, noisy, write_files, write_images


@pytest.fixture(scope="module", autouse=True)
def numba_garbage_is_collected() -> Iterator[None]:
    """Collect numba's garbage in its own module: its finalizers raise, which CPython 3.11 turns into a SystemError in
    a later ast.parse."""
    yield
    if "numba" in sys.modules:
        gc.collect()


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three classes that stores are built from."""
    return write_images(tmp_path_factory.mktemp("original") / "images")


@pytest.fixture
def images(tmp_path: Path, original: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "images"))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[Format, Path]:
    """30 training, 6 evaluation JPEG images of two classes in a folder, and in a store of each format, evaluation at
    short side 20."""
    root = tmp_path_factory.mktemp("prepared")
    counts = {"train/ant": 15, "train/bee": 15, "val/ant": 3, "val/bee": 3}
    files = {
        f"{name}/{number:02d}.jpg": encoded(noisy(30 + 3 * number, 60 - number, 100 * place + number), quality=90)
        for place, name in enumerate(counts)
        for number in range(counts[name])
    }
    values: dict[Format, Path] = {"folder": write_files(root / "folder", files)}
    for store in (JPEG, StoreConfig(format="raw", size=24, evaluation_resizes=(20,)), StoreConfig(format="beton")):
        if store.format != "beton" or find_spec("ffcv"):
            build(values["folder"], root / store.format, store, per_shard=1024)
            values[store.format] = root / store.format
    return values


@pytest.fixture
def cifar_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in CIFAR-10's binary format, of 50 images with random pixels each."""
    monkeypatch.setattr(cifar10, "PER_FILE", 50)
    generator = np.random.default_rng(0)
    for name in cifar10.FILES:
        records = generator.integers(0, 256, (cifar10.PER_FILE, cifar10.RECORD), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path
