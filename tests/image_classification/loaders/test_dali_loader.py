"""Tests of image_classification/loaders/dali_loader.py."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from image_classification import image_folder
from image_classification.augmentation import train_crops
from image_classification.centre_crop import centre_windows
from image_classification.loaders.dali_loader import DaliLoader
from image_classification.loaders.pillow import evaluation_image, training_image
from image_classification.loaders.registry import LOADERS
from judging.ground.errors import DataError
from tests.image_classification.small_image_data import CPU, FOLDER

needs_dali = pytest.mark.skipif(bool(LOADERS["dali"].unavailable()), reason="nvidia-dali is not installed")
SIZES = [(150, 200), (200, 150), (60, 250), (64, 64), (166, 125)]
COUNT = 20


def picture(number: int) -> Image.Image:
    """A smooth image with some texture, of a size of its own."""
    height, width = SIZES[number % len(SIZES)]
    random = np.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG in all subsamplings, and what is not plain: gray, PNG, palette, alpha, CMYK, EXIF-rotated."""
    root = tmp_path_factory.mktemp("images")
    for split in ("train", "val"):
        for number in range(COUNT):
            target = root / split / f"class{number % 2}" / f"{number:02d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            image = picture(number)
            if number == 7:
                image.convert("L").save(target, quality=95)
            elif number == 9:
                exif = Image.Exif()
                exif[274] = 6
                image.save(target, quality=95, exif=exif)
            elif number == 11:
                image.save(target.with_suffix(".png"))
            elif number == 13:
                image.quantize(64).save(target.with_suffix(".png"))
            elif number == 15:
                image.putalpha(120)
                image.save(target.with_suffix(".png"))
            elif number == 17:
                image.convert("CMYK").save(target, quality=95)
            else:
                image.save(target, quality=95, subsampling=number % 3)
    image_folder.write_index(image_folder.make_index(root, []), root)
    return root


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[..., DaliLoader]]:
    """Opens loaders, and closes them after the test."""
    loaders = []

    def open_one(where: Path = folder, *, train: bool = True, seed: int = 3, workers: int = 2) -> DaliLoader:
        config = replace(FOLDER, workers=workers, eval_resize=80)
        loaders.append(DaliLoader(config, where, CPU, train=train, seed=seed))
        return loaders[-1]

    yield open_one
    for loader in loaders:
        loader.close()


def whole(loader: DaliLoader, parts: list[np.ndarray], epoch: int, size: int) -> np.ndarray:
    """All images (n, size, size, 3) of a pass."""
    return np.concatenate([batch.images.permute(0, 2, 3, 1).numpy() for batch in loader.batches(parts, epoch, size)])


def stored(folder: Path, loader: DaliLoader, sample: int) -> Image.Image:
    """Sample as Pillow decodes it."""
    with Image.open(folder / loader.images.name(sample)) as image:
        return image.convert("RGB")


@needs_dali
@pytest.mark.parametrize("size", [24, 64])
def test_training_images_are_the_references_within_rounding(
    opened: Callable[..., DaliLoader], folder: Path, size: int
) -> None:
    loader = opened()
    order = np.random.default_rng(0).permutation(COUNT)
    images = whole(loader, [order[:8], order[8:16], order[16:]], 2, size)
    for sample, image in zip(order.tolist(), images, strict=True):
        original = stored(folder, loader, sample)
        boxes, flips = train_crops(
            3, 2, np.array([sample]), np.array([[original.height, original.width]]), flip="random"
        )
        pixels = np.asarray(training_image(original, boxes[0].tolist(), bool(flips[0]), size))
        difference = np.abs(image.astype(int) - pixels)
        assert (difference.mean(), difference.max()) <= (1.0, 12), loader.images.name(sample)


@needs_dali
def test_evaluation_images_are_the_references_within_rounding(opened: Callable[..., DaliLoader], folder: Path) -> None:
    loader = opened(train=False)
    images = whole(loader, [np.arange(12), np.arange(12, COUNT)], 0, 64)
    for sample, image in enumerate(images):
        wanted = np.asarray(evaluation_image(stored(folder, loader, sample), 80, 64))
        difference = np.abs(image.astype(int) - wanted)
        assert (difference.mean(), difference.max()) <= (1.0, 12), loader.images.name(sample)


@needs_dali
def test_a_batch_holds_exactly_the_samples_asked_for_in_any_sizes_of_parts(opened: Callable[..., DaliLoader]) -> None:
    loader = opened()
    parts = [np.array([5, 3]), np.array([], dtype=np.int64), np.array([0]), np.arange(COUNT)[::-1].copy()]
    batches = list(loader.batches(parts, 1, 32))
    assert len(loader) == COUNT
    assert [batch.labels.tolist() for batch in batches] == [loader.images.labels[part].tolist() for part in parts]
    assert [tuple(batch.images.shape) for batch in batches] == [(len(part), 3, 32, 32) for part in parts]
    assert all(batch.images.dtype == torch.uint8 and batch.labels.dtype == torch.int64 for batch in batches)
    alone = np.stack([whole(loader, [np.array([number])], 1, 32)[0] for number in range(COUNT)])
    assert np.array_equal(batches[3].images.permute(0, 2, 3, 1).numpy(), alone[::-1])


@needs_dali
def test_images_depend_on_seed_epoch_and_sample_alone_not_on_threads_or_earlier_passes(
    opened: Callable[..., DaliLoader],
) -> None:
    parts = [np.arange(0, 10), np.arange(10, 20)]
    first, second = opened(), opened(workers=1)
    later = whole(first, parts, 4, 32)
    whole(second, parts, 1, 48)
    assert np.array_equal(later, whole(second, parts, 4, 32))
    assert not np.array_equal(later, whole(first, parts, 5, 32))
    assert not np.array_equal(later, whole(opened(seed=4), parts, 4, 32))


@needs_dali
def test_leaving_a_pass_early_leaves_the_loader_fit_and_closing_ends_its_readers(
    opened: Callable[..., DaliLoader],
) -> None:
    loader = opened()
    parts = [np.arange(10)] * 8
    for _ in range(2):
        early = loader.batches(parts, 1, 32)
        first = next(early).images.clone()
        early.close()  # type: ignore[attr-defined]
    assert torch.equal(first, next(iter(loader.batches(parts, 1, 32))).images)
    loader.close()
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dali-read")]


@needs_dali
@pytest.mark.parametrize("damage", ["not an image", "no scan", "half a scan"])
def test_a_damaged_file_is_named(opened: Callable[..., DaliLoader], tmp_path: Path, damage: str) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        for number in range(6):
            picture(number).save(tmp_path / split / "a" / f"{number}.jpg")
    image_folder.write_index(image_folder.make_index(tmp_path, []), tmp_path)
    loader = opened(tmp_path)
    broken = tmp_path / "train" / "a" / "4.jpg"
    data = broken.read_bytes()
    scan = data.index(b"\xff\xda")
    begin = {"not an image": 0, "no scan": scan, "half a scan": (scan + len(data)) // 2}[damage]
    broken.write_bytes(data[:begin] + b"\0" * (len(data) - begin))
    with pytest.raises(DataError, match=r"train/a/4\.jpg: cannot be decoded"):
        list(loader.batches([np.arange(3), np.arange(3, 6)], 1, 32))
    assert len(whole(loader, [np.arange(4)], 1, 32)) == 4


@needs_dali
@pytest.mark.gpu
def test_on_a_gpu_images_come_out_there_and_are_the_references_within_rounding(folder: Path) -> None:
    config = replace(FOLDER, workers=2, eval_resize=80)
    on_gpu, on_cpu = (DaliLoader(config, folder, device, train=True, seed=3) for device in (torch.device("cuda"), CPU))
    parts = [np.arange(10), np.arange(10, COUNT)]
    for batch, wanted in zip(on_gpu.batches(parts, 1, 64), on_cpu.batches(parts, 1, 64), strict=True):
        assert batch.images.is_cuda
        assert (batch.images.cpu().int() - wanted.images.int()).abs().float().mean() < 2


def test_central_windows_are_those_of_the_reference() -> None:
    sizes = np.array([[300, 400], [401, 300], [256, 256], [1000, 257], [97, 333]])
    starts, shapes = centre_windows(sizes, 256, 224)
    for (height, width), start, shape in zip(sizes.tolist(), starts, shapes, strict=True):
        ramp = np.add.outer(np.arange(height) * 1000.0, np.arange(width)).astype(np.float32)
        image = Image.fromarray(ramp).resize((int(shape[1]), int(shape[0])), Image.Resampling.BILINEAR)
        top, left = start.tolist()
        cut = np.asarray(image.crop((left, top, left + 224, top + 224)))
        assert np.array_equal(cut, np.asarray(evaluation_image(Image.fromarray(ramp), 256, 224)))
