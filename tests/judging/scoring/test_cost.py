"""Costs of times to train at a given price."""

import pytest


def test_score_and_compare_show_costs(tmp_path, make_set, told, printed, refused):
    slow = make_set(tmp_path / "slow", times=[58.0, 59.0, 60.0, 61.0, 62.0])
    fast = make_set(tmp_path / "fast", times=[29.0, 29.5, 30.0, 30.5, 31.0])
    said = printed("score", slow, "--price", "10")
    assert ": cost $10.00 at $10.00 per hour." in said
    assert "list is no price: give US dollars per hour" in refused("score", slow, "--price", "list")
    costs = told("compare", slow, fast, "--price", "10", "40")["costs"]
    assert [cost["usd"] for cost in costs] == pytest.approx([10, 20], rel=1e-3)
    said = printed("compare", slow, fast, "--price", "10")
    assert "The first costs 2x as much as the second (unverified)." in said
    refused("compare", slow, fast, "--price", "1", "2", "3")
