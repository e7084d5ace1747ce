"""Batches of steps made ahead: the same batches, errors at their step, and no thread after the end or on a CPU."""

import threading
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch import Tensor

from tests.timedrun.runner.distributed.launched_ranks import until
from timedrun.methods.training.prefetch import STEPS_AHEAD, Prefetched, StepBatches, to_device

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


class OnStream(Tensor):
    """Tensor that records the streams it is used on."""

    def record_stream(self, s: Any) -> None:
        self.used_on = [*getattr(self, "used_on", []), s]


@dataclass(frozen=True)
class Fields:
    tokens: Tensor
    samples: int


def test_a_gpus_stream_waits_for_the_copies_of_a_batch_and_holds_its_tensors(monkeypatch):
    """With CUDA's streams and events replaced, on this machine's memory."""
    cuda, events, steps, begun = Mock(), list[Mock](), list[int](), list[str]()
    for name in ("set_device", "Stream", "Event", "set_stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    cuda.Event.side_effect = lambda: events.append(Mock()) or events[-1]
    cuda.set_stream.side_effect = lambda stream: begun.append(threading.current_thread().name)
    training = cuda.current_stream.return_value

    def make(step: int) -> list[Fields]:
        steps.append(step)
        assert begun == [threading.current_thread().name] == ["prefetch_0"]
        return [Fields(torch.tensor([step]).as_subclass(OnStream), 3) for _ in range(2)]

    with closing(StepBatches(make, torch.device("cuda"))) as batches:
        for number, micro_batches in enumerate(islice(batches.starting(4), 3), 1):
            assert [int(part.tokens) for part in micro_batches] == [3 + number] * 2
            assert [part.tokens.used_on for part in micro_batches] == [[training]] * 2
            assert training.wait_event.call_args_list == [call(event) for event in events[:number]]
            assert all(event.record.called for event in events[:number])
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
