"""A wrong result of a collective is named; the collectives are simulated."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.timedrun.distributed.thread_ranks import CPU
from timedrun.distributed.collectives_check import WrongCollective, check_collectives, part
from timedrun.distributed.process_group import ProcessGroup


class SecondOfTwo(ProcessGroup):
    """Rank 1 of simulated collectives."""

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        zero, one = (part(rank, len(values), values.dtype, CPU) for rank in (0, 1))
        return values.copy_(zero + one + WRONG["sum"])

    def all_gather(self, value: Any) -> list[Any]:
        return [[], value]


WRONG = {"sum": 0, "gather": 0, "broadcast": 0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("sum", "the sum of 1027 int64 numbers is wrong"),
        ("gather", "all-gather of 1027 int64 numbers has wrong parts of ranks 0"),
        ("broadcast", "the broadcast of 1027 int64 numbers from rank 0 is wrong"),
    ],
)
def test_a_wrong_collective_is_named_with_its_ranks(wrong, message, monkeypatch):
    def broadcast(buffer: torch.Tensor, src: int, name: str = "broadcast") -> None:
        buffer.copy_(part(src, len(buffer), buffer.dtype, CPU) + (src == 0) * WRONG[name])

    def all_gather(tensors: list[torch.Tensor], own: torch.Tensor) -> None:
        for rank, tensor in enumerate(tensors):
            broadcast(tensor, rank, "gather")

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    ranks = SecondOfTwo(1, 2, 1, CPU)
    monkeypatch.setitem(WRONG, wrong, 1)
    with pytest.raises(WrongCollective) as raised:
        check_collectives(ranks)
    assert f"not started: rank 1: {message}; rank 1: {message.replace('int64', 'float32')}. The" in str(raised.value)


def test_the_numbers_of_two_thousand_ranks_still_sum_exactly_in_float32():
    parts = torch.stack([part(rank, 1027, torch.int64, CPU) for rank in range(2000)])
    assert torch.equal(parts.float().sum(0).long(), parts.sum(0))
    assert len(parts[:97].unique(dim=0)) == 97  # those of other ranks would be noticed
