"""Loader that decodes JPEG with libjpeg-turbo in threads, downscaled while decoding if the crop allows it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.centre_crop import central_boxes, resized
from image_classification.loaders.crop_kernel import copy_in_chunks, resize_into, scripted
from image_classification.loaders.decode_pool import Pixels, ThreadBuffers
from image_classification.loaders.pillow import PillowLoader
from image_classification.settings import DataConfig
from timedrun.methods.training.sampling import Indices

DIVISORS = (8, 4, 2)  # libjpeg-turbo has vector code for these; 3/8, 5/8 ... cost more than full size
LARGEST = 1 << 25  # pixels; larger images are left to Pillow's limits, and no thread keeps the memory


def divisor_of(side: int, size: int) -> int:
    """Return by how much decoding may downscale a crop whose shorter side is `side` so that `size` pixels remain."""
    return next((divisor for divisor in DIVISORS if side // divisor >= size), 1)


@dataclass(frozen=True)
class _Opened:
    """Encoded image and the size in its header."""

    sample: int
    data: bytes
    height: int
    width: int
    decoded: Pixels | None = None
    """Set if Pillow had to decode it."""


class TurboJpegLoader(PillowLoader):
    """Decode with simplejpeg and resize with torch's antialiased kernel.

    Training crops at least 2, 4 or 8 times the output are decoded at 1/2, 1/4 or 1/8. Pillow decodes files that are not
    plain JPEG or have defects.
    """

    def __init__(self, config: DataConfig, folder: Path, device: torch.device, *, train: bool, seed: int) -> None:
        super().__init__(config, folder, device, train=train, seed=seed)
        self._buffers = ThreadBuffers()

    def _fill_training(self, epoch: int, samples: Indices, images: Tensor) -> None:
        size = images.shape[1]
        opened = [self._open(sample) for sample in (samples % len(self)).tolist()]
        sizes = np.array([(image.height, image.width) for image in opened])
        boxes, flips = train_crops(self._seed, epoch, samples, sizes, flip=self._flip)
        divisors = np.array([divisor_of(side, size) for side in boxes[:, 2:].min(axis=1).tolist()])[:, None]
        # Pixel i of an image decoded at 1/d covers pixels i d .. (i + 1) d - 1 of the original; the last may exceed it.
        smaller = -(-sizes // divisors)
        smaller_boxes = scaled_boxes(boxes, smaller * divisors, smaller)
        for number, image in enumerate(opened):
            pixels = self._decoded(image, *smaller[number].tolist())
            # Pillow decodes at full size.
            box = smaller_boxes[number] if pixels.shape[:2] == tuple(smaller[number]) else boxes[number]
            top, left, height, width = box.tolist()
            crop = torch.from_numpy(pixels)[top : top + height, left : left + width]
            memory = torch.from_numpy(self._buffers.take("memory", crop.numel() + size**2 * 3))
            scripted(resize_into)(images[number], crop, bool(flips[number]), memory)

    def _fill_evaluation(self, samples: Indices, images: Tensor) -> None:
        for sample, target in zip(samples.tolist(), images, strict=True):
            image = self._open(sample)
            height, width = resized(image.height, image.width, self._eval_resize)
            whole = torch.from_numpy(self._buffers.take("resized", height * width * 3)).view(height, width, 3)
            pixels = torch.from_numpy(self._decoded(image, image.height, image.width))
            scripted(resize_into)(whole, pixels, False, whole)
            top, left = central_boxes(np.array([[height, width]]), len(target))[0, :2].tolist()
            copy_in_chunks(target, whole[top : top + len(target), left : left + len(target)], False)

    def _open(self, sample: int) -> _Opened:
        import simplejpeg

        data = self._images.read(sample)
        try:
            height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
            if colors in ("YCbCr", "Gray", "RGB") and height * width <= LARGEST:
                return _Opened(sample, data, height, width)
        except ValueError:
            pass  # not a JPEG, or damaged
        pixels = np.array(self._by_pillow(sample))
        return _Opened(sample, data, pixels.shape[0], pixels.shape[1], pixels)

    def _decoded(self, image: _Opened, height: int, width: int) -> Pixels:
        """Return pixels (height, width, 3), or full size if Pillow decoded; valid until this thread's next call."""
        import simplejpeg

        if image.decoded is not None:
            return image.decoded
        memory = self._buffers.take("decoded", height * width * 3)
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(
                image.data, "RGB", min_height=height, min_width=width, buffer=memory
            )
        except ValueError:  # damaged, but Pillow may still decode it
            return np.array(self._by_pillow(image.sample))
        return pixels
