"""Reference loader: Pillow in threads, whose decoders and filters hold no lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from image_classification.augmentation import train_crops
from image_classification.centre_crop import central_boxes, resized
from image_classification.loaders.decode_pool import DecodePool, FillImages
from image_classification.loaders.loader import LoadedBatch
from image_classification.settings import DataConfig
from image_classification.stores.encoded import JpegShards, decoding
from image_classification.stores.store_format import UnusableImage, as_rgb
from judging.ground.errors import DataError
from timedrun.methods.training.sampling import Indices

if TYPE_CHECKING:
    from PIL import Image


def decode(data: bytes, name: str) -> Image.Image:
    """Decode an image to RGB. Raises DataError, whose message contains `name`, if it cannot be decoded."""
    try:
        with decoding(data) as image:
            return as_rgb(image)
    except UnusableImage as error:
        raise DataError(f"{name}: cannot be decoded ({error}); replace or remove it and prepare again.") from None


def training_image(image: Image.Image, box: Sequence[int], flip: bool, size: int) -> Image.Image:
    """Crop `image` to `box` (top, left, height, width), resize to `size` x `size` and mirror if `flip`."""
    from PIL import Image

    top, left, height, width = box
    image = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image


def evaluation_image(image: Image.Image, resize: int, size: int) -> Image.Image:
    """Resize the short side (bilinear) and crop the central `size` x `size`, as torchvision's Resize and CenterCrop."""
    from PIL import Image

    height, width = resized(image.height, image.width, resize)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    top, left = central_boxes(np.array([[height, width]]), size)[0, :2].tolist()
    return image.crop((left, top, left + size, top + size))


class PillowLoader:
    """Crop, bilinear resize and flip with Pillow: the reference pixels of the other loaders."""

    def __init__(self, config: DataConfig, folder: Path, device: torch.device, *, train: bool, seed: int) -> None:
        """Raise DataError if there is no readable store in `folder`."""
        self._images = JpegShards(folder, "train" if train else "evaluation")
        self._train, self._seed, self._eval_resize, self._flip = train, seed, config.eval_resize, config.flip
        self._threads = DecodePool(max(1, config.workers_here), device)

    def __len__(self) -> int:
        return len(self._images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        fill: FillImages = partial(self._fill_training, epoch) if self._train else self._fill_evaluation
        return self._threads.images(parts, self._images.labels, size, fill)

    def close(self) -> None:
        self._threads.close()

    def _fill_training(self, epoch: int, samples: Indices, images: Tensor) -> None:
        for number, target in enumerate(images.numpy()):
            image = self._by_pillow(samples[number] % len(self))
            sizes = np.array([[image.height, image.width]])
            boxes, flips = train_crops(self._seed, epoch, samples[number : number + 1], sizes, flip=self._flip)
            target[:] = np.asarray(training_image(image, boxes[0].tolist(), bool(flips[0]), len(target)))

    def _fill_evaluation(self, samples: Indices, images: Tensor) -> None:
        for sample, target in zip(samples.tolist(), images.numpy(), strict=True):
            target[:] = np.asarray(evaluation_image(self._by_pillow(sample), self._eval_resize, len(target)))

    def _by_pillow(self, sample: int) -> Image.Image:
        return decode(self._images.read(sample), self._images.describe(sample))
