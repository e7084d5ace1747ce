"""JPEG decoded by libjpeg-turbo in threads: no larger than the crop needs, and resized straight into the batch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.centre_crop import central, resized
from image_classification.loaders import pillow
from image_classification.loaders.decode_pool import ImageBatch, ImageMemory, LoaderThreads
from image_classification.loaders.image_ops import Pixels, ThreadMemory, mirror_into, resize_into
from image_classification.loaders.loader import LoadedBatch
from image_classification.stores.encoded import open_encoded
from timedrun.errors import DataError
from timedrun.training.sampling import Indices

DIVISORS = (8, 4, 2)  # libjpeg-turbo has vector code for these; 3/8, 5/8 ... cost more than the whole image
LARGEST = 1 << 25  # pixels; beyond it Pillow decides what is too large, and no thread keeps the memory


def unavailable() -> str:
    """What is missing here, empty if nothing."""
    if any(importlib.util.find_spec(name) is None for name in ("simplejpeg", "PIL")):
        return "loader turbojpeg needs simplejpeg and Pillow; pip install 'timedrun[vision]'."
    return ""


def divisor_of(side: int, size: int) -> int:
    """By how much a crop's shorter `side` may be divided while decoding so that `size` pixels are left."""
    return next((divisor for divisor in DIVISORS if side // divisor >= size), 1)


@dataclass(frozen=True)
class _Opened:
    """An image's file, and what its header says."""

    sample: int
    data: bytes
    height: int
    width: int
    decoded: Pixels | None = None
    """What Pillow made of it, where that had to be asked."""


class TurboJpegLoader:
    """Decodes with simplejpeg, at 1/2, 1/4 or 1/8 where the training crop stays as large as the image to be made, and
    resizes with torch's antialiased kernel. What is not a plain JPEG, or not a flawless one, Pillow decodes."""

    def __init__(
        self, folder: Path, *, train: bool, seed: int, workers: int, device: torch.device, eval_resize: int
    ) -> None:
        """`workers` threads, at least one.

        Raises:
            DataError: no readable store in `folder`, or a package is missing.
        """
        if missing := unavailable():
            raise DataError(missing)
        self._images = open_encoded(folder, "train" if train else "evaluation")
        self._train, self._seed, self._eval_resize = train, seed, eval_resize
        self._batch_memory = ImageMemory(pin=device.type == "cuda")
        self._memory = ThreadMemory()
        self._threads = LoaderThreads(max(1, workers))

    def __len__(self) -> int:
        return len(self._images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """A batch for each of `parts`, uint8 (n, 3, size, size), channels-last.

        Raises:
            DataError: an image cannot be decoded; the message names it.
        """
        fill: Callable[[Indices, Tensor], None]
        fill = partial(self._fill_training, epoch) if self._train else self._fill_evaluation
        return self._threads.batches(
            parts, lambda part: ImageBatch(part, self._images.labels, self._batch_memory.take(len(part), size), fill)
        )

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def _fill_training(self, epoch: int, samples: Indices, images: Tensor) -> None:
        rows = images.numpy()
        size = rows.shape[1]
        opened = [self._open(sample) for sample in samples.tolist()]
        sizes = np.array([(image.height, image.width) for image in opened])
        boxes, flips = train_crops(self._seed, epoch, samples, sizes)
        divisors = np.array([divisor_of(side, size) for side in boxes[:, 2:].min(axis=1).tolist()])[:, None]
        # Pixel i of an image decoded at 1/d covers i d .. (i + 1) d - 1 of the whole one; the last may stick out.
        smaller = -(-sizes // divisors)
        smaller_boxes = scaled_boxes(boxes, smaller * divisors, smaller)
        for place, image in enumerate(opened):
            pixels = self._decoded(image, *smaller[place].tolist())
            # What Pillow decoded is whole.
            box = smaller_boxes[place] if pixels.shape[:2] == tuple(smaller[place]) else boxes[place]
            top, left, height, width = box.tolist()
            crop = self._memory.contiguous("crop", pixels[top : top + height, left : left + width])
            if flips[place]:
                made = self._memory.image("made", size, size)
                resize_into(made, crop)
                mirror_into(rows[place], made)
            else:
                resize_into(rows[place], crop)

    def _fill_evaluation(self, samples: Indices, images: Tensor) -> None:
        for sample, target in zip(samples.tolist(), images.numpy(), strict=True):
            image = self._open(sample)
            height, width = resized(image.height, image.width, self._eval_resize)
            whole = self._memory.image("made", height, width)
            resize_into(whole, self._decoded(image, image.height, image.width))
            centre_into(target, whole)

    def _open(self, sample: int) -> _Opened:
        """Decodes nothing yet, if it is a plain JPEG."""
        import simplejpeg

        data = self._images.read(sample)
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours in ("YCbCr", "Gray", "RGB") and height * width <= LARGEST:
                return _Opened(sample, data, height, width)
        except ValueError:
            pass  # not a JPEG, or damaged
        pixels = self._by_pillow(sample, data)
        return _Opened(sample, data, pixels.shape[0], pixels.shape[1], pixels)

    def _by_pillow(self, sample: int, data: bytes) -> Pixels:
        return np.array(pillow.decode(data, pillow.described(self._images, sample)))

    def _decoded(self, image: _Opened, height: int, width: int) -> Pixels:
        """(height, width, 3), or whole, valid until this thread decodes the next image.

        Args:
            height, width: those of the image, or an eighth, a fourth, a half of them, rounded up.
        """
        import simplejpeg

        if image.decoded is not None:
            return image.decoded
        memory = self._memory.take("decoded", height * width * 3)
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(
                image.data, "RGB", min_height=height, min_width=width, buffer=memory
            )
        except ValueError:  # damaged, and perhaps so that Pillow decodes it all the same
            return self._by_pillow(image.sample, image.data)
        return pixels


def centre_into(target: Pixels, pixels: Pixels) -> None:
    """Writes the central part of `pixels`, with black around it where it is smaller than `target`, as Pillow's crop."""
    size = len(target)
    (top, to_top), (left, to_left) = (
        (max(begin, 0), max(-begin, 0)) for begin in (central(side, size) for side in pixels.shape[:2])
    )
    part = pixels[top : top + size - to_top, left : left + size - to_left]
    if part.shape != target.shape:
        target[:] = 0
    target[to_top : to_top + part.shape[0], to_left : to_left + part.shape[1]] = part
