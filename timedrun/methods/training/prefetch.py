"""Prefetching of batches to the training device by one background thread."""

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import is_dataclass
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

LoadedT = TypeVar("LoadedT")
BatchT = TypeVar("BatchT")

STEPS_AHEAD = 2
"""Batches that `StepBatches` keeps ready for a GPU: the one after the next hides a step that takes long to make."""


class Prefetched(Generic[LoadedT, BatchT]):
    """Iterate over batches on the training device, `depth` ahead.

    At most `depth` batches are held, besides that in use; with depth 0 a batch is loaded when it is requested. An error
    of `batches` is raised in place of the batch that could not be made. Closing, an error, the end, and dropping the
    object end the thread.

    Examples:
        >>> list(Prefetched(iter([1, 2, 3]), torch.tensor, torch.device("cpu"), depth=2))
        [tensor(1), tensor(2), tensor(3)]
    """

    def __init__(
        self, batches: Iterator[LoadedT], place: Callable[[LoadedT], BatchT], device: torch.device, depth: int
    ) -> None:
        """
        Args:
            place: returns a batch on `device`: tensors in lists, tuples and dataclasses. Called in the thread, on a
                CUDA stream of its own.
        """
        self._batches, self._place, self._device = batches, place, device
        self._ready: deque[Future[tuple[BatchT, torch.cuda.Event | None]]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        if depth > 0:
            self._thread = ThreadPoolExecutor(1, "prefetch", _use_own_stream, (device,))
            self._ready.extend(self._thread.submit(_made, batches, place, device) for _ in range(depth))
            weakref.finalize(self, self._thread.shutdown, wait=False, cancel_futures=True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BatchT:
        if self._thread is None:
            return self._place(next(self._batches))
        if not self._ready:
            raise StopIteration
        try:
            batch, copied = self._ready.popleft().result()
        except BaseException:  # also the end of the batches
            self.close()
            raise
        self._ready.append(self._thread.submit(_made, self._batches, self._place, self._device))
        if copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied)
            for tensor in _tensors(batch):
                # Allocated on the copy stream, which must not reuse the memory before this stream is done with it.
                tensor.record_stream(stream)
        return batch

    def close(self) -> None:
        """End the thread, after the batch that it is loading. A second call has no effect."""
        self._ready.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        close = getattr(self._batches, "close", None)  # generators have one; no other thread may run them now
        if close is not None:
            close()


class StepBatches(Generic[BatchT]):
    """Make the batches of consecutive optimizer steps, each by one function of its step.

    For a GPU, which waits while the host makes a batch, a thread makes them ahead, also during evaluations. On a CPU
    that thread would take its time from the training step.

    Examples:
        >>> batches = StepBatches(lambda step: torch.full((2,), step), torch.device("cpu"))
        >>> next(batches.starting(5))
        tensor([5, 5])
        >>> batches.close()
    """

    def __init__(
        self,
        make: Callable[[Any], BatchT],
        device: torch.device,
        ahead: int | None = None,
        load: Callable[[int], Iterator[Any]] = itertools.count,
    ) -> None:
        """
        Args:
            make: returns the batch of a step (from 0) on `device`.
            ahead: batches to keep ready; None: `STEPS_AHEAD` on a GPU, none elsewhere.
            load: returns what `make` is given for a step and for those after it; by default their numbers.
        """
        self._make, self._device, self._load = make, device, load
        self._depth = (STEPS_AHEAD if device.type == "cuda" else 0) if ahead is None else ahead
        self._ahead: Prefetched[Any, BatchT] | None = None
        self._next = 0  # step of the next batch of `_ahead`

    def starting(self, first: int = 0) -> Iterator[BatchT]:
        """Yield the batches of step `first` and all after it. Those made ahead for another step are dropped.

        Raises what `make` raises, at its step.
        """
        for step in itertools.count(first):
            if self._ahead is None or self._next != step:
                self.close()
                self._ahead = Prefetched(self._load(step), self._make, self._device, self._depth)
            try:
                batch = next(self._ahead)
            except BaseException:
                self.close()
                raise
            self._next = step + 1
            yield batch

    def close(self) -> None:
        """End the thread, after the batch that it is making. A second call has no effect."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


def _use_own_stream(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # of this thread


def _made(
    batches: Iterator[LoadedT], place: Callable[[LoadedT], BatchT], device: torch.device
) -> tuple[BatchT, torch.cuda.Event | None]:
    """Return the next batch, and the event after which its copy to a GPU is complete. Raises StopIteration at the end.

    It knows no consumer, so that dropping one can end the thread.
    """
    batch = place(next(batches))
    copied = None
    if device.type == "cuda":
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
    return batch, copied


def _tensors(batch: Any) -> Iterable[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _tensors(part)
    elif is_dataclass(batch):
        for part in vars(batch).values():
            yield from _tensors(part)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return `tensor` on `device`; a copy to a GPU goes through pinned memory and is queued on the current stream.

    Examples:
        >>> to_device(torch.zeros(2), torch.device("cpu"))
        tensor([0., 0.])
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)  # pin_memory() returns pinned tensors unchanged
    return tensor.to(device)
