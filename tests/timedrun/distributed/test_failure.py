"""Which ranks hang, given the activity of all, and which never do."""

import pytest

from judging.ground.errors import ExitCode
from timedrun.distributed.failure import RankStatus, find_stalled
from timedrun.distributed.stall_detector import State, ThreadActivity

STUCK, BUSY = 15.0, 1200.0
Activity = tuple[State, float] | None


def found(activities: list[Activity]) -> str:
    """The message on ranks with these states and idle seconds; None: its steps advance."""
    running = {
        rank: RankStatus(
            step=3, activity=ThreadActivity(*activity, where=f"train.py:{rank} (step)") if activity else None
        )
        for rank, activity in enumerate(activities)
    }
    failure = find_stalled(running, 4, STUCK, BUSY)
    assert failure is None or failure.exit_code == ExitCode.RANK_LOST
    return failure.message if failure else ""


@pytest.mark.parametrize(
    ("activities", "ranks", "why"),
    [
        ([("collective", 16), ("own", 16), ("device", 20)], [1], "idle for 16 s while ranks 0, 2 wait for it"),
        ([("collective", 16), ("own", 17), ("own", 18)], [1, 2], "idle for 16 s while rank 0 waits for it"),
        ([("collective", 1201), ("own", 0)], [1], "rank 0 waiting for it for 1201 s"),  # whatever it works on
        ([("collective", 1201), ("collective", 1300)], [0, 1], "in a collective for 1300 s, like all ranks"),
    ],
)
def test_the_ranks_that_others_wait_for_hang(activities, ranks, why):
    parts = [f"rank {rank} hung after step 4 at train.py:{rank} (step): {why}" for rank in ranks]
    assert found(activities) == "; ".join([*parts, "run aborted"])


def test_four_of_many_ranks_that_hang_are_named():
    message = found([("collective", 16), *[("own", 16)] * 6])
    assert "rank 4 hung" in message and "rank 5" not in message and "; and 2 more ranks; run aborted" in message


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
        [("collective", 900.0), ("collective", 900.0)],  # left to `BUSY`
    ],
)
def test_a_phase_that_may_take_long_is_not_a_hang(activities):
    assert found(activities) == ""
