"""Measured costs on the cards of methods."""

import json

import pytest

from benchmarks import method_cards
from benchmarks.method_cards import costs, with_cards
from judging.ground.errors import UsageError


def test_costs_come_from_the_file_of_measurements(tmp_path, monkeypatch):
    monkeypatch.setattr(method_cards, "COSTS", tmp_path / "method_cost.json")
    ratio = {"median": 1.25, "quartiles": [1.2, 1.3], "model": "small"}
    cost = {"model": "large", "parameters": [1000, 1000], "flops": [2e9, 2.1e9], "latency": ratio, "step": ratio}
    loader = {"model": "large", "parameters": [1000, 900], "flops": [2e9, 2e9], "augment_seconds_per_image": 0.002}
    method_cards.COSTS.write_text(json.dumps({"methods": {"blurpool": cost, "ema": loader}}))
    shown = dict(costs("blurpool"))
    times = "1.25 times that without it, quartiles 1.20 to 1.30"
    assert shown["inference"].startswith(f"large: 1,000 parameters (unchanged), 2.10 GFLOPs (+5.00%); latency {times}")
    assert shown["cost per step"].startswith(f"small: {times}")
    shown = dict(costs("ema"))
    assert shown["inference"].startswith("large: 900 parameters (-10.00%), 2.00 GFLOPs (unchanged); the layers")
    assert shown["cost of augmenting"].startswith("2.00 ms per image of 224 pixels")
    assert not list(costs("cutmix"))


def test_a_page_without_marks_is_refused():
    with pytest.raises(UsageError, match="lacks the marks"):
        with_cards("# Methods\n")
