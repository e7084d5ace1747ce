"""The table of a race, and that a failing step of the report takes nothing else with it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from judging.ground.errors import TimedrunError
from judging.pages import plot
from timedrun.race.race_file import Race
from timedrun.race.report import Report

WriteRun = Callable[..., Path]


def made(race: Race, folder: Path) -> tuple[Report, str]:
    report = Report(race, folder)
    report.make(lambda paths: [], "few runs", "no matplotlib")
    return report, "\n".join([*report.table(None), *report.details(folder)])


def test_the_table_leads_with_the_paired_ratio_and_its_verdict(race: Race, tmp_path: Path) -> None:
    report, text = made(race, tmp_path)
    row = next(line for line in text.splitlines() if line.startswith("config a"))
    assert row.split("  ")[1].strip() == "2.03x [1.90, 2.17]" and "faster" in row and row.endswith("2.00x")
    assert "config b is" in text and not report.failed
    assert "portable    config b takes 0.492 [0.461, 0.526] of the time of config a on the same machine" in text
    assert "package     skipped: few runs" in text and "figure      skipped: no matplotlib" in text
    written = json.loads((tmp_path / "race.json").read_text())
    assert written["runs_seconds"] == {"config a": [40.0, 44.0, 41.0], "config b": [20.0, 21.0, 20.5]}
    assert written["ratios"]["config a / config b"]["verdict"] == "faster"
    assert "range" not in report.table(80)[1]  # fits a small terminal


def test_too_few_pairs_have_no_interval_and_a_failed_run_no_partner(race: Race, tmp_path: Path) -> None:
    race.turns[1].status, race.turns[1].why = "failed", "exit code 1"
    report, text = made(race, tmp_path)
    assert "too few pairs (2 < 3)" in text and "[1" not in text
    assert "2 of 3, 1 failed" in text and "failed      config b, run 0: exit code 1" in text
    assert report.failed


def test_failing_steps_are_lines_and_all_that_was_found_is_written(
    race: Race, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TimedrunError("the disk is full")

    monkeypatch.setattr(plot, "plot_quality", fail)
    report = Report(race, tmp_path)
    report.make(lambda paths: 1 / 0, "", "")  # type: ignore[arg-type, return-value]  # the package fails on toy logs
    text = "\n".join(report.details(tmp_path))
    for what in ("check failed: ", "package failed: ", "figure failed: the disk is full"):
        assert f"problem     {what}" in text
    assert "ZeroDivisionError" in text and report.failed and len(report.table(None)) == 5
    assert len(json.loads((tmp_path / "race.json").read_text())["problems"]) == 3


def test_the_intervals_of_an_ablation_hold_all_at_once(race: Race, tmp_path: Path) -> None:
    _, alone = made(race, tmp_path)
    race.ablation = True
    race.comparisons = [replace(race.comparisons[0], row=f"m{number}, left out") for number in range(5)]
    report, text = made(race, tmp_path)
    assert report.confidence == pytest.approx(0.99) and "the 5 intervals hold all at once" in text
    assert "2.03x [1.90, 2.17]" in alone and "2.0x [1.7, 2.4]" in text  # t = 4.303 and 9.925


def test_a_race_stopped_within_a_round_says_so_and_names_disturbed_runs(race: Race, tmp_path: Path) -> None:
    race.turns[-1].session = 1
    report, _ = made(race, tmp_path)
    report.sets["b"][1] = replace(report.sets["b"][1], disturbances=("other processes used 61%", "x 7%"))
    report.compare()
    text = "\n".join(report.details(tmp_path))
    assert "the race was stopped within round 2" in text
    assert "disturbed   b/result_1.txt: other processes used 61%; x 7%" in text
    assert "undisturbed config a / config b: " in text and "too few pairs (2 < 3)" in text
