"""Who is called stuck by what all ranks stand at, and who never is."""

import pytest

from timedrun.distributed.failure import Seen, judge_standing
from timedrun.distributed.stall_detector import Standing, State
from timedrun.errors import ExitCode

STUCK, BUSY = 15.0, 1200.0


def judged(*standings: tuple[State, float] | None) -> str | None:
    """The words on ranks that are at `state` for so many quiet seconds; None: it moves."""
    running = {
        rank: Seen(step=3, standing=Standing(*one, where=f"train.py:{rank} (step)") if one else None)
        for rank, one in enumerate(standings)
    }
    verdict = judge_standing(running, 4, STUCK, BUSY)
    assert verdict is None or verdict.code == ExitCode.RANK_LOST
    return verdict.words if verdict else None


@pytest.mark.parametrize("waits", ["collective", "device"])
def test_the_idle_one_among_waiting_ranks_is_stuck(waits: State) -> None:
    assert judged((waits, 16), ("own", 16), (waits, 20)) == (
        "rank 1 has done nothing for 16 s while ranks 0, 2 wait for it: it is stuck after step 4 in train.py:1 (step)"
    )


def test_several_idle_ones_are_all_named() -> None:
    words = judged(("collective", 16), ("own", 16), ("own", 17))
    assert words is not None
    assert "rank 1 has done nothing" in words
    assert "rank 2 has done nothing" in words


@pytest.mark.parametrize(
    "standings",
    [
        [("own", 900.0), ("own", 900.0)],  # all evaluate, wait for data, or end
        [("collective", 900.0), ("own", 0.0)],  # compiles, computes, reads or writes
        [("collective", 900.0), ("own", 900.0), ("own", 0.0)],  # waits for the lock of one that compiles
        [("collective", 900.0), ("own", 14.0)],
        [("collective", 14.0), ("own", 900.0)],
        [("collective", 900.0), None],  # moves
        [("device", 9000.0), ("device", 9000.0)],  # an evaluation on GPUs
        [("collective", 900.0), ("collective", 900.0)],  # left to `busy`
    ],
)
def test_what_may_rightly_take_long_is_not_stuck(standings: list[tuple[State, float] | None]) -> None:
    assert judged(*standings) is None


def test_work_that_keeps_others_waiting_beyond_all_measure_is_told() -> None:
    words = judged(("collective", 1201), ("own", 0))
    assert words is not None
    assert words.startswith("rank 1 has kept rank 0 waiting for 1201 s: it is stuck after step 4")


def test_collectives_that_do_not_match_are_told_with_where_each_rank_waits() -> None:
    words = judged(("collective", 1201), ("collective", 1300))
    assert words is not None
    assert "train.py:0 (step)" in words
    assert "train.py:1 (step)" in words
