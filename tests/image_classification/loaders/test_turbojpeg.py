"""JPEG decoding in threads: crops and pixels of the reference, unusual files, and errors."""

from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from image_classification.augmentation import train_crops
from image_classification.loaders.pillow import PillowLoader
from image_classification.loaders.turbojpeg import TurboJpegLoader, divisor_of
from judging.ground.errors import DataError
from tests.image_classification.loaders.jpeg_folders import make_folder, make_shards, photographs
from tests.image_classification.small_image_data import CPU, FOLDER
from tests.image_classification.stores.small_stores import encoded, smooth

RESIZE = 72

simplejpeg = pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")


def _open(folder: Path, *, train: bool = True, workers: int = 2) -> AbstractContextManager[TurboJpegLoader]:
    config = replace(FOLDER, workers=workers, eval_resize=RESIZE)
    return closing(TurboJpegLoader(config, folder, CPU, train=train, seed=0))


def _images(folder: Path, samples: list[int], size: int, *, train: bool, epoch: int = 1, workers: int = 2) -> Tensor:
    with _open(folder, train=train, workers=workers) as loader:
        (batch,) = loader.batches([np.array(samples)], epoch, size)
        return batch.images


def _reference(folder: Path, samples: list[int], size: int, *, train: bool, epoch: int = 1) -> Tensor:
    loader = PillowLoader(replace(FOLDER, eval_resize=RESIZE), folder, CPU, train=train, seed=0)
    (batch,) = loader.batches([np.array(samples)], epoch, size)
    return batch.images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder"), photographs(40))


@pytest.mark.parametrize(("train", "size"), [(False, 64), (True, 120)], ids=["evaluation", "undivided crops"])
def test_images_decoded_whole_are_the_references_to_two_levels(folder, train, size):
    ours, theirs = (made(folder, list(range(40)), size, train=train) for made in (_images, _reference))
    difference = (ours.int() - theirs.int()).abs()
    assert difference.max() <= 2
    assert difference.float().mean() < 0.3


def test_divided_training_crops_are_the_references_to_half_a_pixel_of_the_result(tmp_path):
    # The levels of a ramp are positions, so a mean difference is a shift of the crop.
    height, width = 397, 503
    ramp = np.zeros((height, width, 3), dtype=np.uint8)
    ramp[:, :, 0] = np.linspace(0, 255, width).round()
    ramp[:, :, 1] = np.linspace(0, 255, height).round()[:, None]
    files = {f"train/a/{n:02d}.jpg": encoded(Image.fromarray(ramp), quality=98, subsampling=0) for n in range(40)}
    folder, size, samples = make_folder(tmp_path, files), 32, np.arange(40)
    boxes, _ = train_crops(0, 1, samples, np.full((40, 2), (height, width)), flip="random")
    divisors = [divisor_of(min(box[2:]), size) for box in boxes.tolist()]
    assert {2, 4, 8} <= set(divisors)
    ours, theirs = (made(folder, samples.tolist(), size, train=True).float() for made in (_images, _reference))
    for image, reference, box, divisor in zip(ours, theirs, boxes.tolist(), divisors, strict=True):
        for channel, side in ((0, width), (1, height)):
            moved = abs((image[channel] - reference[channel]).mean().item()) * side / 255  # pixels of the original
            assert moved <= divisor / 2 + 0.5  # edges lie at multiples of the divisor; 0.5: levels are whole
            assert divisor / 2 <= min(box[2:]) / size / 2


@pytest.mark.parametrize(("side", "size", "divisor"), [(87, 88, 1), (175, 88, 1), (176, 88, 2), (351, 88, 2)])
def test_a_crop_is_never_decoded_smaller_than_the_image_made_of_it(side, size, divisor):
    assert divisor_of(side, size) == divisor
    assert [divisor_of(factor * size, size) for factor in (4, 7, 8, 100)] == [4, 4, 8, 8]


def test_images_of_other_kinds_match_the_reference(tmp_path):
    image, small = smooth(300, 260), smooth(90, 113)
    files = {
        "train/a/0.png": encoded(image, "PNG"),
        "train/a/1.png": encoded(image, "PNG", "P"),
        "train/a/2.png": encoded(image, "PNG", "RGBA"),
        "train/a/3.jpg": encoded(image, mode="CMYK"),
        "train/a/4.jpg": encoded(image, "WEBP"),  # as named, as not
        "train/a/5.bmp": encoded(image, "BMP"),
        "train/a/6.jpg": encoded(small, mode="L"),
        "train/a/7.jpg": encoded(small, progressive=True),
        "train/a/8.jpg": encoded(small, subsampling=0),
        "train/a/9.jpg": encoded(small, restart_marker_rows=2),
    }
    folder = make_folder(tmp_path, files)
    for train, size, count in ((True, 31, 6), (True, 64, 10), (False, 64, 10)):  # at 31 plain JPEG is decoded smaller
        ours, theirs = (made(folder, list(range(count)), size, train=train).int() for made in (_images, _reference))
        difference = (ours - theirs).abs().amax((1, 2, 3))
        assert (difference[:6] <= 1).all() and (difference[6:] <= 2).all(), (train, size)


def test_a_jpeg_that_only_pillow_accepts_is_decoded_by_pillow(tmp_path):
    whole = encoded(smooth(300, 260))
    scan = whole.index(b"\xff\xda")
    odd = whole[:scan] + b"\x00\x00" + whole[scan:]  # rubbish before a marker: libjpeg warns and goes on
    with pytest.raises(ValueError):
        simplejpeg.decode_jpeg(odd, "RGB")
    folder = make_folder(tmp_path, {"train/a/0.jpg": odd})
    for train, size in ((True, 30), (False, 64)):
        ours, theirs = (made(folder, [0], size, train=train) for made in (_images, _reference))
        assert (ours.int() - theirs.int()).abs().max() <= 2


@pytest.mark.parametrize("share", [0.0, 0.01, 0.95])
@pytest.mark.parametrize("train", [True, False])
def test_a_truncated_file_is_an_error_with_its_name(tmp_path, share, train):
    files = photographs(12)
    name = "train/b/007.jpg"
    files[name] = files[name][: int(len(files[name]) * share)]
    stores = [make_folder(tmp_path / "folder", files)]
    if share >= 0.5:  # preparation lets nothing else into shards
        stores.append(make_shards(tmp_path / "shards", files))
    for store in stores:
        with _open(store, train=train) as loader:
            with pytest.raises(DataError, match=r"b/007.jpg: cannot be decoded"):
                list(loader.batches([np.arange(12)], 1, 32))
            assert len(list(loader.batches([np.array([0, 1])], 1, 32))) == 1


def test_exif_rotation_is_ignored(tmp_path):
    image, exif = smooth(80, 120), Image.Exif()
    exif[0x0112] = 6
    files = {"train/a/0.jpg": encoded(image, exif=exif), "train/a/1.jpg": encoded(image)}
    made = _images(make_folder(tmp_path, files), [0, 1], 64, train=False)
    assert torch.equal(made[0], made[1])
