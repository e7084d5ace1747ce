"""Small folders and stores of images, and real CIFAR-10 where the environment names it."""

import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from image_classification import cifar10
from image_classification.configs import imagenet_methods
from image_classification.prepare import prepare
from image_classification.stores import image_folder
from image_classification.stores.manifest import Format, StoreConfig


@pytest.fixture(scope="module", autouse=True)
def numba_garbage_is_collected() -> Iterator[None]:
    """Collect numba's garbage in its own module: its finalizers raise, which CPython 3.11 turns into a SystemError in
    a later ast.parse."""
    yield
    if "numba" in sys.modules:
        gc.collect()


@pytest.fixture(scope="session")
def real_cifar10() -> Path:
    """CIFAR-10's original binary batches; skips the test unless the environment names their folder."""
    if "TIMEDRUN_TEST_CIFAR10" not in os.environ:
        pytest.skip("TIMEDRUN_TEST_CIFAR10 does not name a folder with CIFAR-10's binary batches")
    return Path(os.environ["TIMEDRUN_TEST_CIFAR10"])


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[Format, Path]:
    """29 training, 6 evaluation JPEG images of two classes in a store of each format, evaluation at short side 20."""
    root = tmp_path_factory.mktemp("prepared")
    generator = np.random.default_rng(0)
    for split, count in (("train", (14, 15)), ("val", (3, 3))):
        for label, images in zip(("ant", "bee"), count, strict=True):
            folder = root / "folder" / split / label
            folder.mkdir(parents=True)
            for number in range(images):
                pixels = generator.integers(0, 256, (30 + 3 * number, 60 - number, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:02d}.jpg", quality=90)
    values: dict[Format, Path] = {"folder": root / "folder"}
    image_folder.write_index(image_folder.make_index(values["folder"], []), values["folder"])
    config = imagenet_methods()
    for store in (StoreConfig(format="jpeg"), StoreConfig(format="raw", size=24), StoreConfig(format="beton")):
        if store.format == "beton" and find_spec("ffcv") is None:
            continue
        values[store.format] = root / store.format
        data = replace(config.data, eval_resize=20, eval_size=16, store=store)
        options: dict[str, Any] = {"decode": False, "workers": 1, "images": values["folder"]}
        prepare(replace(config, data=data), values[store.format], **options)
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
