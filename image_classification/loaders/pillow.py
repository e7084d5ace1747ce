"""The reference loader: Pillow in the worker processes of torch's DataLoader."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from image_classification.augmentation import train_crops
from image_classification.centre_crop import central, resized
from image_classification.loaders.loader import LoadedBatch
from image_classification.stores.encoded import EncodedImages, open_encoded
from timedrun.errors import DataError
from timedrun.training.sampling import Indices

if TYPE_CHECKING:
    from PIL import Image

PREFETCH_FACTOR = 2  # batches a worker makes ahead


def unavailable() -> str:
    """What is missing here, empty if nothing."""
    if importlib.util.find_spec("PIL") is None:
        return "loader pillow needs Pillow; pip install 'timedrun[vision]'."
    return ""


def decode(data: bytes, name: str) -> Image.Image:
    """An encoded image as RGB.

    Raises:
        DataError: it cannot be decoded; `name` is in the message.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise anything on damaged files
        reason = str(error).partition(" <_io.")[0]  # Pillow shows the buffer's address
        raise DataError(
            f"{name}: cannot be decoded ({reason}); replace it, or leave it out, and prepare again."
        ) from None


def described(images: EncodedImages, index: int) -> str:
    """Which image it is, and the file that holds it, for a message."""
    file, name = images.file_of(index).as_posix(), images.name(index)
    return file if file.endswith(name) else f"{file}: {name}"


def training_image(image: Image.Image, box: Sequence[int], flip: bool, size: int) -> Image.Image:
    """The part of `image` in `box` (top, left, height, width), `size` x `size`, mirrored where `flip`."""
    from PIL import Image

    top, left, height, width = box
    image = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image


def evaluation_image(image: Image.Image, resize: int, size: int) -> Image.Image:
    """Short side to `resize` (bilinear), then the central `size` x `size`, as torchvision's Resize and CenterCrop."""
    from PIL import Image

    height, width = resized(image.height, image.width, resize)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    top, left = central(height, size), central(width, size)
    return image.crop((left, top, left + size, top + size))


class _Key(NamedTuple):
    """An image to be made, whole, so that it depends on nothing else."""

    epoch: int
    sample: int
    size: int


class _Decoded(Dataset[Tensor | DataError]):
    """Makes one image (size, size, 3) a call. An unreadable one is returned as its error, since DataLoader would wrap
    an exception's message into a traceback."""

    def __init__(self, images: EncodedImages, *, train: bool, seed: int, eval_resize: int, workers: int) -> None:
        self.images, self.train, self.seed, self.eval_resize = images, train, seed, eval_resize
        self.now = torch.full((max(1, workers), 2), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        """Of each worker: its process, and the sample that it works on."""

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: _Key) -> Tensor | DataError:
        worker = get_worker_info()
        if worker is not None:
            self.now.numpy()[worker.id] = os.getpid(), key.sample
        try:
            return torch.from_numpy(np.array(self._image(key)))
        except DataError as error:
            return error

    def _image(self, key: _Key) -> Image.Image:
        image = decode(self.images.read(key.sample), described(self.images, key.sample))
        if not self.train:
            return evaluation_image(image, self.eval_resize, key.size)
        sizes = np.array([[image.height, image.width]])
        boxes, flips = train_crops(self.seed, key.epoch, np.array([key.sample]), sizes)
        return training_image(image, boxes[0].tolist(), bool(flips[0]), key.size)


def _collated(images: list[Tensor | DataError]) -> Tensor | DataError:
    failed = next((image for image in images if isinstance(image, DataError)), None)
    batch: Tensor | DataError = default_collate(images) if failed is None else failed
    return batch


class PillowLoader:
    """Crop, bilinear resize and flip by Pillow. Its pixels are what other loaders are held to."""

    def __init__(
        self, folder: Path, *, train: bool, seed: int, workers: int, device: torch.device, eval_resize: int
    ) -> None:
        """With 0 `workers` the caller decodes. Others are forked here: batches() may run beside other threads.

        Raises:
            DataError: no readable store in `folder`, or Pillow is missing.
        """
        if missing := unavailable():
            raise DataError(missing)
        self._folder = folder
        self._images = open_encoded(folder, "train" if train else "evaluation")
        self._dataset = _Decoded(self._images, train=train, seed=seed, eval_resize=eval_resize, workers=workers)
        self._plan: list[list[_Key]] = []
        self._loader: DataLoader[Tensor | DataError] | None = DataLoader(
            self._dataset,
            batch_sampler=self._plan,
            num_workers=workers,
            collate_fn=_collated,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH_FACTOR if workers else None,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # or each pass would draw from the global one
        )
        self._workers: Any = None
        """DataLoader's iterator, one for all passes, to which the processes belong."""
        if workers:
            with _same_child_signal():
                self._workers = iter(self._loader)

    def __len__(self) -> int:
        return len(self._images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """A batch for each of `parts`, uint8 (n, 3, size, size), channels-last. One pass at a time.

        Raises:
            DataError: an image cannot be decoded, or a worker died; the message names it.
        """
        if self._loader is None:
            raise DataError("this loader of images was closed")
        self._plan[:] = [[_Key(epoch, int(sample), size) for sample in part] for part in parts]
        try:
            for part, images in zip(parts, self._loader, strict=True):
                if isinstance(images, DataError):
                    raise images
                yield LoadedBatch(images.permute(0, 3, 1, 2), torch.from_numpy(self._images.labels[part]))
        except DataError:
            raise
        except Exception as error:  # RuntimeError of DataLoader, or what a connection to a dying process gives
            if "shared memory" in str(error):  # torch's words where a worker's batch finds no room in /dev/shm
                self.close()
                raise DataError(
                    f"{self._folder}: the worker processes of loader pillow have no room in /dev/shm for their batches."
                    " Give the container more (docker run --shm-size 8g, or --ipc=host), or use fewer --data.workers or"
                    " another --data.loader."
                ) from None
            if died := self._died(error):
                self.close()
                raise died from None
            raise

    def close(self) -> None:
        """End the workers."""
        if self._workers is not None:
            # Dropping it would do, if no traceback held it.
            self._workers._shutdown_workers()
        self._loader = self._workers = None

    def _died(self, error: Exception) -> DataError | None:
        """What to say if a worker is gone, or goes within a second: its connections break first."""
        end = time.monotonic() + 1
        while self._workers is not None:
            for process, sample in self._dataset.now.tolist():
                if process >= 0 and not _alive(process):
                    where = described(self._images, sample)
                    return DataError(
                        f"{where}: the worker process that decoded it died ({error}). If memory ran out, use fewer "
                        "--data.workers; if it dies at this image again, replace or leave out the image."
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
def _same_child_signal() -> Iterator[None]:
    """Puts SIGCHLD's handler back. DataLoader's raises in whatever the main thread does when a worker dies, instead of
    where its batch is awaited; without it the death is found there, within 5 seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)
