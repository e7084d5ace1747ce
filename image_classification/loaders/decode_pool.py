"""Thread pool that fills several batches at a time, slice by slice, and yields them in order."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.loaders.loader import LoadedBatch
from timedrun.methods.training.sampling import Indices

Pixels = npt.NDArray[np.uint8]
FillImages = Callable[[Indices, Tensor], None]
"""(samples, images): write k images uint8 (k, size, size, 3)."""
FillSlice = Callable[[int, int], None]
"""Make images begin .. end of a batch. Called from any thread, concurrently, once per image."""
SLICE = 8  # images per task: small enough to share a batch among threads, large enough to amortize a task's overhead
AHEAD = 3  # batches


class DecodePool:
    """Fixed number of threads that work on up to AHEAD batches beyond the one handed over, in memory for `device`."""

    def __init__(self, threads: int, device: torch.device, *, slice_size: int = SLICE) -> None:
        self._pin, self.slice_size = device.type == "cuda", slice_size
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="loader")

    def batches(
        self, parts: Sequence[Indices], start: Callable[[Indices], tuple[LoadedBatch, FillSlice]]
    ) -> Iterator[LoadedBatch]:
        """Iterate over the batches of `parts` in order. `start`, called in the consumer's thread, allocates one, and
        returns it with the function that makes its images.

        An exception of that function is raised with its batch. When the iterator is closed or fails, pending slices are
        cancelled, and it returns after running ones have finished.
        """
        in_flight: deque[tuple[LoadedBatch, list[Future[None]]]] = deque()
        waiting = iter(parts)
        try:
            while True:
                while len(in_flight) < AHEAD and (part := next(waiting, None)) is not None:
                    in_flight.append(self._submit(part, *start(part)))
                if not in_flight:
                    return
                for future in in_flight[0][1]:
                    future.result()
                batch, _ = in_flight.popleft()
                if (part := next(waiting, None)) is not None:  # before the consumer takes its time
                    in_flight.append(self._submit(part, *start(part)))
                yield batch
                del batch
        finally:
            running = [future for _, futures in in_flight for future in futures if not future.cancel()]
            for future in running:
                future.exception()

    def images(
        self, parts: Sequence[Indices], labels: npt.NDArray[np.int64], size: int, fill_images: FillImages
    ) -> Iterator[LoadedBatch]:
        """Iterate over batches of images, `size` pixels per side."""

        def start(part: Indices) -> tuple[LoadedBatch, FillSlice]:
            images = self.new_images(len(part), size)
            rows = images.permute(0, 2, 3, 1)
            loaded = LoadedBatch(images, torch.from_numpy(labels[part % len(labels)]))
            return loaded, lambda begin, end: fill_images(part[begin:end], rows[begin:end])

        return self.batches(parts, start)

    def new_images(self, count: int, size: int) -> Tensor:
        """Return uninitialized images uint8 (count, 3, size, size), channels-last, pinned for a GPU.

        Fresh memory would cost as many page faults as a crop. torch's allocator of pinned memory, and on a CPU glibc
        after `set_backends`, give that of earlier batches again.
        """
        with torch.inference_mode(False):  # otherwise threads outside the caller's inference mode may not write
            images = torch.empty((count, size, size, 3), dtype=torch.uint8, pin_memory=self._pin)
            return images.permute(0, 3, 1, 2)

    def close(self) -> None:
        """End the threads; pending slices are cancelled."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, part: Indices, batch: LoadedBatch, fill: FillSlice) -> tuple[LoadedBatch, list[Future[None]]]:
        edges = [*range(0, len(part), self.slice_size), len(part)]
        return batch, [self._pool.submit(fill, *edge) for edge in pairwise(edges)]


class ThreadBuffers(threading.local):
    """Buffers of each thread, reused because fresh memory costs page faults."""

    def __init__(self) -> None:
        self._held: dict[str, Pixels] = {}

    def take(self, name: str, count: int) -> Pixels:
        """Return uninitialized memory (count,), valid until this thread requests `name` again."""
        held = self._held.get(name)
        if held is None or held.size < count:
            held = self._held[name] = np.empty(count, dtype=np.uint8)
        return held[:count]
