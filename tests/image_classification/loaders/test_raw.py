"""The loader of raw stores: the crops of the sampling law, the reference's evaluation images, on either path."""

from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, settings
from hypothesis import given as for_all
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.raw import RawLoader
from image_classification.stores.manifest import StoreConfig
from image_classification.stores.raw import RawImages
from tests.image_classification.small_image_data import CPU, FOLDER
from tests.image_classification.stores.small_stores import given, make_store, stored_image

SIZES = [(60, 80), (80, 60), (64, 64), (40, 200), (200, 40), (33, 90), (120, 75), (50, 51), (9, 300)]
SEED = 7


@pytest.fixture(scope="module", params=["short_side", "square"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    config = StoreConfig(format="raw", size=48, shape=request.param)
    splits = {"train": given(SIZES), "evaluation_40": given(SIZES, "val"), "evaluation_64": given(SIZES, "val")}
    make_store(folder, config, splits)
    return folder


def opened(folder: Path, *, train: bool = True, on_device: bool = False, resize: int = 40) -> RawLoader:
    config = replace(FOLDER, workers=2, eval_resize=resize)
    return RawLoader(config, folder, CPU, train=train, seed=SEED, on_device=on_device)


def finished(batch: LoadedBatch) -> NDArray[np.uint8]:
    images = batch.images if batch.finish is None else batch.finish(batch.images)
    return images.permute(0, 2, 3, 1).numpy().copy()


def loaded(loader: RawLoader, parts: list[list[int]], epoch: int, size: int) -> list[NDArray[np.uint8]]:
    try:
        return [finished(batch) for batch in loader.batches([np.array(part) for part in parts], epoch, size)]
    finally:
        loader.close()


def crops_resized(folder, part, epoch, resize):
    """The law's crops of the stored images, each resized by `resize`."""
    images = RawImages(folder, "train")
    boxes, flips = train_crops(SEED, epoch, np.array(part), images.original_sizes[part], flip="random")
    boxes = scaled_boxes(boxes, images.original_sizes[part], images.sizes[part])
    made = []
    for sample, (top, left, height, width), flip in zip(part, boxes.tolist(), flips, strict=True):
        pixels = np.asarray(resize(stored_image(images, sample)[top : top + height, left : left + width]))
        made.append(pixels[:, ::-1] if flip else pixels)
    return np.stack(made).astype(np.int64)


def by_pillow(pixels: NDArray[np.uint8], size: int) -> Image.Image:
    return Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)


def by_torch(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).unsqueeze(0)
    resized = torch.nn.functional.interpolate(image, size=(size, size), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()


@settings(max_examples=20)
@for_all(
    part=st.lists(st.integers(0, len(SIZES) - 1), min_size=1, max_size=20),
    epoch=st.integers(1, 1000),
    size=st.integers(1, 110),
)
@example(part=[2], epoch=347, size=84)
def test_training_images_are_crops_resized_as_by_pillow(store, part, epoch, size):
    (by_threads,) = loaded(opened(store, on_device=False), [part], epoch, size)
    (on_device,) = loaded(opened(store, on_device=True), [part], epoch, size)
    assert (by_threads == crops_resized(store, part, epoch, partial(by_torch, size=size))).all()
    wanted = crops_resized(store, part, epoch, partial(by_pillow, size=size))
    assert np.abs(wanted - on_device).max() <= 1
    # torch's own 8-bit kernel, whose weights are shorter than Pillow's: in 25 of 20,000 random crops a value is 2 off.
    assert np.abs(wanted - by_threads).max() <= 2


def test_evaluation_images_are_torchvisions_pixel_by_pixel(store, torchvision):
    from torchvision import transforms

    files = given(SIZES, "val")
    part = [8, 0, 3, 1, 2, 7, 6, 5, 4]
    for resize, size in ((40, 40), (40, 33), (64, 56)):
        reference = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
        wanted = [np.asarray(reference(Image.open(BytesIO(files[sample].data)).convert("RGB"))) for sample in part]
        for on_device in (False, True):
            (images,) = loaded(opened(store, train=False, resize=resize, on_device=on_device), [part], 0, size)
            assert (images == np.stack(wanted)).all()


@pytest.mark.gpu
def test_crops_resized_on_a_gpu_are_those_of_the_threads(store):
    part = np.arange(len(SIZES))
    device = torch.device("cuda")
    loader = RawLoader(replace(FOLDER, workers=2, eval_resize=40), store, device, train=True, seed=SEED)
    (batch,) = loader.batches([part], 1, 32)
    loader.close()
    assert batch.images.is_pinned()
    assert batch.finish is not None
    images = batch.finish(batch.images.to(device, non_blocking=True)).permute(0, 2, 3, 1).cpu().numpy()
    (wanted,) = loaded(opened(store, on_device=False), [part.tolist()], 1, 32)
    assert np.abs(images.astype(int) - wanted).max() <= 1
