"""Prefetching of batches to the training device by one background thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from image_classification.loaders.loader import LoadedBatch


@dataclass
class _Buffer:
    """State shared by thread and consumer. The thread holds no reference to the consumer, so dropping it can end it."""

    depth: int
    ready: deque[tuple[Tensor, Tensor, torch.cuda.Event | None]] = field(default_factory=deque)
    error: BaseException | None = None
    ended: bool = False
    """True if nothing will be added."""
    closing: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def close(self) -> None:
        """Ask the thread to end, and release ready batches."""
        with self.changed:
            self.closing = True
            self.ready.clear()
            self.changed.notify_all()


class Prefetched:
    """Iterator over images (n, 3, size, size) uint8 and labels (n,) on the training device, `depth` batches ahead.

    At most `depth` batches are held, besides that in use; with depth 0 a batch is loaded when it is requested. An
    error of `batches` is raised in place of the batch that could not be made. Closing, an error, the end, and dropping
    the object end the thread.
    """

    def __init__(self, batches: Iterator[LoadedBatch], device: torch.device, depth: int) -> None:
        self._batches, self._device = batches, device
        self._thread: threading.Thread | None = None
        if depth > 0:
            self._buffer = _Buffer(depth)
            self._thread = threading.Thread(
                target=_fill, args=(self._buffer, batches, device), name="prefetch", daemon=True
            )
            weakref.finalize(self, self._buffer.close)
            self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._thread is None:
            batch = next(self._batches)
            return _on_device(batch, self._device)
        buffer = self._buffer
        with buffer.changed:
            buffer.changed.wait_for(lambda: buffer.ready or buffer.ended or buffer.closing)
            if not buffer.ready:
                error, buffer.error = buffer.error, None
                if error is not None:
                    raise error
                raise StopIteration
            images, labels, copied = buffer.ready.popleft()
            buffer.changed.notify_all()
        if copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied)
            # Allocated on the copy stream, which must not reuse the memory before this stream is done with it.
            images.record_stream(stream)
            labels.record_stream(stream)
        return images, labels

    def close(self) -> None:
        """End the thread, after the batch that it is loading. A second call has no effect."""
        if self._thread is None:
            _close(self._batches)
        else:
            self._buffer.close()
            self._thread.join()


def _fill(buffer: _Buffer, batches: Iterator[LoadedBatch], device: torch.device) -> None:
    error: BaseException | None = None
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # of this thread
        _fill_until_closed(buffer, batches, device)
    except BaseException as caught:
        error = caught
    try:
        _close(batches)  # in this thread: a generator cannot be closed while another thread runs it
    except BaseException as caught:
        error = error or caught
    with buffer.changed:
        buffer.error = error
        buffer.ended = True
        buffer.changed.notify_all()


def _fill_until_closed(buffer: _Buffer, batches: Iterator[LoadedBatch], device: torch.device) -> None:
    while True:
        with buffer.changed:
            buffer.changed.wait_for(lambda: len(buffer.ready) < buffer.depth or buffer.closing)
            if buffer.closing:
                return
        batch = next(batches, None)
        if batch is None:
            return
        images, labels = _on_device(batch, device)
        copied = None
        if device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        with buffer.changed:
            if not buffer.closing:
                buffer.ready.append((images, labels, copied))
                buffer.changed.notify_all()
        del batch, images, labels  # otherwise one more batch would be held while waiting


def _on_device(batch: LoadedBatch, device: torch.device) -> tuple[Tensor, Tensor]:
    images, labels = to_device(batch.images, device), to_device(batch.labels, device)
    return images if batch.finish is None else batch.finish(images), labels


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor` on `device`; a copy to a GPU goes through pinned memory and is queued on the current stream."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)  # pin_memory() returns pinned tensors unchanged
    return tensor.to(device)


def _close(batches: Iterator[LoadedBatch]) -> None:
    close = getattr(batches, "close", None)  # generators have one
    if close is not None:
        close()
