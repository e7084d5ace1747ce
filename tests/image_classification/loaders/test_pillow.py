"""Reference loader: torchvision's pixels, reproducible batches, and corrupt files by name."""

from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_classification.augmentation import train_crops
from image_classification.loaders.pillow import PillowLoader
from judging.ground.errors import DataError
from tests.image_classification.loaders.jpeg_folders import make_folder, make_shards, photographs
from tests.image_classification.small_image_data import CPU, FOLDER
from tests.image_classification.stores.small_stores import encoded, smooth

RESIZE = 40


def _open(folder: Path, *, train: bool = True, seed: int = 0, workers: int = 0) -> AbstractContextManager[PillowLoader]:
    config = replace(FOLDER, workers=workers, eval_resize=RESIZE)
    return closing(PillowLoader(config, folder, CPU, train=train, seed=seed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder"), photographs(30, largest=90))


def _files(folder: Path, split: str) -> list[Path]:
    return sorted((folder / split).rglob("*.jpg"))


def test_training_images_are_torchvisions_resized_crop_of_their_box(folder, torchvision):
    from torchvision.transforms import functional

    with _open(folder, seed=5) as loader:
        (batch,) = loader.batches([np.arange(30)], 3, 24)
    for sample, path in enumerate(_files(folder, "train")):
        image = Image.open(path)
        boxes, flips = train_crops(5, 3, np.array([sample]), np.array([(image.height, image.width)]), flip="random")
        expected = functional.resized_crop(image, *boxes[0].tolist(), [24, 24])
        expected = functional.hflip(expected) if flips[0] else expected
        assert np.array_equal(batch.images[sample].permute(1, 2, 0).numpy(), np.asarray(expected))


@pytest.mark.parametrize("size", [32, 33, 40])
def test_evaluation_images_are_torchvisions_crop(folder, torchvision, size):
    from torchvision.transforms import v2

    transform = v2.Compose([v2.Resize(RESIZE), v2.CenterCrop(size)])
    with _open(folder, train=False) as loader:
        (batch,) = loader.batches([np.arange(30)], 0, size)
    for sample, path in enumerate(_files(folder, "val")):
        expected = np.asarray(transform(Image.open(path).convert("RGB")))
        assert np.array_equal(batch.images[sample].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize(("data", "workers"), [(b"", 2), (b"GIF89a", 0), (encoded(smooth(60, 60))[:700], 2)])
def test_a_corrupt_file_is_an_error_with_its_name_and_no_traceback(tmp_path, data, workers):
    files = photographs(8, largest=60) | {"train/b/bad.jpg": data}
    with _open(make_folder(tmp_path, files), workers=workers) as loader:
        with pytest.raises(DataError, match=r"train/b/bad.jpg: cannot be decoded") as raised:
            list(loader.batches([np.arange(9)] * 3, 1, 16))
        assert "Traceback" not in str(raised.value)
        assert len(list(loader.batches([np.array([0, 1])] * 2, 1, 16))) == 2


def test_a_corrupt_image_of_a_shard_is_named_with_its_shard(tmp_path):
    folder = make_shards(tmp_path, {"train/a/0.jpg": encoded(smooth(60, 60))[:700]})
    with _open(folder) as loader, pytest.raises(DataError, match=r"00000\.\w+: train/a/0.jpg: cannot be decoded"):
        list(loader.batches([np.arange(1)], 1, 16))
