"""Tests of image_classification/loaders/ffcv_loader.py and ffcv_pipeline.py."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_classification.augmentation import train_crops
from image_classification.loaders.ffcv_loader import FfcvLoader
from image_classification.loaders.pillow import evaluation_image, training_image
from image_classification.settings import DataConfig
from image_classification.stores.beton import BetonImages
from image_classification.stores.manifest import StoreConfig
from judging.ground.errors import DataError
from tests.image_classification.small_image_data import CPU, FOLDER
from tests.image_classification.stores.small_stores import Given, encoded, given, make_store

pytest.importorskip("ffcv", reason="ffcv is not installed: it is built against OpenCV and libjpeg-turbo")
SIZES = [(300, 400), (400, 300), (120, 500), (64, 64), (333, 251), (480, 360), (90, 121), (500, 375)]
COUNT = 40


def picture(number: int) -> np.ndarray:
    """A smooth image with some texture, of a size of its own."""
    height, width = SIZES[number % len(SIZES)]
    random = np.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of the pictures as pixels ("raw") and as JPEG ("jpg")."""
    pictures = [Given(f"{n}.png", n * 7 % 10, encoded(Image.fromarray(picture(n)), "PNG")) for n in range(COUNT)]
    made = {name: tmp_path_factory.mktemp(name) for name in ("raw", "jpg")}
    for name, folder in made.items():
        settings = StoreConfig(format="beton", jpeg_share=float(name == "jpg"))
        make_store(folder, settings, {"train": pictures, "evaluation": pictures})
    return made


@pytest.fixture
def opened(stores: dict[str, Path]) -> Iterator[Callable[..., FfcvLoader]]:
    """Opens loaders, and closes them after the test."""
    loaders = []

    def open_one(mode: str = "raw", *, train: bool = True, seed: int = 3, workers: int = 2) -> FfcvLoader:
        loaders.append(FfcvLoader(data(workers), stores[mode], CPU, train=train, seed=seed))
        return loaders[-1]

    yield open_one
    for loader in loaders:
        loader.close()


def data(workers: int) -> DataConfig:
    """Settings of the loaders."""
    return replace(FOLDER, workers=workers, eval_resize=80)


def whole(loader: FfcvLoader, parts: list[np.ndarray], epoch: int, size: int) -> np.ndarray:
    """All images (n, size, size, 3) of a pass."""
    return np.concatenate([batch.images.permute(0, 2, 3, 1).numpy() for batch in loader.batches(parts, epoch, size)])


def reference(image: Image.Image, number: int, seed: int, epoch: int, size: int) -> np.ndarray:
    """A training image made with Pillow from the same crop."""
    boxes, flips = train_crops(seed, epoch, np.array([number]), np.array([[image.height, image.width]]), flip="random")
    return np.asarray(training_image(image, boxes[0].tolist(), bool(flips[0]), size))


def test_raw_images_are_cv2s_area_resize_of_train_crops(opened):
    cv2 = pytest.importorskip("cv2", reason="OpenCV's Python package comes with ffcv")
    samples = np.arange(COUNT)
    sizes = np.array([SIZES[number % len(SIZES)] for number in samples])
    boxes, flips = train_crops(3, 1, samples, sizes, flip="random")
    images = whole(opened("raw"), [samples], 1, 64)
    for number, (top, left, height, width), mirrored in zip(range(COUNT), boxes, flips, strict=True):
        cut = picture(number)[top : top + height, left : left + width]
        wanted = cv2.resize(cut, (64, 64), interpolation=cv2.INTER_AREA)
        assert np.abs(images[number].astype(int) - (wanted[:, ::-1] if mirrored else wanted)).max() <= 1


@pytest.mark.parametrize(("mode", "mean", "most"), [("raw", 5, 30), ("jpg", 7, 60)])
def test_evaluation_is_the_central_crop_of_the_reference_within_filter_and_rounding(opened, mode, mean, most):
    images = whole(opened(mode, train=False), [np.arange(COUNT)], 0, 64)
    wanted = np.stack([np.asarray(evaluation_image(Image.fromarray(picture(n)), 80, 64)) for n in range(COUNT)])
    difference = np.abs(images.astype(int) - wanted)
    assert difference.mean(axis=(1, 2, 3)).max() < mean
    assert difference.max() <= most


def test_a_change_of_size_compiles_nothing(opened):
    loader = opened("raw")
    from image_classification.loaders import ffcv_pipeline

    compiled = ffcv_pipeline.compiled_decoder()
    assert len(compiled.signatures) == 1
    for size in (32, 48, 32, 33):
        assert whole(loader, [np.arange(10)], 1, size).shape == (10, size, size, 3)
    assert len(compiled.signatures) == 1


@pytest.mark.processes
def test_a_process_keeps_torchs_number_of_threads_and_ends_without_a_word(stores):
    code = (
        "import sys, numpy, torch\nfrom pathlib import Path\ntorch.set_num_threads(2)\n"
        "from image_classification.loaders.ffcv_loader import FfcvLoader, compile_ahead\ncompile_ahead()\n"
        "from tests.image_classification.small_image_data import CPU, FOLDER\n"
        "loader = FfcvLoader(FOLDER, Path(sys.argv[1]), CPU, train=True, seed=1)\n"
        "print(len(list(loader.batches([numpy.arange(9)] * 4, 1, 32))), torch.get_num_threads())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(stores["jpg"])], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 2\n", "")


@pytest.mark.parametrize("damage", ["cut", "noise", "tables"])
def test_a_damaged_file_is_named_before_an_image_is_read(stores, tmp_path, damage):
    shutil.copytree(stores["jpg"], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "train.beton"
    content = bytearray(path.read_bytes())
    if damage == "tables":
        begin = content.index(int(BetonImages(tmp_path, "train").index.rows["offset"][3]).to_bytes(8, "little"))
        content[begin : begin + 8] = (1 << 40).to_bytes(8, "little")
    noise = np.random.default_rng(0).bytes(len(content))
    path.write_bytes({"cut": content[: len(content) // 2], "noise": noise, "tables": content}[damage])
    with pytest.raises(DataError, match=r"train\.beton.*again"):
        FfcvLoader(data(1), tmp_path, CPU, train=True, seed=1)


def test_a_prepared_store_gives_the_crops_of_the_originals_though_images_were_made_smaller(tmp_path):
    images = given([(300, 400), (90, 60), (400, 300), (120, 500)] * 3)
    make_store(tmp_path, StoreConfig(format="beton", size=200, jpeg_share=0.5), {"train": images})
    loader = FfcvLoader(data(2), tmp_path, CPU, train=True, seed=5)
    samples = np.arange(len(images))
    (batch,) = loader.batches([samples], 2, 40)
    assert batch.labels.tolist() == [image.label for image in images]
    for number, image in enumerate(images):
        wanted = reference(Image.open(BytesIO(image.data)), number, 5, 2, 40)
        assert np.abs(batch.images[number].permute(1, 2, 0).numpy().astype(int) - wanted).mean() < 6, image.name
    loader.close()


def test_a_damaged_jpeg_is_named_as_it_was_in_the_source(tmp_path):
    images = given([(60, 80)] * 6)
    make_store(tmp_path, StoreConfig(format="beton", jpeg_share=1.0), {"train": images})
    path = tmp_path / "train.beton"
    content = bytearray(path.read_bytes())
    begin = int(BetonImages(tmp_path, "train").index.rows["offset"][4])
    content[begin : begin + 300] = bytes(300)
    path.write_bytes(content)
    loader = FfcvLoader(data(1), tmp_path, CPU, train=True, seed=5)
    with pytest.raises(DataError, match=r"train\.beton: train/bee/4\.jpg cannot be decoded"):
        list(loader.batches([np.arange(6)], 1, 32))
    loader.close()
