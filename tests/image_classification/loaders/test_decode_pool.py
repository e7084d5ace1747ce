"""Decode pool: order, look-ahead, and shutdown."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from image_classification.loaders import decode_pool
from image_classification.loaders.decode_pool import DecodePool
from tests.image_classification.small_image_data import CPU
from tests.timedrun.runner.distributed.launched_ranks import until
from timedrun.methods.training.sampling import Indices

LABELS = np.arange(1000) * 7


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[DecodePool]:
    monkeypatch.setattr(decode_pool, "AHEAD", 2)
    made = DecodePool(3, CPU, slice_size=4)
    yield made
    made.close()


def _numbers(samples: Indices, images: torch.Tensor) -> None:
    """Each image is filled with its sample's number."""
    for sample, image in zip(samples.tolist(), images, strict=True):
        image.fill_(sample % 256)


def _parts(count: int, size: int = 10) -> list[Indices]:
    return [np.arange(begin * size, (begin + 1) * size) for begin in range(count)]


def test_batches_come_in_order_whatever_thread_is_quick(threads):
    def uneven(samples: Indices, images: torch.Tensor) -> None:
        time.sleep(0.002 * (int(samples[0]) % 3))
        _numbers(samples, images)

    parts = [np.array([5, 900, 3]), np.arange(17), np.array([], dtype=np.int64), np.array([8]), *_parts(6)]
    made = list(threads.images(parts, LABELS, 5, uneven))
    assert len(made) == len(parts)
    for part, batch in zip(parts, made, strict=True):
        assert batch.images.shape == (len(part), 3, 5, 5)
        assert batch.images.dtype == torch.uint8
        assert batch.labels.tolist() == (part * 7).tolist()
        assert batch.labels.dtype == torch.int64
        assert batch.images[:, 2, 4, 4].tolist() == (part % 256).tolist()
        assert (batch.images.flatten(1) == batch.images[:, :1, 0, 0]).all()


def test_the_next_batches_are_made_before_they_are_asked_for_and_no_more_of_them(threads):
    begun: list[int] = []

    def note(samples: Indices, images: torch.Tensor) -> None:
        begun.extend(samples.tolist())

    made = threads.images(_parts(10), LABELS, 5, note)
    next(made)
    until(lambda: len(begun) == 30)  # the one handed over and two ahead
    time.sleep(0.05)
    assert sorted(begun) == list(range(30))
    next(made)
    until(lambda: len(begun) == 40)


def test_abandoning_a_pass_cancels_pending_slices_and_keeps_the_pool_usable_until_it_is_closed(threads):
    before = set(threading.enumerate())
    begun: list[int] = []
    go_on = threading.Event()

    def wait(samples: Indices, images: torch.Tensor) -> None:
        begun.append(int(samples[0]))
        if samples[0] >= 10:
            assert go_on.wait(20)

    made = threads.images(_parts(10), LABELS, 5, wait)
    next(made)
    until(lambda: begun[3:] and {*begun[3:]} == {10, 14, 18})  # the slices of one batch, in three threads at once
    closer = threading.Thread(target=made.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()  # memory may not go while threads write into it
    go_on.set()
    closer.join(20)
    assert not closer.is_alive()
    assert len(begun) == 6
    again = list(threads.images(_parts(3), LABELS, 5, _numbers))
    assert [int(batch.images[1, 0, 0, 0]) for batch in again] == [1, 11, 21]
    threads.close()
    assert set(threading.enumerate()) <= before
