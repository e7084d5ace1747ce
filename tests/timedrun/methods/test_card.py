"""Cards of the methods: what the code says of them, what was measured, and how they are printed."""

import json
from pathlib import Path

import pytest

from judging.ground.errors import ExitCode, UsageError
from timedrun.cli import main
from timedrun.methods import BlurPool, ChannelsLast, SequenceLengthWarmup, card
from timedrun.methods.card import clashes, find_card, places, rows, settings, with_cards


def test_settings_places_and_clashes_are_those_of_the_code() -> None:
    assert settings(BlurPool)[-1] == "min_channels=16"
    assert settings(SequenceLengthWarmup)[0] == "steps (required)"
    assert places(BlurPool) == [] and places(ChannelsLast) == ["batch"]
    assert clashes("mixup").keys() >= {"cutmix"} and clashes("cutmix")["mixup"] == clashes("mixup")["cutmix"]


def test_costs_come_from_the_file_of_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "COSTS", tmp_path / "method_cost.json")
    assert not {"inference", "cost per step"} & dict(rows(find_card("blurpool"))).keys()
    ratio = {"median": 1.25, "quartiles": [1.2, 1.3], "model": "small"}
    cost = {"model": "large", "parameters": [1000, 1000], "flops": [2e9, 2.1e9], "latency": ratio, "step": ratio}
    loader = {"model": "large", "parameters": [1000, 900], "flops": [2e9, 2e9], "augment_seconds_per_image": 0.002}
    card.COSTS.write_text(json.dumps({"methods": {"blurpool": cost, "ema": loader}}))
    shown = dict(rows(find_card("blurpool")))
    times = "1.25 times that without it, quartiles 1.20 to 1.30"
    assert shown["inference"].startswith(f"large: 1,000 parameters (unchanged), 2.10 GFLOPs (+5.00%); latency {times}")
    assert shown["cost per step"].startswith(f"small: {times}")
    shown = dict(rows(find_card("ema")))
    assert shown["inference"].startswith("large: 900 parameters (-10.00%), 2.00 GFLOPs (unchanged); the layers")
    assert shown["cost of augmenting"].startswith("2.00 ms per image of 224 pixels")


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(UsageError, match="lacks the marks"):
        with_cards("# Methods\n")


def test_list_methods_has_stages_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods", "--json"]) == ExitCode.OK
    listed = {row["method"]: row["stage"] for row in json.loads(capsys.readouterr().out)}
    assert listed["blurpool"] == "model" and listed["bf16"] == "setting"
    assert list(listed.values()).index("weights") > list(listed.values()).index("targets")
    assert main(["list", "methods"]) == ExitCode.OK
    assert "low-pass filter" in capsys.readouterr().out


def test_show_method_prints_the_card_or_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "method", "blurpool"]) == ExitCode.OK
    assert "arXiv 1904.11486" in capsys.readouterr().out
    assert main(["show", "method", "bf16", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["set by"] == "--precision bf16"
    assert main(["show", "method", "blurpol"]) == ExitCode.USAGE
    assert "Did you mean blurpool?" in capsys.readouterr().err
    assert main(["show", "methods"]) == ExitCode.USAGE
    assert main(["new", "benchmark", "methods"]) == ExitCode.USAGE


def test_a_config_named_methods_is_still_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "image_classification", "methods"]) == ExitCode.OK
    assert "digits_methods" in capsys.readouterr().out
