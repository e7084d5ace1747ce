"""Collectives check: verify the results of collectives before a run's clock starts, and time an all-reduce."""

import statistics
import time
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from judging.ground.errors import TimedrunError
from timedrun.runner.distributed.process_group import ProcessGroup

ODD_SIZE: Final = 1027
BANDWIDTH_BYTES: Final = 1 << 24
REPEATS: Final = 3


class WrongCollective(TimedrunError):
    """Raised on all ranks if a collective returned a wrong result."""


def check_collectives(ranks: ProcessGroup) -> dict[str, float | str] | None:
    """Check all-reduce, broadcast and all-gather bit for bit, and time an all-reduce; all ranks call this together.

    Returns None with one rank, else the measurement: bytes_per_second is the `bytes` of one rank's buffer over
    `seconds`, the median over repeats of the slowest rank's time. Raises WrongCollective, which names the ranks that
    received a wrong result and those it came from.
    """
    if ranks.world_size == 1:
        return None
    gathered = enumerate(ranks.all_gather(_wrong(ranks, ODD_SIZE)))
    all_problems = [f"rank {rank}: {problem}" for rank, some in gathered for problem in some]
    if all_problems:
        raise WrongCollective(
            "the collectives check failed; the run was not started: " + "; ".join(all_problems[:8]) + ". The network"
            " or a device of these ranks is faulty."
        )
    buffer = torch.ones(BANDWIDTH_BYTES // 4, device=ranks.device)
    times = []
    for _ in range(1 + REPEATS):
        buffer.fill_(1.0)
        ranks.all_reduce_max([0.0])  # a barrier, which also synchronizes the device
        begun = time.monotonic()
        ranks.all_reduce_sum(buffer)
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
    """Return a rank's numbers, shape [size]: integers small enough that their sums are exact in float32."""
    return ((torch.arange(size, device=device) * 7 + rank * 13) % 97 + rank % 31).to(dtype)


def _wrong(ranks: ProcessGroup, size: int) -> list[str]:
    problems = []
    for dtype in (torch.int64, torch.float32):
        parts = [part(rank, size, dtype, ranks.device) for rank in range(ranks.world_size)]
        own = parts[ranks.rank]
        described = f"of {size} {str(dtype).removeprefix('torch.')} numbers"
        if not torch.equal(ranks.all_reduce_sum(own.clone()), torch.stack(parts).sum(0)):
            problems.append(f"the sum {described} is wrong")
        gathered = [torch.empty_like(own) for _ in parts]
        dist.all_gather(gathered, own.clone())
        wrong = [str(rank) for rank, pair in enumerate(zip(gathered, parts, strict=True)) if not torch.equal(*pair)]
        if wrong:
            problems.append(f"all-gather {described} has wrong parts of ranks {', '.join(wrong)}")
        for source in dict.fromkeys((0, ranks.world_size - 1)):
            buffer = own.clone()
            dist.broadcast(buffer, src=source)
            if not torch.equal(buffer, parts[source]):
                problems.append(f"the broadcast {described} from rank {source} is wrong")
    return problems
