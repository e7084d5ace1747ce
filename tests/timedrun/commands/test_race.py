"""`timedrun race`: order of runs, report, package and interruption."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mlevents import keys
from mlevents.record import read
from mlevents.runlog import RunLog
from mlevents.summary import summarize
from timedrun.cli import main
from timedrun.commands import race
from timedrun.commands.child_run import run_child
from timedrun.commands.race import compared, interleaved, print_report


def test_every_config_runs_once_a_round_and_no_config_is_always_first() -> None:
    assert interleaved(["a", "b", "c"], 3) == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]


def test_the_report_names_disturbed_runs_and_gives_the_ratio_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = {name: [summarize(read(logged(tmp_path / name, number))) for number in range(3)] for name in ("a", "b")}
    sets["b"][1] = replace(sets["b"][1], disturbances=("other processes used 61% of the machine's CPU time", "x 7%"))
    ratios = compared(sets, "b")
    print_report(sets, "b", ratios, [])
    lines = capsys.readouterr().out.splitlines()
    assert "disturbed   b/result_1.txt: other processes used 61% of the machine's CPU time; x 7%" in lines
    assert any(line.startswith("undisturbed a / b: 1.00x, too few pairs (2; 3 are needed)") for line in lines)
    print_report(sets, "b", compared({"a": sets["a"], "b": sets["a"]}, "b"), [])
    assert "undisturbed" not in capsys.readouterr().out


def logged(folder: Path, number: int) -> Path:
    """Write a run on toy data that reached its target after a minute."""
    folder.mkdir(exist_ok=True)
    now = [1.7e9 + number * 1000]
    with RunLog(folder / f"result_{number}.txt", clock=lambda: now[0], durable=False) as log:
        log.event(keys.SUBMISSION_BENCHMARK, "resnet")
        log.event(keys.DATASET, "toy")
        log.event(keys.QUALITY_TARGET, 0.5)
        log.start(keys.RUN_START)
        now[0] += 60
        log.event(keys.EVAL_ACCURACY, 0.5 + number / 10, epoch_num=1)
        log.end(keys.RUN_STOP, status=keys.SUCCESS)
    return folder / f"result_{number}.txt"


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_race_ends_in_checked_logs_a_package_a_figure_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "timedrun", "race", "image_classification", "smoke", "--data", "synthetic"]
    command += ["--threads", "1", "--results", str(tmp_path / "race")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"synthetic_smoke +5 of 5", done.stdout)
    assert re.search(r"5 of 5 +5 of 5", done.stdout)
    assert "Result not verified by MLCommons Association." in done.stdout
    assert "package     strict pass, official pass by mlperf-logging" in done.stdout
    assert "synthetic_smoke 5/5" in done.stderr  # progress is visible
    written = json.loads((tmp_path / "race" / "race.json").read_text())
    assert len(written["runs_seconds"]["synthetic_smoke"]) == 5
    assert (tmp_path / "race" / "quality_over_time.png").exists()
    readme = next((tmp_path / "race" / "package").rglob("README.md")).read_text()
    assert "demonstration" in readme.lower()
    verdicts = [one for one in written["verdicts"] if one["path"].endswith(".txt")]
    for one in verdicts:
        assert (one["strict"], one["official"], one["ruleset"]) == ("pass", "pass", "2.0.0")
        assert one["checker"].startswith("mlperf-logging 4.1.") and one["demonstration"]
    assert len(verdicts) == 5
    assert main(["score", str(tmp_path / "race" / "synthetic_smoke"), "--json"]) == 0
    (score,) = json.loads(capsys.readouterr().out)
    assert not score["verified"] and score["demonstration"]
    assert score["score_minutes"] == pytest.approx(sum(sorted(score["runs"])[1:-1]) / 3)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 2
    assert "never overwritten" in again.stderr


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_an_interrupted_race_reports_the_finished_runs_and_exits_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [(130, "", True), None, (75, "", True)]

    def run(command: list[str]) -> tuple[int, str, bool]:
        return outcomes.pop(0) or run_child(command)

    monkeypatch.setattr(race, "run_child", run)
    command = ["race", "image_classification", "smoke", "--data", "synthetic", "--threads", "1", "--results"]
    assert main([*command, str(tmp_path / "nothing")]) == 130
    assert not (tmp_path / "nothing" / "race.json").exists()
    assert main([*command, str(tmp_path / "race")]) == 130
    printed = capsys.readouterr()
    assert re.search(r"synthetic_smoke +1 of 1", printed.out)
    assert "package     not made: the race was interrupted" in printed.out
    assert "run 1 of synthetic_smoke was interrupted (exit code 75)" in printed.err
    written = json.loads((tmp_path / "race" / "race.json").read_text())
    assert len(written["runs_seconds"]["synthetic_smoke"]) == 1
