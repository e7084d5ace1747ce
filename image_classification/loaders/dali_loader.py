"""Batches decoded by NVIDIA DALI, on the GPU that trains or on processor threads, with crops of our own."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.augmentation import train_crops
from image_classification.centre_crop import central, resized
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.pillow import decode, described
from image_classification.stores.encoded import open_encoded
from timedrun.errors import DataError
from timedrun.training.sampling import Indices


def unavailable() -> str:
    """Why DALI cannot be used here; "" if it can, as far as can be said without importing it."""
    try:
        found = importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        return "loader dali needs nvidia-dali; pip install 'timedrun[dali]' (for CUDA 13)."
    return ""


class DaliLoader:
    """A split of a folder of images or of a store of format jpeg.

    On a CUDA device DALI decodes there (its "mixed" decoder) and batches come out there; elsewhere it uses threads. In
    training only the crop, which is `augmentation.train_crops`, is decoded. DALI's antialiased bilinear filter is
    Pillow's but for rounding: pixels differ from the reference by some levels (see the tests for how many).
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
        prefetch: int = 2,
    ) -> None:
        """Raises DataError where DALI is missing, or the folder holds no prepared images.

        Args:
            workers: threads that decode, and as many that read files. prefetch: batches that DALI works on at once.
        """
        if reason := unavailable():
            raise DataError(reason)
        self.images = open_encoded(folder, "train" if train else "evaluation")
        self.train, self.seed, self.device, self.eval_resize = train, seed, device, eval_resize
        self.workers, self.prefetch = max(1, workers), max(1, prefetch)
        self._readers = ThreadPoolExecutor(self.workers, thread_name_prefix="dali-read")
        self._graphs: dict[int, _Graph] = {}

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """As in `Loader.batches`; images are in memory of the device."""
        largest = max((len(part) for part in parts), default=0)
        graph = self._graphs.pop(size, None)
        if graph is None or graph.largest < largest:
            graph = _Graph(self, size, max(1, largest))
        graph.inputs = (self._inputs(part, epoch, size) for part in parts if len(part))
        for part in parts:
            if len(part):
                images = self._run(graph, part)
            else:
                images = torch.empty((0, size, size, 3), dtype=torch.uint8, device=self.device)
            yield LoadedBatch(images.permute(0, 3, 1, 2), torch.from_numpy(self.images.labels[part]))
        graph.rewind()
        self._graphs[size] = graph  # one whose pass was left early or failed is not used again

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown(cancel_futures=True)
        self._graphs.clear()

    def _inputs(self, part: Indices, epoch: int, size: int) -> tuple[Any, ...]:
        """What DALI needs of a batch: encoded bytes, corner and shape of the cut, and in training whether to mirror."""
        read = list(self._readers.map(self._read, part.tolist()))
        sizes = np.array([image_size for _, image_size in read], dtype=np.int64)
        encoded = [data for data, _ in read]
        if self.train:
            boxes, mirrored = train_crops(self.seed, epoch, part, sizes)
            return encoded, boxes[:, :2].astype(np.int32), boxes[:, 2:].astype(np.int32), mirrored.astype(np.int32)
        corners, shapes = centre_windows(sizes, self.eval_resize, size)
        return encoded, corners.astype(np.int32), shapes.astype(np.float32)

    def _run(self, graph: _Graph, part: Indices) -> Tensor:
        """The next batch (n, size, size, 3), which is that of `part`, copied out of DALI's memory."""
        try:
            (output,) = graph.pipeline.run()
            if self.device.type != "cuda":
                return torch.from_numpy(np.array(output.as_tensor()))
            images = torch.utils.dlpack.from_dlpack(output.as_tensor()).clone()
            torch.cuda.current_stream(self.device).synchronize()  # the next run takes DALI's memory back
            return images
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise DataError(self._blame(part, error)) from None

    def _read(self, sample: int) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
        """Encoded bytes of a sample; height and width, from the head of its file."""
        from PIL import Image

        data = self.images.read(sample)
        try:
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
        except (OSError, SyntaxError, ValueError):
            decode(data, described(self.images, sample))
            raise
        return np.frombuffer(data, dtype=np.uint8), (height, width)

    def _blame(self, part: Indices, error: Exception) -> str:
        """Which file of a failed batch it was: DALI does not know names."""
        for sample in part.tolist():
            try:
                decode(self.images.read(sample), described(self.images, sample))
            except DataError as broken:
                return str(broken)
        names = ", ".join(self.images.name(sample) for sample in part[:3].tolist())
        return f"DALI failed on a batch of {len(part)} images ({names} ...), all of which Pillow can decode: {error}"


def centre_windows(
    sizes: npt.NDArray[np.int64], resize: int, size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Corner (n, 2) of the central crop, and height and width (n, 2) of the resized image that it is cut from, as
    `pillow.evaluation_image` rounds them.
    """
    shapes = [resized(height, width, resize) for height, width in sizes.tolist()]
    corners = [(central(height, size), central(width, size)) for height, width in shapes]
    return np.array(corners, dtype=np.int64), np.array(shapes, dtype=np.int64)


class _Graph:
    """DALI's pipeline for one size of images, and where it takes its batches from."""

    def __init__(self, loader: DaliLoader, size: int, largest: int) -> None:
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        self.largest, self.inputs = largest, iter(())  # type: tuple[int, Iterator[tuple[Any, ...]]]
        device_id: int | None = None
        if on_gpu := loader.device.type == "cuda":
            device_id = torch.cuda.current_device() if loader.device.index is None else loader.device.index
        decoder = {"device": "mixed" if on_gpu else "cpu", "adjust_orientation": False, "output_type": types.RGB}
        resize = {"interp_type": types.INTERP_LINEAR, "antialias": True}
        self.pipeline = Pipeline(
            batch_size=largest, num_threads=loader.workers, device_id=device_id, prefetch_queue_depth=loader.prefetch
        )
        with self.pipeline:
            kinds = [types.UINT8, types.INT32, *([types.INT32] * 2 if loader.train else [types.FLOAT])]
            encoded, corners, shapes, *rest = fn.external_source(
                source=lambda: next(self.inputs), num_outputs=len(kinds), dtype=kinds, ndim=[1, 1, 1, 0][: len(kinds)]
            )
            if loader.train:
                images = fn.decoders.image_slice(encoded, start=corners, shape=shapes, axes=(0, 1), **decoder)
                images = fn.flip(fn.resize(images, size=(size, size), **resize), horizontal=rest[0])
            else:
                images = fn.resize(fn.decoders.image(encoded, **decoder), size=shapes, **resize)
                window = {"start": corners, "shape": (size, size), "axes": (0, 1)}
                images = fn.slice(images, out_of_bounds_policy="pad", **window)
            self.pipeline.set_outputs(images)
        self.pipeline.build()

    def rewind(self) -> None:
        """Take note of the end of a pass, without which DALI does not begin another."""
        try:
            self.pipeline.run()
        except StopIteration:
            self.pipeline.reset()
