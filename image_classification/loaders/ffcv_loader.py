"""Batches from FFCV's .beton files through its compiled decoder, with order, crops and threads of our own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.augmentation import scaled_boxes, train_crops
from image_classification.centre_crop import central, resized
from image_classification.loaders.decode_pool import ImageBatch, ImageMemory, LoaderThreads
from image_classification.loaders.loader import LoadedBatch
from image_classification.stores.beton import BetonImages, beton_name
from image_classification.stores.manifest import MANIFEST
from timedrun.errors import DataError
from timedrun.training.sampling import Indices

if TYPE_CHECKING:
    from image_classification.loaders.ffcv_pipeline import BetonFile

SLICE = 32  # images a call of compiled code: a call costs as much Python as decoding a tenth of an image


def unavailable() -> str:
    """Why FFCV cannot be used here; "" if it can, as far as can be said without importing it."""
    if importlib.util.find_spec("ffcv") is None:
        return (
            "loader ffcv needs ffcv, which is built on installation: apt-get install g++ pkg-config libopencv-dev "
            "libturbojpeg0-dev (Debian's names), then pip install 'timedrun[ffcv]'."
        )
    return ""


class FfcvLoader:
    """A split of a store of format beton.

    FFCV's reader opens the file; its native code decodes and resizes, in our threads. The first loader of a process
    compiles (seconds, one time for all files and sizes of images) before it touches its file; `compile_ahead` does it
    earlier, before a clock runs. The crop and flip of a sample are `augmentation.train_crops`, drawn on the
    original's size and rounded to the pixels of what is stored. In a folder without a manifest, with files that FFCV's
    own writer made, the stored size is all there is: an image that was made smaller on the way in gets crops of the
    same law, but other ones.

    FFCV resizes by cv2's INTER_AREA and decodes JPEG with the fast DCT; the reference (Pillow) resizes by a triangle
    filter, so sharp edges and fine texture differ. Evaluation cuts the reference's central crop out of the stored
    image, in whole pixels, and resizes once. Against the reference at 224 of 256 on Caltech-101, of 255 levels: mean
    2.8 raw, 3.4 as JPEG; worst image 12, single pixels of line drawings over 200.
    """

    def __init__(
        self,
        folder: Path,
        *,
        train: bool,
        seed: int,
        workers: int,
        device: torch.device,
        eval_resize: int,
        prefetch: int = 3,
    ) -> None:
        """Raises DataError where ffcv is missing, or the file is missing or damaged.

        Args:
            workers: threads. prefetch: batches made ahead of the one handed over.
        """
        self.train, self.seed, self.eval_resize = train, seed, eval_resize
        split = "train" if train else "evaluation"
        self.store = BetonImages(folder, split) if (folder / MANIFEST).is_file() else None
        if self.store is None:
            self.images = open_beton(folder / beton_name(split))
        else:
            self.images = open_beton(self.store.path, self.store.name)
            if not np.array_equal(self.images.labels, self.store.labels):
                raise DataError(f"{self.store.path}: its labels are not those of the store's table; prepare it again.")
        self._memory = ImageMemory(pin=device.type == "cuda")
        self._threads = LoaderThreads(max(1, workers), ahead=max(1, prefetch), slice_size=SLICE)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """As in `Loader.batches`; parts may have any sizes."""

        def fill(samples: Indices, images: Tensor) -> None:
            self.images.decode(samples, self.crops(samples, epoch, size), images.numpy())

        def start(part: Indices) -> ImageBatch:
            return ImageBatch(part, self.images.labels, self._memory.take(len(part), size), fill)

        return self._threads.batches(parts, start)

    def crops(self, samples: Indices, epoch: int, size: int) -> npt.NDArray[np.int64]:
        """(n, 5) top, left, height, width in stored pixels, and 1 where mirrored."""
        stored = self.images.sizes(samples)
        crops = np.zeros((len(samples), 5), dtype=np.int64)
        if self.train:
            sizes = stored if self.store is None else self.store.original_sizes[samples]
            boxes, crops[:, 4] = train_crops(self.seed, epoch, samples, sizes)
            crops[:, :4] = boxes if self.store is None else scaled_boxes(boxes, sizes, stored)
        else:
            crops[:, :4] = centre_boxes(stored, self.eval_resize, size)
        return crops

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


def centre_boxes(stored: npt.NDArray[np.int64], resize: int, size: int) -> npt.NDArray[np.int64]:
    """(n, 4) top, left, height, width, in stored pixels, of what the reference's resize and central crop leave.

    FFCV's CenterCrop (ffcv/fields/rgb_image.py) takes nearly the same part, but rounds every edge inwards.
    """
    shapes = np.array([resized(height, width, resize) for height, width in stored.tolist()], dtype=np.int64).reshape(
        -1, 2
    )
    corners = [[central(height, size), central(width, size)] for height, width in shapes.tolist()]
    boxes = np.concatenate([np.reshape(corners, (-1, 2)), np.full_like(shapes, size)], axis=1)
    return scaled_boxes(boxes.astype(np.int64), shapes, stored)


def open_beton(path: Path, name: Callable[[int], str] = "image {}".format) -> BetonFile:
    """The images of a .beton file, through FFCV; errors call image i `name(i)`.

    Raises:
        DataError: ffcv is missing or does not load; the file is missing or damaged.
    """
    return _with_ffcv(lambda pipeline: pipeline.BetonFile(path, name))  # type: ignore[no-any-return]


def compile_ahead() -> None:
    """Compile what loaders need, which touches no data. Raises DataError where ffcv is missing or does not load."""
    _with_ffcv(lambda pipeline: pipeline.compiled_decoder())


def stock_loader(
    folder: Path,
    *,
    train: bool,
    seed: int,
    workers: int,
    size: int,
    batch: int,
    eval_resize: int,
    order: str = "random",
) -> Any:
    """FFCV's own loader, as ffcv-imagenet sets it up; it gives (images uint8 (n, 3, size, size), labels).

    For comparison only: its crops are FFCV's, its last batch may be dropped, its batches lie in memory that it uses
    again, and it compiles for some seconds within its first epoch.

    Raises:
        DataError: ffcv is missing or does not load.
    """
    return _with_ffcv(
        lambda pipeline: pipeline.stock_loader(
            folder / beton_name("train" if train else "evaluation"),
            train=train,
            size=size,
            batch=batch,
            workers=workers,
            seed=seed,
            order=order,
            resize=eval_resize,
        )
    )


def _with_ffcv(use: Any) -> Any:
    """`use(ffcv_pipeline)`, with torch's number of threads put back: ffcv sets it when imported and when opened."""
    if reason := unavailable():
        raise DataError(reason)
    threads = torch.get_num_threads()
    try:
        from image_classification.loaders import ffcv_pipeline

        return use(ffcv_pipeline)
    except ImportError as error:
        raise DataError(
            f"loader ffcv: ffcv does not load ({error}). It needs the libraries that it was built with (Debian: "
            "libopencv-dev, libturbojpeg0-dev); install them or build it again: pip install --force-reinstall "
            "'timedrun[ffcv]'."
        ) from None
    finally:
        torch.set_num_threads(threads)
