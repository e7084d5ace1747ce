"""The proof, before a run's clock starts, that the ranks' collectives compute what they should, and how fast."""

from __future__ import annotations

import statistics
import time
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import TimedrunError

ODD_SIZES: Final = (1, 1027)
BANDWIDTH_BYTES: Final = 1 << 24
REPEATS: Final = 3


class WrongCollective(TimedrunError):
    """A collective computed what it should not; raised on all ranks alike."""


def prove(ranks: ProcessGroup) -> dict[str, float | str] | None:
    """Check all-reduce, broadcast and all-gather of numbers that differ between ranks, to the last bit, and time an
    all-reduce; all ranks call it together. None where there is one rank, else what was measured: bytes_per_second of
    the all-reduce is the `bytes` of one rank's buffer over its `seconds`, the median of the slowest rank's.

    Raises:
        WrongCollective: a result is wrong; the ranks that got it, and whose part of it is wrong, are named.
    """
    if ranks.world_size == 1:
        return None
    problems = [found for size in ODD_SIZES for found in _wrong(ranks, size)]
    all_problems = [f"rank {rank}: {found}" for rank, some in enumerate(ranks.all_gather(problems)) for found in some]
    if all_problems:
        raise WrongCollective(
            "the collective test failed, and the run was not started: " + "; ".join(all_problems[:8]) + ". The network"
            " or a device of these ranks computes wrong numbers."
        )
    buffer = torch.ones(BANDWIDTH_BYTES // 4, device=ranks.device)
    times = []
    for _ in range(1 + REPEATS):
        buffer.fill_(1.0)
        ranks.all_reduce_max([0.0])  # together; it waits for the device as well
        begun = time.monotonic()
        ranks.sum(buffer)
        if ranks.device.type == "cuda":
            torch.cuda.synchronize(ranks.device)
        times.append(time.monotonic() - begun)
    seconds = statistics.median(ranks.all_reduce_max(times)[1:])
    return {
        "bytes_per_second": BANDWIDTH_BYTES / seconds,
        "bytes": BANDWIDTH_BYTES,
        "seconds": seconds,
        "ranks": ranks.world_size,
        "backend": dist.get_backend(),
    }


def part(rank: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A rank's numbers: whole ones, so small that every sum of them is exact in float32."""
    return ((torch.arange(size, device=device) * 7 + rank * 13) % 97 + rank % 31).to(dtype)


def _wrong(ranks: ProcessGroup, size: int) -> list[str]:
    """What came out wrong on this rank."""
    found = []
    for dtype in (torch.int64, torch.float32):
        parts = [part(rank, size, dtype, ranks.device) for rank in range(ranks.world_size)]
        own = parts[ranks.rank]
        words = f"of {size} {str(dtype).removeprefix('torch.')} numbers"
        if not torch.equal(ranks.sum(own.clone()), torch.stack(parts).sum(0, dtype=dtype)):
            found.append(f"the sum {words} is wrong")
        gathered = [torch.empty_like(own) for _ in parts]
        dist.all_gather(gathered, own.clone())
        wrong = [str(rank) for rank, pair in enumerate(zip(gathered, parts, strict=True)) if not torch.equal(*pair)]
        if wrong:
            found.append(f"all-gather {words} brought wrong parts of ranks {', '.join(wrong)}")
        for source in dict.fromkeys((0, ranks.world_size - 1)):
            buffer = own.clone()
            dist.broadcast(buffer, src=source)
            if not torch.equal(buffer, parts[source]):
                found.append(f"the broadcast {words} from rank {source} is wrong")
    return found
