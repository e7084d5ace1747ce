"""Energy by the counters of logs."""

import pytest

from judging.pages import score_table
from judging.scoring import score as scores
from judging.scoring.power import shared_energy
from mlevents import keys
from mlevents.machine_load import joules
from mlevents.record import read
from mlevents.summary import summarize
from tests.judging.conftest import log_loads


def test_the_energy_of_a_log_is_that_of_its_blocks_and_what_used_it_is_named(tmp_path, write_run):
    lacks = {"cpu_joules": "PermissionError: Permission denied"}
    for number in range(3):
        written = write_run(
            tmp_path, number, minutes=2.0 + number, **{keys.DATASET: "digits", keys.QUALITY_TARGET: 0.75}
        )
        log_loads(written, {"gpu_joules": 100.0}, {"gpu_joules": 50.0 + number}, lacks=lacks)
    (one,) = scores.score([tmp_path], show_progress=False)
    assert one.gpu_joules == pytest.approx(151) and one.cpu_joules is None
    text = score_table.table([one], detailed=True)
    assert "energy   151 J of the GPUs (unverified)" in text
    assert "energy   not measured: cpu_joules: PermissionError: Permission denied" in text


@pytest.mark.parametrize(
    ("blocks", "metadata", "why"),
    [
        ([{"gpu_joules": 5.0}, {}], {}, ""),
        ([{"gpu_joules": 0.0}], {}, ""),
        ([{"gpu_joules": "much"}], {"lacks": {"gpu_joules": "Error: no"}}, "gpu_joules: Error: no"),
        ([{"gpu_joules": 5.0}], {"node": 0, "nodes": 2}, "one of its machines"),
    ],
)
def test_an_energy_that_a_log_has_in_part_is_not_known(tmp_path, write_run, blocks, metadata, why):
    found, reason = joules(read(log_loads(write_run(tmp_path, 0), *blocks, **metadata)))
    assert found == {} and why in reason and bool(why) == bool(reason)


def test_runs_have_in_common_the_energy_of_the_same_parts(tmp_path, write_run):
    both = summarize(read(log_loads(write_run(tmp_path / "a", 0), {"gpu_joules": 5.0, "cpu_joules": 2.0})))
    one = summarize(read(log_loads(write_run(tmp_path / "b", 0), {"gpu_joules": 6.0})))
    none = summarize(read(log_loads(write_run(tmp_path / "c", 0), {}, lacks={"gpu_joules": "Error: gone"})))
    assert shared_energy([both]) == ("GPUs and processors", {both.path: 7.0})
    assert shared_energy([both, one]) == ("GPUs", {both.path: 5.0, one.path: 6.0})
    assert shared_energy([both, one, none]) == ("gpu_joules: Error: gone", {})
    assert shared_energy([]) == ("", {})


def test_compare_states_the_energy_of_both_sets(tmp_path, make_set, told, printed):
    sets = [make_set(tmp_path / name, times=[58.0, 59.0, 60.0]) for name in ("one", "two")]
    for folder, joules_each in zip(sets, (90.0, 30.0), strict=True):
        for log in folder.glob("result_*.txt"):
            log_loads(log, {"cpu_joules": joules_each})
    assert told("compare", *sets)["energy"] == {"of": "processors", "joules": [90, 30]}
    assert "Energy of processors: 90 J and 30 J (means), 3x (unverified)." in printed("compare", "--verbose", *sets)
