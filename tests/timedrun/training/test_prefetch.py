"""Batches of steps made ahead: the same batches, errors at their step, and no thread after the end or on a CPU."""

import threading
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.timedrun.distributed.launched_ranks import until
from timedrun.training.prefetch import STEPS_AHEAD, Prefetched, StepBatches, to_device

CPU = torch.device("cpu")


class Made:
    """A function that makes the batch of a step, and records which steps in which threads."""

    def __init__(self, fail_at: int = -1) -> None:
        self.fail_at, self.steps, self.names = fail_at, list[int](), set[str]()

    def __call__(self, step: int) -> Tensor:
        self.names.add(threading.current_thread().name)
        self.steps.append(step)
        if step == self.fail_at:
            raise OSError(f"step {step} cannot be read")
        return torch.tensor(step)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("given", [None, 0, 1, 3])
def test_batches_of_consecutive_loops_are_made_once_each_and_jumps_begin_anew(given):
    made = Made()
    ahead = given or 0  # on a CPU none of itself, and no thread
    with closing(StepBatches(made, CPU, given)) as batches:
        assert [int(batch) for batch in islice(batches.starting(5), 4)] == [5, 6, 7, 8]
        until(lambda: made.steps == list(range(5, 9 + ahead)))  # the next loop's first, during an evaluation
        assert [int(batch) for batch in islice(batches.starting(9), 4)] == [9, 10, 11, 12]
        until(lambda: made.steps == list(range(5, 13 + ahead)))
        assert [int(batch) for batch in islice(batches.starting(2), 2)] == [2, 3]
        one, other = batches.starting(0), batches.starting(7)
        assert [int(next(loop)) for loop in (one, other, one, one, other)] == [0, 7, 1, 2, 8]
    assert made.names == ({"prefetch_0"} if ahead else {threading.current_thread().name})
    assert threads() == []


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_is_raised_at_its_step_and_again_if_that_is_asked_again(ahead):
    made = Made(fail_at=3)
    with closing(StepBatches(made, CPU, ahead)) as batches:
        loop = batches.starting(1)
        assert [int(next(loop)), int(next(loop))] == [1, 2]
        for again in (loop, batches.starting(3)):
            with pytest.raises(OSError, match="step 3 cannot be read"):
                next(again)
        assert threads() == []
        made.fail_at = -1
        assert int(next(batches.starting(3))) == 3
    assert threads() == []


def test_no_more_batches_are_made_than_are_kept_ready_and_closing_waits_for_the_one_that_is_being_made():
    steps, go_on = list[int](), threading.Event()

    def make(step: int) -> int:
        steps.append(step)
        assert step < 2 or go_on.wait(10)
        return step

    batches = StepBatches(make, CPU, 2)
    assert next(batches.starting(0)) == 0
    until(lambda: steps == [0, 1, 2])
    closer = threading.Thread(target=batches.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    go_on.set()
    closer.join(10)
    assert steps == [0, 1, 2] and threads() == []


class OnStream(Tensor):
    """Tensor that records the streams it is used on."""

    used_on: list[str]

    def record_stream(self, s: Any) -> None:
        self.used_on.append(s.name)


@dataclass(frozen=True)
class Fields:
    tokens: Tensor
    samples: int


class Stream:
    """A CUDA stream in name: a list of what was queued, in order, over all streams."""

    queued: list[tuple[str, str]] = []

    def __init__(self, device: Any = None, name: str = "copies") -> None:
        self.name = name

    def wait_event(self, event: "Event") -> None:
        self.queued.append((self.name, f"waits for {event.number}"))


class Event:
    numbers = count(1)

    def record(self) -> None:
        self.number = next(self.numbers)


def test_a_gpus_stream_waits_for_the_copies_of_a_batch_and_holds_its_tensors(monkeypatch):
    """With CUDA's streams and events replaced, on this machine's memory."""
    streams = threading.local()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(streams, "current", stream))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: getattr(streams, "current", training))
    monkeypatch.setattr(Stream, "queued", [])
    monkeypatch.setattr(Event, "numbers", count(1))
    training, steps = Stream(name="training"), list[int]()

    def make(step: int) -> list[Fields]:
        steps.append(step)
        assert torch.cuda.current_stream(None).name == "copies"
        made = []
        for _ in range(2):
            tokens = torch.tensor([step]).as_subclass(OnStream)
            tokens.used_on = []
            made.append(Fields(tokens, 3))
        return made

    with closing(StepBatches(make, torch.device("cuda"))) as batches:
        for number, micro_batches in enumerate(islice(batches.starting(4), 3)):
            assert [int(part.tokens) for part in micro_batches] == [4 + number] * 2
            assert [part.tokens.used_on for part in micro_batches] == [["training"]] * 2
            assert Stream.queued == [("training", f"waits for {1 + place}") for place in range(number + 1)]
        until(lambda: steps == list(range(4, 7 + STEPS_AHEAD)))
    assert threads() == []


@pytest.mark.gpu
def test_on_a_gpu_batches_are_complete_while_the_stream_is_busy():
    device = torch.device("cuda", 0)
    generator = torch.Generator().manual_seed(0)
    expected = [torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8, generator=generator) for _ in range(12)]
    busy = torch.randn(2048, 2048, device=device)
    with closing(Prefetched(iter(expected), lambda host: to_device(host, device).flip(3), device, 3)) as ready:
        for host, images in zip(expected, ready, strict=True):
            for _ in range(20):
                busy = torch.mm(busy, busy).sin()
            total = images.clone()
            del images
            assert torch.equal(total.cpu(), host.flip(3))
    assert threads() == []
