"""Load of the machine beside a run: shares from counters, and which of them disturb."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from mlevents import keys
from mlevents.checks.log_check import check
from mlevents.machine_load import DISTURBING, shares
from mlevents.runlog import RunLog

QUIET: Mapping[str, Any] = {
    "seconds": 10.0,
    "capacity_seconds": 20.0,  # of two cores
    "busy_seconds": 10.1,
    "stolen_seconds": 0.0,
    "own_seconds": 9.9,
    "waited_seconds": 0.1,
    "periods": 0,
    "throttled_periods": 0,
    "memory_stalled_seconds": 0.0,
}


def found(**changes: Any) -> list[str]:
    return [text.format(share) for text, share in shares([QUIET | changes]).items() if share > DISTURBING]


def test_shares_are_of_the_sums_over_all_blocks():
    busy = QUIET | {"busy_seconds": 18.0, "own_seconds": 6.0, "waited_seconds": 4.0, "periods": 100}
    others, waited, stolen, throttled, memory = shares(
        [QUIET, busy | {"throttled_periods": 30, "memory_stalled_seconds": 1.0}]
    ).values()
    assert others == pytest.approx((10.1 - 9.9 + 18 - 6) / 40)
    assert waited == pytest.approx(4.1 / (15.9 + 4.1))
    assert (throttled, memory, stolen) == (0.3, 0.05, 0.0)


@pytest.mark.parametrize(
    ("text", "name", "harmless", "disturbing"),
    [
        ("other processes used 6% of the machine's CPU time", "busy_seconds", 10.8, 11.1),
        ("the hypervisor took 6% of the machine's CPU time", "stolen_seconds", 0.9, 1.2),
        ("tasks stalled for lack of memory in 6% of the time", "memory_stalled_seconds", 0.4, 0.6),
        ("heat slowed a GPU in 6% of the time", "gpu_slowed_seconds", 0.4, 0.6),
        ("other processes used a GPU of the run at the end of 100% of the blocks", "gpu_shared_blocks", 0, 1),
        ("the control group was throttled in 40% of the periods of its CPU limit", "throttled_periods", 4, 40),
    ],
)
def test_a_load_above_five_percent_disturbs_and_is_given_in_numbers(text, name, harmless, disturbing):
    assert found() == found(**{"periods": 100, name: harmless}) == []
    assert found(**{"periods": 100, name: disturbing}) == [text]


def test_waits_that_others_cannot_have_caused_and_unknown_counters_disturb_nothing():
    """More threads than cores wait for each other; one process on the core of a run on many cores hinders it."""
    assert found(waited_seconds=15.0) == []
    many = {"capacity_seconds": 640.0, "own_seconds": 5.0, "waited_seconds": 5.0, "busy_seconds": 10.0}
    assert found(seconds=0.02, capacity_seconds=0.04, busy_seconds=0.06, own_seconds=0.0, waited_seconds=0.0) == []
    assert found(**many) == ["own threads waited for others in 50% of the time they could run"]
    assert shares([{"seconds": 10.0}, QUIET]) == shares([]) == {}
    without = {name: value for name, value in QUIET.items() if name not in ("waited_seconds", "stolen_seconds")}
    assert max(shares([without | {"busy_seconds": 20.0}]).values()) == pytest.approx(10.1 / 20)


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        *((dict(QUIET), False), (QUIET | {"busy_seconds": 20.0}, True), (dict.fromkeys(QUIET, "x"), False)),
        *((dict.fromkeys(QUIET, -1e308), False), ({"gpu_joules": 1e308, "cpu_joules": 1e308}, False), ([1], False)),
        (None, False),
    ],
)
def test_the_check_warns_of_a_run_that_was_disturbed_and_takes_any_content(tmp_path, value, warned):
    with closing(RunLog(tmp_path / "result_0.txt", durable=False)) as log:
        for _ in range(2):
            log.event(keys.MACHINE_LOAD, value)
    report = check(tmp_path / "result_0.txt")
    assert not report.summary.joules
    warnings = [f.message for f in report.findings if (f.rule, f.level) == ("machine-load", "warning")]
    assert bool(warnings) == bool(report.summary.disturbances) == warned
    if warned:
        assert "the machine had other load: other processes used 50% of the machine's CPU time" in warnings[0]
