"""FFCV's decoder: crops by cv2, one compilation, and damaged files by name."""

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from image_classification.augmentation import train_crops
from image_classification.stores.beton import BetonImages
from image_classification.stores.manifest import StoreConfig
from judging.ground.errors import DataError
from tests.image_classification.small_image_data import loaded, opened, pixels
from tests.image_classification.small_stores import decoded, encoded, given, make_store, smooth

pytest.importorskip("ffcv", reason="ffcv is not installed: it is built against OpenCV and libjpeg-turbo")
SIZES = [(300, 400), (400, 300), (120, 500), (64, 64), (333, 251), (480, 360), (90, 121), (500, 375)]
IMAGES = given(SIZES * 3)
RAW, JPEG = StoreConfig(format="beton", jpeg_share=0.0), StoreConfig(format="beton", jpeg_share=1.0)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the images as pixels."""
    made = tmp_path_factory.mktemp("raw")
    make_store(made, RAW, IMAGES)
    return made


def test_raw_images_are_cv2s_area_resize_of_train_crops(raw):
    cv2 = pytest.importorskip("cv2", reason="OpenCV's Python package comes with ffcv")
    boxes, flips = train_crops(3, 1, np.arange(len(IMAGES)), np.array(SIZES * 3), flip="random")
    (batch,) = loaded("ffcv", raw, [range(len(IMAGES))], 64, store=RAW, seed=3, workers=2)
    for data, made, (top, left, height, width), mirrored in zip(
        IMAGES.values(), pixels(batch), boxes, flips, strict=True
    ):
        cut = np.asarray(decoded(data))[top : top + height, left : left + width]
        wanted = cv2.resize(cut, (64, 64), interpolation=cv2.INTER_AREA)
        assert np.abs(made - (wanted[:, ::-1] if mirrored else wanted)).max() <= 1


def test_a_change_of_size_compiles_nothing(raw):
    with closing(opened("ffcv", raw, store=RAW)) as loader:
        from image_classification.loaders import ffcv_pipeline

        compiled = ffcv_pipeline.compiled_decoder()
        assert len(compiled.signatures) == 1
        for size in (32, 48, 32, 33):
            (batch,) = loader.batches([np.arange(10)], 1, size)
            assert batch.images.shape == (10, 3, size, size)
        assert len(compiled.signatures) == 1


@pytest.mark.processes
def test_a_process_keeps_torchs_number_of_threads_and_ends_without_a_word(raw):
    code = (
        "import sys, numpy, torch\nfrom pathlib import Path\ntorch.set_num_threads(2)\n"
        "from image_classification.loaders.ffcv_loader import FfcvLoader, compile_ahead\ncompile_ahead()\n"
        "from tests.image_classification.small_image_data import CPU, FOLDER\n"
        "loader = FfcvLoader(FOLDER, Path(sys.argv[1]), CPU, train=True, seed=1)\n"
        "print(len(list(loader.batches([numpy.arange(9)] * 4, 1, 32))), torch.get_num_threads())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(raw)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 2\n", "")


@pytest.mark.parametrize("damage", ["cut", "noise", "tables"])
def test_a_damaged_file_is_named_before_an_image_is_read(raw, tmp_path, damage):
    shutil.copytree(raw, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "train.beton"
    content = bytearray(path.read_bytes())
    if damage == "tables":
        begin = content.index(int(BetonImages(tmp_path, "train").rows["offset"][3]).to_bytes(8, "little"))
        content[begin : begin + 8] = (1 << 40).to_bytes(8, "little")
    noise = np.random.default_rng(0).bytes(len(content))
    path.write_bytes({"cut": content[: len(content) // 2], "noise": noise, "tables": content}[damage])
    with pytest.raises(DataError, match=r"train\.beton.*again"):
        opened("ffcv", tmp_path, store=RAW)


def test_a_damaged_jpeg_is_named_as_it_was_in_the_source(tmp_path):
    files = {f"train/ant/{number}.jpg": encoded(smooth(60, 80, number)) for number in range(6)}
    make_store(tmp_path, JPEG, files)
    path = tmp_path / "train.beton"
    content = bytearray(path.read_bytes())
    begin = int(BetonImages(tmp_path, "train").rows["offset"][4])
    content[begin : begin + 300] = bytes(300)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.beton: train/ant/4\.jpg cannot be decoded"):
        loaded("ffcv", tmp_path, [range(6)], 32, store=JPEG)
