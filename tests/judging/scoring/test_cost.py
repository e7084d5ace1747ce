"""Costs of times to train: a given price, a dated list price, or the reason for none."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from judging.scoring.cost import LIST, cost, machines


def described(folder: Path, name: str, each: object = "8", nodes: object = "1") -> Path:
    """A log's path next to the description of a system with these accelerators."""
    (folder / "run_0").mkdir(parents=True)
    fields = {"accelerator_model_name": name, "accelerators_per_node": each, "number_of_nodes": nodes}
    (folder / "run_0" / "system.json").write_text(json.dumps(fields))
    return folder / "result_0.txt"


def test_a_cost_is_hours_times_price(tmp_path):
    given = cost(tmp_path / "result_0.txt", 23.789, 32.77)
    assert given.usd == pytest.approx(12.9927, abs=1e-4) and given.date is None
    listed = cost(described(tmp_path, "NVIDIA A100-SXM4-80GB", nodes=2.0), 30.0, LIST)
    price = next(machine.usd_per_hour for machine in machines() if "p4de" in machine.offer)
    assert listed.usd == pytest.approx(price) and listed.usd_per_hour == pytest.approx(2 * price)
    assert "list price of 2026-" in str(listed) and "2 x AWS p4de" in str(listed)


@pytest.mark.parametrize(
    ("name", "each"), [("NVIDIA A100-PCIe-80GB", "8"), ("NVIDIA A100-SXM4-80GB", "4"), ("N/A", "0"), ("N/A", "N/A")]
)
def test_an_unknown_system_has_no_cost_and_says_so(tmp_path, name, each):
    found = cost(described(tmp_path, name, each), 30.0, LIST)
    assert found.usd is None and "give its --price" in str(found)
    assert cost(tmp_path / "elsewhere" / "result_0.txt", 30.0, LIST).usd is None
    assert cost(tmp_path, None, 1.0).reason == "there is no score"


def test_every_list_price_is_dated_and_has_its_source():
    for machine in machines():
        assert machine.usd_per_hour > 0 and machine.accelerators > 0 and machine.offer
        assert "transcribed in" in machine.source
        date.fromisoformat(machine.date)
        re.compile(machine.accelerator)


def test_score_and_compare_show_costs(tmp_path, make_set, told, printed, refused):
    slow = make_set(tmp_path / "slow", times=[58.0, 59.0, 60.0, 61.0, 62.0])
    fast = make_set(tmp_path / "fast", times=[29.0, 29.5, 30.0, 30.5, 31.0])
    said = printed("score", slow, "--price", "10")
    assert "cost     $10.00 at $10.00 per hour (given price) (unverified)" in said
    (scored,) = told("score", slow, "--price", "list")
    assert scored["cost"]["usd"] is None and "no list price" in scored["cost"]["reason"]
    costs = told("compare", slow, fast, "--price", "10", "40")["costs"]
    assert [cost["usd"] for cost in costs] == pytest.approx([10, 20], rel=1e-3)
    said = printed("compare", slow, fast, "--price", "10")
    assert "The first costs 2x as much as the second (unverified)." in said
    refused("compare", slow, fast, "--price", "1", "2", "3")
