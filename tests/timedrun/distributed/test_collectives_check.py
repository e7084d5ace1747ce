"""A wrong result of a collective is named; the collectives are simulated."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from timedrun.distributed import collectives_check
from timedrun.distributed.collectives_check import WrongCollective, check_collectives, part
from timedrun.distributed.process_group import ProcessGroup

CPU = torch.device("cpu")


class Network(ProcessGroup):
    """Simulated collectives of two ranks; SPOILT changes their results on the second."""

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        size, dtype = len(values), values.dtype
        if size == collectives_check.ODD_SIZE:
            values.copy_(part(0, size, dtype, CPU) + part(1, size, dtype, CPU) + SPOILT.get("sum", 0))
        return values

    def all_reduce_max(self, values: list[float]) -> list[float]:
        return values

    def all_gather(self, value: Any) -> list[Any]:
        return [[], value]


SPOILT: dict[str, int] = {}


@pytest.mark.parametrize("spoilt", ["", "sum", "gather", "broadcast"])
def test_a_wrong_collective_is_named_with_its_ranks(spoilt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives_check, "BANDWIDTH_BYTES", 64)
    monkeypatch.setitem(SPOILT, spoilt, 1)

    def all_gather(found: list[torch.Tensor], own: torch.Tensor) -> None:
        for rank, one in enumerate(found):
            one.copy_(part(rank, len(own), own.dtype, CPU) + (SPOILT.get("gather", 0) if rank == 0 else 0))

    def broadcast(buffer: torch.Tensor, src: int) -> None:
        buffer.copy_(part(src, len(buffer), buffer.dtype, CPU) + (SPOILT.get("broadcast", 0) if src == 0 else 0))

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    monkeypatch.setattr(dist, "get_backend", lambda: "simulated")
    ranks = Network(1, 2, 1, CPU)
    if not spoilt:
        assert check_collectives(ProcessGroup(0, 1, 0, CPU)) is None
        found = check_collectives(ranks)
        assert found is not None
        assert found["ranks"] == 2
        return
    message = {
        "sum": "rank 1: the sum of 1027 int64 numbers is wrong",
        "gather": "rank 1: all-gather of 1027 int64 numbers has wrong parts of ranks 0",
        "broadcast": "rank 1: the broadcast of 1027 int64 numbers from rank 0 is wrong",
    }[spoilt]
    with pytest.raises(WrongCollective, match=message):
        check_collectives(ranks)


def test_the_numbers_of_two_thousand_ranks_still_sum_exactly_in_float32() -> None:
    parts = [part(rank, 1027, torch.int64, CPU) for rank in range(2000)]
    exact = torch.stack(parts).sum(0)
    assert torch.equal(torch.stack([one.float() for one in parts]).sum(0).long(), exact)
    assert exact.max() < 2**24
    assert len({tuple(one.tolist()) for one in parts[:97]}) == 97
