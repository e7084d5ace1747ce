"""Energy from power files, and notes on broken power rules."""

import json
from pathlib import Path

import pytest

from judging.pages import score_table
from judging.scoring import score as scores
from judging.scoring.power import PowerError, run_energy, shared_energy
from mlevents import keys
from mlevents.machine_load import joules
from mlevents.record import read
from mlevents.summary import summarize
from tests.judging.conftest import log_loads

START = 1_800_000_000_000.0


def write_power(path: Path, events: list[tuple[str, float, object]]) -> None:
    """A power file of (key, milliseconds, value)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    point = {"namespace": "", "event_type": "POINT_IN_TIME", "metadata": {}}
    lines = [point | {"time_ms": time, "key": key, "value": value} for key, time, value in events]
    path.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))


def steady(watts: float, seconds: int, start: float = START) -> list[tuple[str, float, object]]:
    """A measurement of one reading a second."""
    readings = [("power_reading", start + 1000 * second, watts) for second in range(1, seconds + 1)]
    stop = ("power_measurement_stop", start + seconds * 1000, None)
    return [("power_measurement_start", start, None), *readings, stop]


def test_energy_is_mean_power_times_the_time_to_train_and_a_shorter_measurement_is_noted(tmp_path):
    folder = tmp_path / "power" / "result_0"
    write_power(folder / "node_0.txt", [("conversion_eff", START - 5, 0.5), *steady(200.0, 120)])
    write_power(folder / "node_1.txt", steady(100.0, 120))
    write_power(folder / "sw_0.txt", [("conversion_eff", START, 0.9), ("interconnect_power_est", START, 10.0)])
    energy = run_energy(tmp_path / "result_0.txt", started_ms=START, minutes=2.0)
    assert energy.joules == pytest.approx((0.5 * 200 + 100 + 0.9 * 10) * 120)
    assert (energy.nodes, energy.switches, energy.notes) == (2, 1, ())
    write_power(folder / "node_1.txt", steady(1.0, 90))
    energy = run_energy(tmp_path / "result_0.txt", started_ms=START, minutes=2.0)
    assert energy.notes == (
        "power/result_0/node_1.txt does not cover the whole time to train, which the rules require",
    )


def test_a_reading_is_the_power_since_the_one_before_it(tmp_path):
    events = [
        ("power_reading", START - 500, 1e9),  # before the start: none
        *(("power_measurement_start", START, None), ("power_reading", START + 3000, 10.0)),
        *(("power_reading", START + 4000, 50.0), ("power_measurement_stop", START + 5000, None)),
        ("power_reading", START + 6000, 1e9),
    ]
    write_power(tmp_path / "power" / "result_0" / "node_0.txt", events)
    energy = run_energy(tmp_path / "result_0.txt", started_ms=START, minutes=0.05)
    assert energy.joules == pytest.approx((10 * 3 + 50 * 1) / 5 * 3)
    assert any("2 readings, but the rules require 60" in note for note in energy.notes)
    assert any("less than the one reading per second" in note for note in energy.notes)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([("power_reading", START, 1.0)], "no power_measurement_start"),
        ([("power_measurement_start", START, None)], "an empty measurement"),
        ([("power_measurement_start", START, None), ("power_reading", START + 9, "warm")], "line 2.*is not a number"),
        ([], "no readable :::MLLOG record"),
    ],
)
def test_a_file_without_a_measurement_is_named(tmp_path, events, why):
    write_power(tmp_path / "power" / "result_0" / "node_0.txt", events)
    with pytest.raises(PowerError, match=f"result_0/node_0.txt.*{why}"):
        run_energy(tmp_path / "result_0.txt", started_ms=START, minutes=1.0)


def test_readings_without_a_finite_sum_are_no_energy(tmp_path):
    write_power(tmp_path / "power" / "result_0" / "node_0.txt", steady(1.7e308, 120))
    with pytest.raises(PowerError, match="power/result_0 have no finite sum"):
        run_energy(tmp_path / "result_0.txt", started_ms=START, minutes=2.0)


def test_missing_and_misnumbered_files_are_named(tmp_path):
    with pytest.raises(PowerError, match="power/result_0 holds no node_0.txt"):
        run_energy(tmp_path / "result_0.txt", started_ms=START, minutes=1.0)
    write_power(tmp_path / "power" / "result_0" / "node_1.txt", steady(1.0, 60))
    with pytest.raises(PowerError, match="are not consecutive from 0"):
        run_energy(tmp_path / "result_0.txt", started_ms=START, minutes=1.0)


def test_energy_of_a_set_is_the_mean_over_the_runs_of_its_score(tmp_path, write_run):
    for number, minutes in enumerate([1.0, 2.0, 3.0, 4.0, 5.0]):
        # The fastest and the slowest run draw far more: their energy must not count.
        watts = 1e6 if number in (0, 4) else 100.0
        write_run(tmp_path, number, minutes=minutes)
        begin = (1.8e9 + number * 1e5) * 1000
        write_power(tmp_path / "power" / f"result_{number}" / "node_0.txt", steady(watts, 301, begin))
    (one,) = scores.score([tmp_path])
    assert one.energy_joules == pytest.approx(100 * 180) and one.energies[1] == pytest.approx(100 * 120)
    assert not any("power" in note for note in one.notes)
    text = score_table.table([one], detailed=True)
    assert "energy   18,000 J of the system (unverified)" in text
    (tmp_path / "power" / "result_1" / "node_0.txt").unlink()
    (one,) = scores.score([tmp_path])
    assert one.energy_joules is None and one.score_minutes is not None
    assert any("the energy was not computed: power/result_1 holds no node_0.txt" in note for note in one.notes)


def test_the_energy_of_a_log_is_that_of_its_blocks_and_what_used_it_is_named(tmp_path, write_run):
    lacks = {"cpu_joules": "PermissionError: Permission denied"}
    for number in range(3):
        written = write_run(
            tmp_path, number, minutes=2.0 + number, **{keys.DATASET: "digits", keys.QUALITY_TARGET: 0.75}
        )
        log_loads(written, {"gpu_joules": 100.0}, {"gpu_joules": 50.0 + number}, lacks=lacks)
    (one,) = scores.score([tmp_path], show_progress=False)
    assert one.gpu_joules == pytest.approx(151) and one.cpu_joules is None and one.energy_joules is None
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


def test_runs_have_in_common_the_systems_energy_or_that_of_the_same_parts(tmp_path, write_run):
    both = summarize(read(log_loads(write_run(tmp_path / "a", 0), {"gpu_joules": 5.0, "cpu_joules": 2.0})))
    one = summarize(read(log_loads(write_run(tmp_path / "b", 0), {"gpu_joules": 6.0})))
    none = summarize(read(log_loads(write_run(tmp_path / "c", 0), {}, lacks={"gpu_joules": "Error: gone"})))
    assert shared_energy([both]) == ("GPUs and processors", {both.path: 7.0})
    assert shared_energy([both, one]) == ("GPUs", {both.path: 5.0, one.path: 6.0})
    assert shared_energy([both, one, none]) == ("gpu_joules: Error: gone", {})
    assert shared_energy([]) == ("", {})
    write_power(tmp_path / "a" / "power" / "result_0" / "node_0.txt", steady(10.0, 600, both.started_ms))
    assert shared_energy([both]) == ("system", {both.path: pytest.approx(6000)})


def test_compare_states_the_energy_of_both_sets(tmp_path, make_set, told, printed):
    sets = [make_set(tmp_path / name, times=[58.0, 59.0, 60.0]) for name in ("one", "two")]
    for folder, joules_each in zip(sets, (90.0, 30.0), strict=True):
        for log in folder.glob("result_*.txt"):
            log_loads(log, {"cpu_joules": joules_each})
    assert told("compare", *sets)["energy"] == {"of": "processors", "joules": [90, 30]}
    assert "Energy of processors: 90 J and 30 J (means), 3x (unverified)." in printed("compare", "--verbose", *sets)
