"""`timedrun profile`: from the command line to table and JSON."""

import json
from typing import Any

import pytest

from judging.comparison.composition import composition
from timedrun.evidence.analysis.profile_report import show_composition
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_benchmark import StepRow, show_steps
from timedrun.evidence.analysis.step_times import StepTimes
from timedrun.runner.benchmark import find

SMOKE = ["profile", "image_classification", "smoke", "--data", "synthetic"]
FEW = ["--steps", 5]


@pytest.mark.usefixtures("forked_workers")
def test_steps_of_two_configs_in_turns_are_compared_and_written(tmp_path, printed, monkeypatch):
    monkeypatch.setitem(StepPlan.__init__.__kwdefaults__, "positions", (0.0, 1.0))  # the ends of the schedule alone
    out = tmp_path / "steps.json"
    options = ["--interleaved", "--steps", 1, "--threads", 1, "--out", out]
    header, _, first, second, *rest = printed(*SMOKE, "smoke-ema", *options, "--b.seed", 7).splitlines()
    assert "samples/s" in header and "tokens/s" not in header and "MFU" not in header
    assert first.split()[0] == "synthetic_smoke" and second.startswith("smoke-ema seed 7")
    assert any("peak unknown" in line for line in rest)
    rows = json.loads(out.read_text())["rows"]
    assert rows[0]["speed_up"] is None and rows[1]["speed_up"]["ratio"] > 0
    assert rows[0]["operations_per_step"] == rows[1]["operations_per_step"] > 0
    assert rows[0]["samples_per_second"] == rows[0]["global_batch"] / rows[0]["seconds_per_step"]["median"]


def test_a_config_that_failed_is_named_below_the_others(capsys):
    config = find("image_classification").config("smoke", "synthetic")
    times = StepTimes((0.5,), ((0.004,),), seconds_of_steps=((0.003, 0.004, 0.005),), operations=(2e6,))
    show_steps([StepRow("smoke", config, times, None, None, None)], {"broken": "MemoryError: none left"})
    _, _, row, failed, _ = capsys.readouterr().out.splitlines()
    assert row.split() == ["smoke", "4", "3.5", "-", "4.5", "16,000", "0.002", "0.5", "0", "MiB", "-"]
    assert failed == "broken: failed: MemoryError: none left"


def test_profiles_are_written_and_shown_also_where_they_do_not_compose(tmp_path, answered, told):
    out = tmp_path / "profiles.json"
    words = [*SMOKE, "smoke", "--b.global-batch", 8, *FEW, "--synthetic", "--evaluation", "--out", out]
    shown, warned = answered(*words, code=0)
    assert shown.count(" per step, by progress of the run") == 2 and "batch 8" in shown
    assert "they do not compose" in warned and "all together" not in shown
    written = json.loads(out.read_text())
    values, second = written["profiles"]
    assert second["global_batch"] == 8 and written["composition"] == [] and values["synthetic_data"]
    assert {at["input"] for at in values["positions"]} == {"16 px"}
    assert len(values["positions"]) == 5 and values["evaluation_seconds"] > 0
    parts = values["schedule"]["parts"]
    assert {"loading", "forward", "backward", "optimizer", "method ema", "evaluation"} <= parts.keys()
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    assert told(*SMOKE, "--steps", 1)["evaluation_seconds"] is None


def test_what_cannot_run_is_refused_before_anything_is_measured(tmp_path, refused, monkeypatch):
    for words, said, code in (
        ([*SMOKE, "--out", tmp_path / "absent" / "profile.json"], "does not exist; nothing was measured", 2),
        ([*SMOKE, "--out", tmp_path], "this is a folder; nothing was measured", 2),
        (SMOKE[:2], "at least one config", 2),
        ([*SMOKE[:2], "baseline", "--data", "cifar10"], "--data-folder", 1),
        ([*SMOKE, "--evaluation.every", 0], "must be at least 1", 1),
        ([*SMOKE, "--threads", -1], "--threads -1: use a number from 1", 1),
    ):
        assert said in refused(*words, code=code)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "start it without a launcher" in refused(*SMOKE)


def test_several_profiles_say_what_the_changes_give_together(capsys):
    def values(label: str, backward: float) -> dict[str, Any]:
        at = {"progress": 0.5, "seconds_per_step": 1 + backward, "parts": {"forward": 1.0, "backward": backward}}
        schedule = {"steps": 10, "evaluations": 0}
        return {"label": label, "positions": [at], "schedule": schedule, "evaluation_seconds": None, "config": "-"}

    rows = composition([values("base", 2.0), values("one", 1.0), values("two", 1.0)])
    assert [row["saves"] for row in rows] == pytest.approx([0, 1 / 3, 1 / 3, 1 / 2])
    show_composition(rows)
    cells = {line.split("  ")[0]: line.split()[-2:] for line in capsys.readouterr().out.splitlines()}
    assert cells["one"] == ["33.3%", "16.7%"] and cells["all together"] == ["50.0%", "-"]
