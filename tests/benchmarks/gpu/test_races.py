"""Races are held to the checkers; their logs give the time of the warm-up and the energy."""

from pathlib import Path

import pytest

from benchmarks.gpu.races import RACES, of_logs
from mlevents import keys
from mlevents.runlog import RunLog
from tests.benchmarks.gpu.script_run import passed, run
from timedrun.benchmark import find
from timedrun.race.sides import sides_of

pytestmark = pytest.mark.timeout(300)


def test_a_race_is_held_to_the_checkers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = run("races", tmp_path, "images")
    assert passed(values) == ["the race ended", "strict checks pass", "official checks pass"]
    assert values["checks"]["strict checks pass"]["found"]["logs"] == 2
    assert values["command"][:3] == ["python", "-m", "benchmarks.gpu.races"]
    logs = [log for logs in values["logs"].values() for log in logs]
    assert len(logs) == 2 and all(log["warm_up_seconds"] > 0 and log["joules"] is None for log in logs)
    assert "with warm-up" in capsys.readouterr().out


@pytest.mark.parametrize("name", RACES)
def test_the_configs_and_overrides_of_every_race_exist(name: str) -> None:
    race = RACES[name]
    sides = sides_of(find(race.benchmark), list(race.configs), race.data, list(race.overrides))
    assert [side.config.precision for side in sides] == [sides[0].config.precision] * len(race.configs)


def test_the_energy_of_a_run_is_the_sum_of_its_blocks(tmp_path: Path) -> None:
    race = {"sides": {"a": "A", "b": "B"}, "turns": []}
    for side, blocks in (("a", [{"gpu_joules": 5.0}, {"gpu_joules": 2.5}]), ("b", [{"gpu_joules": 5.0}, {}])):
        (tmp_path / side).mkdir()
        with RunLog(tmp_path / side / "result_1.txt", durable=False) as log:
            log.start(keys.INIT_START)
            log.end(keys.INIT_STOP)
            for block in blocks:
                log.event(keys.MACHINE_LOAD, block)
        race["turns"] += [{"side": side, "number": 1, "status": "finished"}]  # type: ignore[operator]
    found = of_logs(tmp_path, race)
    assert [found[label][0]["joules"] for label in ("A", "B")] == [7.5, None]
