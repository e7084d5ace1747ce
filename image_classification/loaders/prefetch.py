"""Batches made ready on the training device ahead of the step that takes them, by one thread."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from image_classification.loaders.loader import LoadedBatch


@dataclass(frozen=True)
class _Ready:
    images: Tensor
    labels: Tensor
    copied: torch.cuda.Event | None


@dataclass
class _Shelf:
    """What thread and consumer share. The thread knows nothing else, so that a consumer that is dropped can end it."""

    depth: int
    ready: deque[_Ready] = field(default_factory=deque)
    error: BaseException | None = None
    ended: bool = False
    """Nothing will be added."""
    closing: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def close(self) -> None:
        """Tell the thread to end, and let go of what is ready."""
        with self.changed:
            self.closing = True
            self.ready.clear()
            self.changed.notify_all()


class Prefetched:
    """Images (n, 3, size, size) uint8 and labels (n,) of each batch, on the training device, `depth` of them ready.

    A batch is loaded once there is room for it: no more than `depth` batches wait, beside the one in use. With depth 0
    all is done when a batch is asked for. An error of `batches` is raised in place of the batch that it kept from being
    made. Closing, an error, the end, and dropping the object end the thread.
    """

    def __init__(self, batches: Iterator[LoadedBatch], device: torch.device, depth: int) -> None:
        """Raises ValueError for a depth below 0."""
        if depth < 0:
            raise ValueError(f"{depth} batches cannot be made ready; 0 is none ahead")
        self._batches, self._device = batches, device
        self._thread: threading.Thread | None = None
        if depth:
            self._shelf = _Shelf(depth)
            self._thread = threading.Thread(
                target=_fill, args=(self._shelf, batches, device), name="prefetch", daemon=True
            )
            weakref.finalize(self, self._shelf.close)
            self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._thread is None:
            batch = next(self._batches)
            return _on_device(batch, self._device)
        shelf = self._shelf
        with shelf.changed:
            shelf.changed.wait_for(lambda: shelf.ready or shelf.ended or shelf.closing)
            if not shelf.ready:
                error, shelf.error = shelf.error, None
                if error is not None:
                    raise error
                raise StopIteration
            item = shelf.ready.popleft()
            shelf.changed.notify_all()
        if item.copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(item.copied)
            # Their memory is of the copying stream: it must not be used again there before this one is done with it.
            item.images.record_stream(stream)
            item.labels.record_stream(stream)
        return item.images, item.labels

    def close(self) -> None:
        """End the thread, after the batch that it is loading. A second call does nothing."""
        if self._thread is None:
            _close(self._batches)
        else:
            self._shelf.close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _fill(shelf: _Shelf, batches: Iterator[LoadedBatch], device: torch.device) -> None:
    """The thread: takes from `batches`, copies, puts on the shelf, until either ends."""
    error: BaseException | None = None
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
                _fill_on_stream(shelf, batches, device)
        else:
            _fill_on_stream(shelf, batches, device)
    except BaseException as caught:
        error = caught
    try:
        _close(batches)  # by the thread that ran it: a generator cannot be closed while another thread is in it
    except BaseException as caught:
        error = error or caught
    with shelf.changed:
        shelf.error = error
        shelf.ended = True
        shelf.changed.notify_all()


def _fill_on_stream(shelf: _Shelf, batches: Iterator[LoadedBatch], device: torch.device) -> None:
    while True:
        with shelf.changed:
            shelf.changed.wait_for(lambda: len(shelf.ready) < shelf.depth or shelf.closing)
            if shelf.closing:
                return
        batch = next(batches, None)
        if batch is None:
            return
        images, labels = _on_device(batch, device)
        copied = None
        if device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        with shelf.changed:
            if not shelf.closing:
                shelf.ready.append(_Ready(images, labels, copied))
                shelf.changed.notify_all()
        del batch, images, labels  # else a batch more would be held while waiting


def _on_device(batch: LoadedBatch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Copied on the current stream, from pinned memory where there is a copy to overlap, and finished."""
    images, labels = to_device(batch.images, device), to_device(batch.labels, device)
    return images if batch.finish is None else batch.finish(images), labels


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on `device`, that of a GPU queued on the current stream; a tensor that is there already is itself."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)  # memory that is pinned already is left as it is
    return tensor.to(device)


def _close(batches: Iterator[LoadedBatch]) -> None:
    close = getattr(batches, "close", None)  # generators have one
    if close is not None:
        close()
