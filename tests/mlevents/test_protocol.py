"""The order of a run's events: what would break it is refused and not logged."""

import pytest

from mlevents import keys
from mlevents.errors import TrainingLoopError
from mlevents.record import read
from mlevents.runlog import RunLog
from mlevents.runlog.protocol import Protocol

START = (keys.INIT_START, keys.INIT_STOP, keys.RUN_START)


@pytest.mark.parametrize(
    ("events", "refused"),
    [
        *(((), keys.INIT_STOP), ((), keys.RUN_STOP), ((keys.INIT_START,), keys.BLOCK_START), (START, keys.RUN_START)),
        *((START, keys.INIT_STOP), (START, keys.EPOCH_START), (START, keys.EVAL_STOP)),
        *(((*START, keys.BLOCK_START), keys.BLOCK_START), ((*START, keys.EVAL_START), keys.EVAL_START)),
        ((*START, keys.BLOCK_START, keys.BLOCK_STOP), keys.BLOCK_STOP),
    ],
)
def test_an_interval_out_of_order_is_refused_and_not_logged(tmp_path, events, refused):
    protocol = Protocol(RunLog(tmp_path / "result_0.txt"))
    for key in events:
        (protocol.start if key.endswith("start") else protocol.end)(key)
    with pytest.raises(TrainingLoopError, match=f"{refused} .*nothing was logged"):
        (protocol.start if refused.endswith("start") else protocol.end)(refused)
    assert [event.key for event in read(tmp_path / "result_0.txt").events] == [*events]


def test_a_resumed_run_goes_on_within_its_block_and_starts_no_second_clock():
    protocol = Protocol(RunLog(None, started=True))
    with pytest.raises(TrainingLoopError, match="run_start"):
        protocol.start(keys.RUN_START)
    protocol.resume(keys.BLOCK_START)
    protocol.start(keys.EPOCH_START, epoch_num=2)
    protocol.stop_block(first=1, count=2)
    assert not protocol.is_open(keys.BLOCK_START)
