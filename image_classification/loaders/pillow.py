"""Reference loader: Pillow in the worker processes of torch's DataLoader."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from image_classification.augmentation import train_crops
from image_classification.centre_crop import central, resized
from image_classification.loaders.loader import LoadedBatch
from image_classification.settings import DataConfig
from image_classification.stores.encoded import EncodedImages, open_encoded, open_image
from image_classification.stores.store_format import as_rgb
from judging.ground.errors import DataError
from judging.ground.file_kind import other_kind
from timedrun.training.sampling import Indices

if TYPE_CHECKING:
    from PIL import Image

PREFETCH_FACTOR = 2  # batches that a worker makes ahead


def decode(data: bytes, name: str) -> Image.Image:
    """Decode an image to RGB. Raises DataError, whose message contains `name`, if it cannot be decoded."""
    try:
        with open_image(data) as image:
            return as_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise anything on damaged files
        reason = other_kind(data) or str(error).partition(" <_io.")[0]  # drop the buffer's address
        raise DataError(f"{name}: cannot be decoded ({reason}); replace or remove it and prepare again.") from None


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
    top, left = central(height, size), central(width, size)
    return image.crop((left, top, left + size, top + size))


_Key = tuple[int, int, int]  # epoch, sample, size


class _Decoded(Dataset[Tensor | DataError]):
    """Images (size, size, 3). An error is returned, since DataLoader would wrap a raised one into a traceback."""

    def __init__(self, images: EncodedImages, config: DataConfig, *, train: bool, seed: int) -> None:
        self.images, self.train, self.seed, self.eval_resize = images, train, seed, config.eval_resize
        self.flip = config.flip
        self.current = torch.full((max(1, config.workers_here), 2), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        """(workers, 2) process id and current sample of each worker."""

    def __getitem__(self, key: _Key) -> Tensor | DataError:
        worker = get_worker_info()
        if worker is not None:
            self.current.numpy()[worker.id] = os.getpid(), key[1]
        try:
            return torch.from_numpy(np.array(self._image(key)))
        except DataError as error:
            return error

    def _image(self, key: _Key) -> Image.Image:
        epoch, sample, size = key
        image = decode(self.images.read(sample), self.images.describe(sample))
        if not self.train:
            return evaluation_image(image, self.eval_resize, size)
        sizes = np.array([[image.height, image.width]])
        boxes, flips = train_crops(self.seed, epoch, np.array([sample]), sizes, flip=self.flip)
        return training_image(image, boxes[0].tolist(), bool(flips[0]), size)


def _collated(images: list[Tensor | DataError]) -> Tensor | DataError:
    if not images:  # a rank without a sample in a short batch
        return torch.empty(0, dtype=torch.uint8)
    failed = next((image for image in images if isinstance(image, DataError)), None)
    batch: Tensor | DataError = default_collate(images) if failed is None else failed
    return batch


class PillowLoader:
    """Crop, bilinear resize and flip with Pillow: the reference pixels of the other loaders."""

    def __init__(self, config: DataConfig, folder: Path, device: torch.device, *, train: bool, seed: int) -> None:
        """With no worker the caller decodes. Workers are forked here: `batches` may run with other threads. Raises
        DataError if there is no readable store in `folder`."""
        self._folder, workers = folder, config.workers_here
        self._images = open_encoded(folder, "train" if train else "evaluation")
        self._dataset = _Decoded(self._images, config, train=train, seed=seed)
        self._plan: list[list[_Key]] = []
        self._loader: DataLoader[Tensor | DataError] | None = DataLoader(
            self._dataset,
            batch_sampler=self._plan,
            num_workers=workers,
            collate_fn=_collated,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH_FACTOR if workers else None,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # otherwise each pass would draw from the global generator
        )
        self._workers: Any = None
        """DataLoader's iterator, which owns the processes; one for all passes."""
        if workers:
            with _sigchld_handler_kept():
                self._workers = iter(self._loader)

    def __len__(self) -> int:
        return len(self._images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """Iterate over the batches of `parts`, channels-last, one pass at a time; see `Loader.batches`."""
        if self._loader is None:
            raise DataError("the image loader is closed")
        self._plan[:] = [[(epoch, int(sample), size) for sample in part] for part in parts]
        try:
            for part, images in zip(parts, self._loader, strict=True):
                if isinstance(images, DataError):
                    raise images
                pixels = images.reshape(len(part), size, size, 3).permute(0, 3, 1, 2)
                yield LoadedBatch(pixels, torch.from_numpy(self._images.labels[part]))
        except DataError:
            raise
        except Exception as error:  # DataLoader's RuntimeError, or the error of a broken connection
            if "shared memory" in str(error):  # torch's message if /dev/shm is full
                self.close()
                raise DataError(
                    f"{self._folder}: /dev/shm is too small for the batches of loader pillow's worker processes."
                    " Enlarge it (docker run --shm-size 8g, or --ipc=host), or use fewer --data.workers or"
                    " another --data.loader."
                ) from None
            if died := self._died(error):
                self.close()
                raise died from None
            raise

    def close(self) -> None:
        if self._workers is not None:
            # Explicit, because a traceback may keep the iterator alive.
            self._workers._shutdown_workers()
        self._loader = self._workers = None

    def _died(self, error: Exception) -> DataError | None:
        """Return an error if a worker died, or dies within a second: its connections break first."""
        end = time.monotonic() + 1
        while self._workers is not None:
            for process, sample in self._dataset.current.tolist():
                if process >= 0 and not _alive(process):
                    where = self._images.describe(sample)
                    return DataError(
                        f"{where}: the worker process that decoded it died ({error}). If memory ran out, use fewer "
                        "--data.workers; if it dies at this image again, replace or remove the image."
                    )
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        if self._workers is not None and not all(worker.is_alive() for worker in self._workers._workers):
            return DataError(
                f"{self._folder}: a worker process of loader pillow died before its first image ({error}). If memory"
                " ran out, use fewer --data.workers."
            )
        return None


def _alive(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def _sigchld_handler_kept() -> Iterator[None]:
    """Restore the SIGCHLD handler that DataLoader replaces.

    DataLoader's handler raises wherever the main thread is when a worker dies. Without it, the death is detected within
    5 seconds where the batch is awaited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)
