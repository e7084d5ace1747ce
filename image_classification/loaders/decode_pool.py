"""Threads that fill batches slice by slice, several batches at a time, and hand them over in order."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from image_classification.loaders.loader import LoadedBatch
from timedrun.training.sampling import Indices

SLICE = 8  # images a task: few enough to share a batch among threads, enough to make the cost of a task small


class OpenBatch(Protocol):
    """A batch whose memory is there and whose images are not yet."""

    def fill(self, begin: int, end: int) -> None:
        """Make images begin .. end of the batch. Called in any thread, several at once, each image exactly once."""

    def loaded(self) -> LoadedBatch:
        """The whole batch; called once, in the consumer's thread, after every image was made."""


class LoaderThreads:
    """A fixed number of threads, kept until `close`, that work on up to `ahead` batches beyond the one handed over."""

    def __init__(self, threads: int, *, ahead: int = 3, slice_size: int = SLICE) -> None:
        if threads < 1 or ahead < 1 or slice_size < 1:
            raise ValueError(f"threads {threads}, ahead {ahead} and slice_size {slice_size} must be positive")
        self.threads, self.ahead, self.slice_size = threads, ahead, slice_size
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="loader")
        ready = threading.Barrier(threads + 1)
        try:
            for _ in range(threads):  # started now, not within the first batch
                self._pool.submit(ready.wait)
        except BaseException:  # the system's limit of threads: those that are there would wait for the others for ever
            ready.abort()
            self._pool.shutdown()
            raise
        ready.wait()

    def batches(self, parts: Sequence[Indices], start: Callable[[Indices], OpenBatch]) -> Iterator[LoadedBatch]:
        """A batch for each of `parts`, in order. `start`, called in the consumer's thread, makes the memory of one.

        An exception of `fill` is raised here as it is, with the batch that it belongs to. When the iterator is left or
        fails, slices not yet begun are dropped, and it returns once no thread works for it any more.
        """
        under_way: deque[tuple[OpenBatch, list[Future[None]]]] = deque()
        waiting = iter(parts)
        try:
            while True:
                while len(under_way) < self.ahead and (part := next(waiting, None)) is not None:
                    under_way.append(self._submit(part, start(part)))
                if not under_way:
                    return
                for future in under_way[0][1]:
                    future.result()
                batch, _ = under_way.popleft()
                if (part := next(waiting, None)) is not None:  # before the consumer takes its time
                    under_way.append(self._submit(part, start(part)))
                yield batch.loaded()
                del batch
        finally:
            left = [future for _, futures in under_way for future in futures if not future.cancel()]
            for future in left:
                future.exception()

    def close(self) -> None:
        """End the threads; slices not yet begun are dropped."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, part: Indices, batch: OpenBatch) -> tuple[OpenBatch, list[Future[None]]]:
        edges = [*range(0, len(part), self.slice_size), len(part)]
        return batch, [self._pool.submit(batch.fill, *edge) for edge in zip(edges[:-1], edges[1:], strict=True)]


class ImageMemory:
    """Memory of batches, uint8 (n, 3, size, size) and channels-last, taken back once nobody holds the tensor or a view
    of it: fresh memory costs as much in page faults as a crop. Pinned, torch's allocator does the same."""

    def __init__(self, *, pin: bool) -> None:
        self.pin = pin
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=8)

    def take(self, count: int, size: int) -> Tensor:
        """Images (count, 3, size, size), channels-last, of any content."""
        shape = (count, size, size, 3)
        with torch.inference_mode(False):  # else threads that are not in the caller's inference mode may not write
            if self.pin:
                return torch.empty(shape, dtype=torch.uint8, pin_memory=True).permute(0, 3, 1, 2)
            needed = count * size * size * 3
            block = self._block(needed)
            lent = block[:needed].reshape(shape)
            weakref.finalize(lent, self._free.append, block).atexit = False
            return torch.from_numpy(lent).permute(0, 3, 1, 2)

    def _block(self, needed: int) -> npt.NDArray[np.uint8]:
        while self._free:
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took the last
                break
            if needed <= block.size <= 2 * needed:  # a smaller size of image lets go of what is far too large
                return block
        return np.empty(needed, dtype=np.uint8)


class ImageBatch:
    """An `OpenBatch` of plain images: `fill_images(samples, images)` writes uint8 (k, size, size, 3) for k samples."""

    def __init__(
        self,
        part: Indices,
        labels: npt.NDArray[np.int64],
        images: Tensor,
        fill_images: Callable[[Indices, Tensor], None],
    ) -> None:
        self.part, self.images, self.fill_images = part, images, fill_images
        self.labels = torch.from_numpy(labels[part])
        self._rows = images.permute(0, 2, 3, 1)

    def fill(self, begin: int, end: int) -> None:
        """Images begin .. end."""
        self.fill_images(self.part[begin:end], self._rows[begin:end])

    def loaded(self) -> LoadedBatch:
        """The batch as it is."""
        return LoadedBatch(self.images, self.labels)
