"""`timedrun tune`: trials of configs and of commands, the files of what is chosen, and what a race says of them."""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from image_classification.configs import digits_baseline, digits_methods
from judging.ground.errors import UsageError
from mlevents import keys
from mlevents.record import read
from tests.timedrun.racing.conftest import write_log, write_run
from timedrun.cli import main
from timedrun.evidence import config_race
from timedrun.evidence.config_sides import sides_of
from timedrun.racing import conduct, report
from timedrun.racing.turns import run_all
from timedrun.runner.benchmark import find
from timedrun.runner.config import digest, dump
from timedrun.runner.config_choice import read_config

__all__ = ["write_log", "write_run"]

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'timedrun[tune]'")
DIGITS = ["tune", "image_classification", "baseline", "methods", "--threads", "1", "--minutes", "0.1"]
BENCHMARK = find("image_classification")


@pytest.fixture
def clock(monkeypatch) -> None:
    """Each run takes a second of machine time; reports check and package nothing."""
    for verb in ("command_race", "config_race"):
        monkeypatch.setattr(f"timedrun.commands.{verb}.package_race", lambda race, folder: ("", False, {}))
    monkeypatch.setattr(report, "check_paths", lambda *paths, **options: [])
    monkeypatch.setattr(conduct, "find_spec", lambda name: None)
    monkeypatch.setattr(conduct, "run_all", partial(run_all, clock=count(0.0).__next__))


@pytest.fixture
def trained(clock, monkeypatch, write_run) -> list[dict[str, Any]]:
    """Runs of configs write a log at once, the faster the nearer their rate is to 0.3; returns the settings of each."""
    settings: list[dict[str, Any]] = []

    def run(command: list[str], label: str, **options: Any) -> tuple[int, str, int]:
        values = json.loads(Path(command[command.index("image_classification") + 1]).read_text())
        settings.append(values)
        log, seconds = Path(command[command.index("--results") + 1]), 10 + abs(values["optimizer"]["peak_lr"] - 0.3)
        write_run(log.parent, int(log.stem.removeprefix("result_")), seconds, quality=0.6)
        return 0, "", 0

    monkeypatch.setattr(config_race, "run_child", run)
    return settings


def test_configs_are_tuned_on_a_split_of_their_own_and_become_files(tmp_path, trained, told, printed, refused):
    folder = tmp_path / "tune"
    ranges = ["--a.optimizer.peak-lr", "0.2..0.4", "--b.optimizer.momentum", "0.5..0.9"]
    report = told(*DIGITS, "--target", "0.97", "--results", folder, *ranges)
    for values in trained:
        assert (values["dataset"], values["data"]["split"]) == ("digits_tuning", "tuning")
        assert values["evaluation"]["target"] == 0.97 and 0 < values["budget_minutes"] <= 0.1 / 4
    first = next(values for values in trained if values["name"] == "digits_baseline_0")
    given = dump(replace(digits_baseline(), optimizer=replace(digits_baseline().optimizer, peak_lr=0.4)))
    assert first["optimizer"] == given["optimizer"] and first["evaluation"]["first"] == 3  # as given, within the range
    for label, config in (("digits_baseline", digits_baseline()), ("digits_methods", digits_methods())):
        found = report["tuning"]["sides"][label]
        file = folder / f"{label}_tuned.json"
        assert found["file"] == str(file) and found["record"]["split"] == "digits_tuning"
        tuned = read_config(BENCHMARK, file)
        assert tuned.evaluation.target == config.evaluation.target and tuned.dataset == "digits"
        assert tuned.optimizer.peak_lr == found["settings"]["optimizer.peak_lr"] and tuned.max_epochs == 40
        assert "tuning" not in dump(tuned) and "split" not in dump(tuned)["data"] and tuned.budget_minutes == 0
    space = report["tuning"]["sides"]["digits_methods"]["record"]["space"]
    assert space["optimizer.momentum"] == "0.5..0.9" and space["global_batch"] == "32..128"
    spent = [sum(turn["seconds"] for turn in report["race"]["turns"] if turn["side"].startswith(side)) for side in
             ("digits_baseline", "digits_methods")]  # fmt: skip
    assert spent == [6.0, 6.0] and report["tuning"]["over_time"][-1]["ratios"][0] > 0
    runs = len(trained)
    assert "--minutes" in refused("tune", "--resume", folder, "--minutes", 3)
    words = f"next: timedrun race image_classification {folder}/digits_baseline_tuned.json"
    assert words in printed("tune", "--resume", folder) and len(trained) == runs


def test_a_race_says_how_long_each_side_was_tuned_and_what_was_changed_since(tmp_path, trained, printed):
    printed(*DIGITS, "--results", tmp_path / "tune")
    tuned = str(tmp_path / "tune" / "digits_methods_tuned.json")
    race = ["race", "image_classification", "baseline", tuned, "--threads", 1, "--runs", 1]
    shown = printed(*race, "--results", tmp_path / "one")
    words = r"tuning +digits_baseline not recorded; \S+ tuned 0\.\d+ min \(\d+ runs on digits_tuning\)\n"
    assert re.search(words, shown) and re.search(r"tuning +unequal: digits_baseline for 0 of the time of \S+", shown)
    (words, _) = json.loads((tmp_path / "one" / "race.json").read_text())["tuning"]
    assert words.startswith("digits_baseline not recorded")
    _, side = sides_of(BENCHMARK, ["baseline", tuned], None, ["--b.optimizer.momentum", "0.7"])
    assert side.tuned and side.tuned.words.endswith(", then changed")
    same = sides_of(BENCHMARK, [tuned], None, ["--seed", "9", "--submission.organization", "Other"])[0]
    assert same.tuned and not same.tuned.changed


def test_what_cannot_be_tuned_is_refused_before_a_run(tmp_path, trained, capsys, monkeypatch):
    for words, said in (
        ([*DIGITS, "--optimizer.peak-rl", "0.1..1"], "no setting of digits_baseline above 0. Did you mean"),
        (["tune", "image_classification", "smoke", "--data", "synthetic"], "source synthetic has no tuning split"),
        (["tune", "command", "train --lr 1", "--quality", "a(.)", "--target", "1"], "has nothing to tune"),
        (["tune", "command", "t {lr:1-2}", "--quality", "a(.)", "--target", "1"], "{lr:1-2} in 't {lr:1-2}' is no"),
    ):  # fmt: skip
        assert main([*words, "--results", str(tmp_path / "no")]) in (1, 2)
        assert said in " ".join(capsys.readouterr().err.split())
    monkeypatch.setattr("timedrun.racing.search.find_spec", lambda name: None)
    assert main([*DIGITS, "--results", str(tmp_path / "none")]) == 2
    assert "pip install 'timedrun[tune]'" in capsys.readouterr().err and not trained


def test_commands_are_tuned_by_the_ranges_in_them_and_raced_as_chosen(tmp_path, clock, monkeypatch, printed, refused):
    monkeypatch.chdir(tmp_path)
    words = ["echo {lr:0.1..10} {lr}; echo acc 0.$TIMEDRUN_SPLIT", "echo 🎯 {n:3000000..9000000}; echo acc 0.9"]
    read_as = ["--quality", "acc (.*)", "--target", "0.8", "--minutes", "0.1", "--results"]
    Path("tune.toml").write_text("split = '85'\n")
    printed("tune", "tune.toml", *words, *read_as, "tune")
    report = json.loads(Path("tune/race.json").read_text())
    for side, values in report["race"]["tuning"]["values"].items():
        log = read(Path("tune") / side / "result_0.txt")
        assert log.first(keys.LEDGER_ENTRY) and log.status == "success"
        shown = f"{values['lr']:g} {values['lr']:g}\nacc 0.85" if "lr" in values else f"🎯 {int(values['n'])}\nacc 0.9"
        assert (Path("tune") / side / "run_0" / "output.txt").read_text().strip() == shown
    assert report["race"]["tuning"]["values"]["a_0"] == {"lr": 1.0}  # the middle
    once = ["--runs", 1, "--results"]
    assert printed("race", "command", "tune/tuned.toml", *once, "race").count("runs on 85)") == 2
    text = Path("tune/tuned.toml").read_text()
    Path("edited.toml").write_text(re.sub(r'command = "echo 🎯 \d+;', 'command = "echo 99;', text))
    assert printed("race", "command", "edited.toml", *once, "edited").count("runs on 85), then changed") == 1
    assert "timedrun tune --resume tune" in refused("race", "--resume", "tune")


def test_a_benchmark_without_a_tuning_split_says_so(toy_config):
    with pytest.raises(UsageError, match="benchmark toy has no tuning split"):
        toy_config().for_tuning()
    config = digits_baseline()
    assert digest(config.for_tuning()) != digest(config) and config.for_tuning().data.split == "tuning"
    assert (longer := config.lengthened(2.0)).schedule.epochs_scaled == 12 and longer.evaluation.first == 6
    assert longer.max_epochs == config.max_epochs and config.lengthened(2.0, 0.5).evaluation.first == 3


def test_the_page_on_a_tuning_shows_what_was_given_and_chosen_after_the_minutes_so_far(
    tmp_path, trained, printed, refused, monkeypatch
):
    folder = tmp_path / "tune"
    printed(*DIGITS, "--target", "0.97", "--results", folder)
    monkeypatch.setitem(sys.modules, "optuna", None)  # who reads it need not have it
    race = json.loads((folder / "race.json").read_text())
    race["race"]["tuning"]["minutes"] = 60.0  # one that has just begun
    (folder / "race.json").write_text(json.dumps(race))
    printed("report", folder)
    page = (folder / "report.html").read_text()
    for words in ("digits_baseline: ", "digits_methods tuned", "; tuned 10", "ratio of digits_baseline", "_tuned.json"):
        assert words in page, words
    assert ">60<" not in page and page.count("<tr") > 8
    for turn in race["race"]["turns"]:
        turn["status"] = "failed"
    (folder / "race.json").write_text(json.dumps(race))
    assert "no run of" in refused("report", folder)
