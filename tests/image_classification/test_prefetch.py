"""Prefetching: same batches in the same order, errors in their place, no thread left running."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from image_classification.batches import prefetched
from image_classification.loaders.loader import LoadedBatch
from tests.image_classification.small_image_data import CPU, PATIENCE, eventually, threads


def batch(number: int) -> LoadedBatch:
    return LoadedBatch(torch.full((2, 3, 4, 4), number, dtype=torch.uint8), torch.full((2,), number))


class Counted:
    """Iterator of batches that records how many were requested, in which threads, and closing."""

    def __init__(self, count: int, fail_at: int = -1) -> None:
        self.count, self.fail_at = count, fail_at
        self.taken, self.closed, self.names = 0, 0, set[str]()

    def __iter__(self) -> Iterator[LoadedBatch]:
        return self

    def __next__(self) -> LoadedBatch:
        self.names.add(threading.current_thread().name)
        if self.taken == self.fail_at:
            raise OSError(f"image {self.taken} cannot be read")
        if self.taken == self.count:
            raise StopIteration
        self.taken += 1
        return batch(self.taken - 1)

    def close(self) -> None:
        self.closed += 1


@settings(max_examples=25)
@given(count=st.integers(0, 9), depth=st.integers(0, 5))
def test_batches_come_as_they_are_and_in_order_at_any_depth(count, depth):
    source = Counted(count)
    with closing(prefetched(source, CPU, depth)) as ready:
        seen = [(int(images[0, 0, 0, 0]), labels.tolist()) for images, labels in ready]
    assert seen == [(number, [number, number]) for number in range(count)]
    assert source.closed
    assert threads() == []


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_as_many_batches_as_the_depth_are_made_ready_and_no_more(depth):
    source = Counted(20)
    with closing(prefetched(source, CPU, depth)) as ready:
        eventually(lambda: source.taken == depth)
        time.sleep(0.02)
        assert source.taken == depth
        next(ready)
        eventually(lambda: source.taken == depth + 1)
        time.sleep(0.02)
        assert source.taken == depth + 1
    assert source.names == {"prefetch"}


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_error_comes_in_the_place_of_its_batch_and_ends_the_thread(depth):
    source = Counted(9, fail_at=4)
    seen = []
    with pytest.raises(OSError, match="image 4 cannot be read"), closing(prefetched(source, CPU, depth)) as ready:
        seen += [int(labels[0]) for _, labels in ready]
    with closing(prefetched(Counted(9, fail_at=4), CPU, depth)) as ready:
        for _ in range(4):
            seen.append(int(next(ready)[1][0]))
        with pytest.raises(OSError, match="image 4"):
            next(ready)
        if depth:
            with pytest.raises(StopIteration):
                next(ready)
    assert seen == [0, 1, 2, 3]
    assert threads() == []


def test_finish_runs_in_the_thread_and_its_error_is_raised():
    done_in = []

    def finish(images: torch.Tensor) -> torch.Tensor:
        done_in.append(threading.current_thread().name)
        if images[0, 0, 0, 0] == 1:
            raise ValueError("no crop")
        return images + 100

    source = (LoadedBatch(batch(number).images, batch(number).labels, finish) for number in range(3))
    with closing(prefetched(source, CPU, 2)) as ready:
        images, labels = next(ready)
        assert (int(images[0, 0, 0, 0]), int(labels[0])) == (100, 0)
        with pytest.raises(ValueError, match="no crop"):
            next(ready)
    assert set(done_in) == {"prefetch"}


def test_closing_while_a_batch_is_being_loaded_waits_for_it_and_gives_nothing_more():
    loading, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[LoadedBatch]:
        yield batch(0)
        loading.set()
        assert go_on.wait(PATIENCE)
        yield batch(1)

    ready = prefetched(slow(), CPU, 2)
    assert loading.wait(PATIENCE)
    closer = threading.Thread(target=ready.close)
    closer.start()
    go_on.set()
    closer.join(PATIENCE)
    assert not closer.is_alive()
    assert list(ready) == []
    ready.close()  # a second call does nothing
    assert threads() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_batches_are_complete_while_the_stream_is_busy():
    device = torch.device("cuda", 0)
    generator = torch.Generator().manual_seed(0)
    expected = [torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8, generator=generator) for _ in range(12)]
    busy = torch.randn(2048, 2048, device=device)
    source = (LoadedBatch(images, torch.arange(64), lambda there: there.flip(3)) for images in expected)
    with closing(prefetched(source, device, 3)) as ready:
        for host, (images, labels) in zip(expected, ready, strict=True):
            assert images.device == device and labels.device == device
            for _ in range(20):
                busy = torch.mm(busy, busy).sin()
            total = images.clone()
            del images
            assert torch.equal(total.cpu(), host.flip(3))
    assert threads() == []
