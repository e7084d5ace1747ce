"""Which ranks hang, given the activity of all, and which never do."""

import pytest

from timedrun.distributed.failure import RankStatus, find_stalled
from timedrun.distributed.stall_detector import State, ThreadActivity
from timedrun.errors import ExitCode

STUCK, BUSY = 15.0, 1200.0


def found(*activities: tuple[State, float] | None) -> str | None:
    """The message on ranks with these states and idle seconds; None: its steps advance."""
    running = {
        rank: RankStatus(step=3, activity=ThreadActivity(*one, where=f"train.py:{rank} (step)") if one else None)
        for rank, one in enumerate(activities)
    }
    failure = find_stalled(running, 4, STUCK, BUSY)
    assert failure is None or failure.exit_code == ExitCode.RANK_LOST
    return failure.message if failure else None


@pytest.mark.parametrize("waits", ["collective", "device"])
def test_the_idle_rank_among_waiting_ranks_hangs(waits: State) -> None:
    assert found((waits, 16), ("own", 16), (waits, 20)) == (
        "rank 1 hung after step 4 at train.py:1 (step): idle for 16 s while ranks 0, 2 wait for it;"
        " run aborted; resume with --resume"
    )


def test_several_idle_ranks_are_all_named_up_to_four() -> None:
    message = found(("collective", 16), *[("own", 16)] * 6)  # type: ignore[list-item]
    assert message is not None
    assert all(f"rank {rank} hung after step 4 at train.py:{rank} (step)" in message for rank in (1, 2, 3, 4))
    assert "rank 5" not in message and "; and 2 more ranks; run aborted" in message


@pytest.mark.parametrize(
    "activities",
    [
        [("own", 900.0), ("own", 900.0)],  # all evaluate, wait for data, or end
        [("collective", 900.0), ("own", 0.0)],  # compiles, computes, reads or writes
        [("collective", 900.0), ("own", 900.0), ("own", 0.0)],  # waits for the lock of one that compiles
        [("collective", 900.0), ("own", 14.0)],
        [("collective", 14.0), ("own", 900.0)],
        [("collective", 900.0), None],  # its steps advance
        [("device", 9000.0), ("device", 9000.0)],  # an evaluation on GPUs
        [("collective", 900.0), ("collective", 900.0)],  # left to `busy`
    ],
)
def test_a_phase_that_may_take_long_is_not_a_hang(activities: list[tuple[State, float] | None]) -> None:
    assert found(*activities) is None


def test_a_rank_that_works_while_others_wait_hangs_after_the_busy_limit() -> None:
    message = found(("collective", 1201), ("own", 0))
    assert message is not None
    assert message.startswith("rank 1 hung after step 4 at train.py:1 (step): rank 0 waiting for it for 1201 s")


def test_collectives_that_do_not_match_are_reported_with_the_line_of_each_rank() -> None:
    message = found(("collective", 1201), ("collective", 1300))
    assert message is not None
    for rank in (0, 1):
        assert f"rank {rank} hung after step 4 at train.py:{rank} (step): in a collective for 1300 s" in message
