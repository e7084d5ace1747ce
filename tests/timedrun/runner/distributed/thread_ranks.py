"""Ranks that are threads of one process."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from timedrun.runner.distributed.process_group import ProcessGroup

CPU = torch.device("cpu")
MEET_SECONDS = 40.0


class Meeting:
    """Collectives of threads: gather is a barrier, broadcast waits for rank 0."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.given: Future[Any] = Future()
        """The value that rank 0 broadcast; one per meeting."""
        self.values: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=MEET_SECONDS)

    def ranks(self) -> "list[ThreadRanks]":
        """All ranks, each for a thread of its own."""
        return [ThreadRanks(rank, self.world_size, rank, CPU, self) for rank in range(self.world_size)]


@dataclass(frozen=True)
class ThreadRanks(ProcessGroup):
    """The process group of a thread."""

    meeting: Meeting

    def all_gather(self, value: Any) -> list[Any]:
        self.meeting.values[self.rank] = value
        self.meeting.barrier.wait()
        found = list(self.meeting.values)
        self.meeting.barrier.wait()
        return found

    def all_reduce_max(self, values: list[float]) -> list[float]:
        return [max(column) for column in zip(*self.all_gather(values), strict=True)]

    def broadcast(self, value: object) -> object:
        if self.is_first:
            self.meeting.given.set_result(value)
        return self.meeting.given.result(MEET_SECONDS)


def in_threads(count: int, function: Callable[[int], Any]) -> list[Any]:
    """The result or the error of `function(number)` on each of `count` threads."""
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(function, number) for number in range(count)]
        return [future.exception() or future.result() for future in futures]


def on_all(world_size: int, body: Callable[[ProcessGroup], Any]) -> list[Any]:
    """The result or the error of `body` on each of `world_size` ranks."""
    ranks = Meeting(world_size).ranks()
    return in_threads(world_size, lambda rank: body(ranks[rank]))
