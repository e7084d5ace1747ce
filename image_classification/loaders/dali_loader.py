"""Loader on NVIDIA DALI, which decodes on the training GPU or in CPU threads, with the crops of `augmentation`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.augmentation import train_crops
from image_classification.centre_crop import centre_windows
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.pillow import decode
from image_classification.settings import DataConfig
from image_classification.stores.encoded import open_encoded, open_image
from judging.ground.errors import DataError
from timedrun.training.sampling import Indices

PREFETCH = 2  # batches in DALI's queue


class DaliLoader:
    """Split of a folder of images or of a store of format jpeg.

    For a CUDA device, DALI decodes on it (its "mixed" decoder) and batches stay there; otherwise DALI uses threads. In
    training, only the crop (`augmentation.train_crops`) is decoded. DALI's antialiased bilinear filter equals Pillow's
    up to rounding: pixels differ from the reference by some levels (bounded in the tests).
    """

    def __init__(self, config: DataConfig, folder: Path, device: torch.device, *, train: bool, seed: int) -> None:
        """Start `config.workers_here` decoding threads, and as many threads that read files.

        Raises:
            DataError: the folder holds no prepared images.
        """
        self.images = open_encoded(folder, "train" if train else "evaluation")
        self.train, self.seed, self.device, self.eval_resize = train, seed, device, config.eval_resize
        self.workers, self.flip = max(1, config.workers_here), config.flip
        self._readers = ThreadPoolExecutor(self.workers, thread_name_prefix="dali-read")
        self._graphs: dict[int, _Graph] = {}

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Sequence[Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        """Iterate over the batches of `parts`, images on the device; see `Loader.batches`."""
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
        self._graphs[size] = graph  # not reused after an abandoned or failed pass

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown(cancel_futures=True)
        self._graphs.clear()

    def _inputs(self, part: Indices, epoch: int, size: int) -> tuple[Any, ...]:
        """Return encoded images, crop corners, crop (train) or resized (evaluation) shapes, and flips in training."""
        read = list(self._readers.map(self._read, part.tolist()))
        sizes = np.array([image_size for _, image_size in read], dtype=np.int64)
        encoded = [data for data, _ in read]
        if self.train:
            boxes, mirrored = train_crops(self.seed, epoch, part, sizes, flip=self.flip)
            return encoded, boxes[:, :2].astype(np.int32), boxes[:, 2:].astype(np.int32), mirrored.astype(np.int32)
        corners, shapes = centre_windows(sizes, self.eval_resize, size)
        return encoded, corners.astype(np.int32), shapes.astype(np.float32)

    def _run(self, graph: _Graph, part: Indices) -> Tensor:
        """Return a copy of the next batch (n, size, size, 3), that of `part`."""
        try:
            (output,) = graph.pipeline.run()
            if self.device.type != "cuda":
                return torch.from_numpy(np.array(output.as_tensor()))
            images = torch.utils.dlpack.from_dlpack(output.as_tensor()).clone()
            torch.cuda.current_stream(self.device).synchronize()  # the next run reuses DALI's memory
            return images
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            raise DataError(self._blame(part, error)) from None

    def _read(self, sample: int) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
        """Return the encoded bytes of a sample, and (height, width) from its header."""
        data = self.images.read(sample)
        try:
            with open_image(data) as image:
                width, height = image.size
        except (OSError, SyntaxError, ValueError):
            decode(data, self.images.describe(sample))
            raise
        return np.frombuffer(data, dtype=np.uint8), (height, width)

    def _blame(self, part: Indices, error: Exception) -> str:
        """Return a message naming the file at which a batch failed, which DALI does not report."""
        for sample in part.tolist():
            try:
                decode(self.images.read(sample), self.images.describe(sample))
            except DataError as broken:
                return str(broken)
        names = ", ".join(self.images.name(sample) for sample in part[:3].tolist())
        return f"DALI failed on a batch of {len(part)} images ({names} ...), all of which Pillow can decode: {error}"


class _Graph:
    """DALI pipeline for one image size, fed from `inputs`."""

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
            batch_size=largest, num_threads=loader.workers, device_id=device_id, prefetch_queue_depth=PREFETCH
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
        """Consume the end of a pass; DALI does not start another one before."""
        try:
            self.pipeline.run()
        except StopIteration:
            self.pipeline.reset()
