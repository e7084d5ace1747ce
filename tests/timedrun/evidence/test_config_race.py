"""`timedrun race`: report, package, interruption and continuation."""

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from timedrun.cli import main
from timedrun.evidence import config_race
from timedrun.racing import conduct
from timedrun.racing.child_run import run_child
from timedrun.racing.race_file import Race


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_race_makes_checked_logs_a_package_and_a_table(tmp_path, capsys):
    command = [sys.executable, "-m", "timedrun", "race", "image_classification", "smoke", "--data", "synthetic"]
    command += ["--threads", "1", "--results", str(tmp_path / "race")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"synthetic_smoke +5 of 5", done.stdout)
    assert "strict: 5 of 5 logs pass, official: 5 of 5" in done.stdout
    assert "Result not verified by MLCommons Association." in done.stdout
    assert "package     strict pass, official pass by mlperf-logging" in done.stdout
    assert "synthetic_smoke 5/5" in done.stderr  # progress is visible
    written = json.loads((tmp_path / "race" / "race.json").read_text())
    assert (tmp_path / "race" / "quality_over_time.png").exists()
    assert "demonstration" in next((tmp_path / "race" / "package").rglob("README.md")).read_text().lower()
    verdicts = [verdict for verdict in written["verdicts"] if verdict["path"].endswith(".txt")]
    assert len(verdicts) == 5
    for verdict in verdicts:
        assert (verdict["strict"], verdict["official"], verdict["ruleset"]) == ("pass", "pass", "2.0.0")
        assert verdict["checker"].startswith("mlperf-logging 4.1.") and verdict["demonstration"]
    assert main(["score", str(tmp_path / "race" / "synthetic_smoke"), "--json"]) == 0
    (score,) = json.loads(capsys.readouterr().out)
    assert not score["verified"] and score["demonstration"]
    assert score["score_minutes"] == pytest.approx(sum(sorted(score["runs"])[1:-1]) / 3)
    assert main(command[3:]) == 2 and "never overwritten" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_an_interrupted_race_reports_the_finished_runs_and_is_continued(tmp_path, monkeypatch, answered, printed):
    outcomes = [None, (75, "", signal.SIGTERM), None]
    monkeypatch.setenv("TIMEDRUN_DATA", str(tmp_path))

    def run(command: list[str], label: str, **options: Any) -> tuple[int, str, int]:
        assert command[command.index("--data-folder") + 1] == str(tmp_path)
        return outcomes.pop(0) or run_child(command, label, **options)

    monkeypatch.setattr(config_race, "run_child", run)
    monkeypatch.setattr(conduct, "find_spec", lambda name: None)  # no matplotlib
    command = ["race", "image_classification", "smoke", "--data", "synthetic", "--threads", "1", "--runs", "2"]
    shown, said = answered(*command, "--results", tmp_path / "race", code=143)
    assert said.index("no figure: matplotlib is missing") < said.index("run 1/2")
    assert "no package: MLPerf requires 5 runs per set, this race has 2 (use --runs 5)" in said
    assert re.search(r"synthetic_smoke +1 of 1", shown)
    assert "run 2/2, synthetic_smoke, interrupted: exit code 75" in said
    assert f"continue with `timedrun race image_classification --resume {tmp_path / 'race'}`" in said
    assert "package     skipped: the race was interrupted" in shown
    written = json.loads((tmp_path / "race" / "race.json").read_text())
    assert len(written["runs_seconds"]["synthetic_smoke"]) == 1
    assert written["race"]["options"]["data_folder"] is None  # the variable's value is not for publication
    shown = printed("race", "--resume", tmp_path / "race", "--verbose")
    assert re.search(r"synthetic_smoke +2 of 2", shown)
    assert re.search(r"clocks +synthetic_smoke: \S+ s of training alone \(the speedrun's clock\), \d+ steps", shown)
    written = json.loads((tmp_path / "race" / "race.json").read_text())
    times = zip(written["training_seconds"]["synthetic_smoke"], written["runs_seconds"]["synthetic_smoke"], strict=True)
    assert [0 < alone < whole for alone, whole in times] == [True, True]
    assert len(written["steps"]["synthetic_smoke"]) == 2 and written["package"].startswith("skipped: MLPerf")


def test_faults_of_any_side_are_found_before_the_first_run(tmp_path, refused):
    race = tmp_path / "race"
    command = ["race", "image_classification", "baseline", "methods", "--data", "digits", "--results", race]
    said = refused(*command, "--a.seed", -1, "--b.evaluation.target", 99, code=1)
    assert "baseline seed -1: " not in said and "methods evaluation.target 99: evaluation.target 99.0 is not" in said
    assert "--ablate takes a config, or a baseline and a config, not 3" in refused(*command, "--ablate", "methods-ema")
    assert "--first-seed: -1 is not" in refused(*command, "--first-seed", -1)
    assert not race.exists() and "holds no race.json" in refused("race", "--resume", race)


@pytest.mark.parametrize(
    "words",
    [
        *(["--threads", "7"], ["--ranks", "3"], ["--control", "2"], ["--first-seed", "4"], ["--ablate"]),
        *(["--data", "cifar10"], ["--results", "x"], ["--data-folder", "/there"], ["--keep-if", "quality"]),
        *(["--until-decided"], ["--start", "x"], ["--at", "main"]),
    ],
    ids=lambda words: words[0],
)
def test_a_known_race_refuses_each_option_that_its_plan_does_not_have(words, tmp_path, monkeypatch, refused):
    monkeypatch.setattr(conduct.Conduct, "run", lambda *_: 0)
    monkeypatch.setenv("TIMEDRUN_DATA", "/elsewhere")
    plan = {"threads": 1, "data_folder": "/here"}
    Race(benchmark="image_classification", runs=2, sides={}, turns=[], options=plan).save(tmp_path)
    known = ["race", "image_classification", "--resume", str(tmp_path)]
    assert f"leave out {words[0]}." in refused(*known, *words)
    assert "leave out configs and overrides" in refused(*known, "--optimizer.peak-lr", 1)
    assert main([*known, "--threads", "1", "--runs", "2", "--data-folder", "/here", "--json"]) == 0
