"""Loader for .beton files on FFCV's compiled decoder, with the order, crops and threads of this package."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.centre_crop import central_boxes, resized
from image_classification.loaders.decode_pool import DecodePool
from image_classification.loaders.loader import LoadedBatch
from image_classification.settings import DataConfig
from image_classification.stores.beton import BetonImages, loading_ffcv
from timedrun.methods.training.sampling import Indices

SLICE = 32  # images per call of compiled code; a call takes as long as decoding a tenth of an image


class FfcvLoader:
    """Split of a store of format beton.

    FFCV's reader opens the file; its native code decodes and resizes in threads of this package. The first loader of a
    process compiles (seconds, once for all files and image sizes) before it opens its file; `compile_ahead` does so
    before the clock starts. Crops and flips are `augmentation.train_crops`, drawn on the original's size and rounded to
    stored pixels.

    FFCV resizes with cv2's INTER_AREA and decodes JPEG with the fast DCT; the reference (Pillow) has a triangle filter,
    so sharp edges and fine texture differ. Evaluation crops the reference's central area from the stored image, in
    whole pixels, and resizes once. Difference from the reference at 224 of 256 on Caltech-101, of 255 levels: mean
    2.8 raw, 3.4 as JPEG; worst image 12, single pixels of line drawings over 200.
    """

    def __init__(self, config: DataConfig, folder: Path, device: torch.device, *, train: bool, seed: int) -> None:
        """Raise DataError if ffcv does not load, or the file is missing or damaged."""
        self.train, self.seed, self.eval_resize, self.flip = train, seed, config.eval_resize, config.flip
        self.store = BetonImages(folder, "train" if train else "evaluation")
        with loading_ffcv():
            from image_classification.loaders.ffcv_pipeline import BetonFile

            self.images = BetonFile(self.store)
        self._threads = DecodePool(max(1, config.workers_here), device, slice_size=SLICE)

    def __len__(self) -> int:
        return len(self.store)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:

        def fill(samples: Indices, images: Tensor) -> None:
            self.images.decode(samples % len(self), self.crops(samples, epoch, size), images.numpy())

        return self._threads.images(parts, self.store.labels, size, fill)

    def crops(self, samples: Indices, epoch: int, size: int) -> npt.NDArray[np.int64]:
        """Return (n, 5) top, left, height, width in stored pixels, and 1 to mirror."""
        rows = samples % len(self)
        stored = self.store.sizes[rows]
        crops = np.zeros((len(samples), 5), dtype=np.int64)
        if self.train:
            sizes = self.store.original_sizes[rows]
            boxes, crops[:, 4] = train_crops(self.seed, epoch, samples, sizes, flip=self.flip)
            crops[:, :4] = scaled_boxes(boxes, sizes, stored)
        else:
            # FFCV's CenterCrop (ffcv/fields/rgb_image.py) differs by rounding every edge inwards.
            shapes = np.array([resized(height, width, self.eval_resize) for height, width in stored.tolist()])
            crops[:, :4] = scaled_boxes(central_boxes(shapes, size), shapes, stored)
        return crops

    def close(self) -> None:
        self._threads.close()


def compile_ahead() -> None:
    """Compile the decoder; raise DataError if ffcv does not load."""
    with loading_ffcv():
        from image_classification.loaders import ffcv_pipeline

        ffcv_pipeline.compiled_decoder()
