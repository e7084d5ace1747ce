"""The page opens with the answers of a sweep: those of `timedrun tradeoff`, on cards of its logs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from timedrun import cli

pytest.importorskip("vl_convert", reason="needs the extra 'explorer'")


def embedded(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    values: dict[str, Any] = json.loads(found[1])
    return values


def test_each_answer_is_that_of_tradeoff_and_names_the_cards_of_its_logs(swept_page, capsys):
    values = embedded(swept_page)
    (sweep,) = values["sweeps"]
    assert sweep["sweep"] == "results/sweep" and sweep["labels"] == ["base", "fast"]
    runs = {one["id"]: {run["seed"] for run in one["runs"]} for one in values["sets"]}
    assert [[runs[card] for card in cards] for cards in sweep["sets"]] == 2 * [3 * [{"0", "1", "2"}]]
    kinds = {re.sub(r"[0-9.$]+", "", one["question"]).strip(): one for one in sweep["asked"]}
    assert {*kinds} == {"to", "after", "after  s", "after  J"} and sweep["asked"][0]["question"] == "to 0.6"
    for one in (sweep["asked"][0], *kinds.values()):
        amount = one["question"].split(" ", 1)[1]
        amount = f"{amount[1:]}usd" if amount.startswith("$") else amount
        option = "--budget" if one["budget"] else "--quality"
        capsys.readouterr()
        assert cli.main(["tradeoff", "sweep", option, amount, "--price", "6", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert one["answer"] == told["answer"] and sweep["labels"][one["best"]] == told["best"]
