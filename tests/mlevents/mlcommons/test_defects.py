"""Logs that fail because of a declared defect of today's rule files are checked by repaired ones, too."""

import json
import re
from dataclasses import replace

import pytest

from mlevents import keys, mlcommons
from mlevents.package_checker.system_description import KEYS
from mlevents.record import read
from mlevents.rounds import RULESETS
from tests.mlevents.conftest import put
from tests.mlevents.rounds.synthetic_logs import log_of


@pytest.fixture
def closed_bert():
    """Return a closed BERT log of v2.1 as it was right then: the optimizer's epsilon under its old name."""
    return log_of("2.1.0", "bert", keys.CLOSED)


def test_a_closed_bert_log_of_its_time_fails_today_and_passes_its_own_round(closed_bert, write):
    path = write(closed_bert)
    verdict = mlcommons.check_log(path, "2.1.0")
    assert (verdict.verdict, verdict.own_round) == ("fail", "pass")
    assert verdict.messages == ("result_0.txt: Required EXACTLY_ONE occurrence of 'opt_lamb_epsilon' but found 0",)
    assert verdict.own_messages == () and "opt_epsilon was renamed" in verdict.defects[0]
    # By 2.0.0's rules, which were left as they were, the same log passes.
    before = mlcommons.check_log(path, "2.0.0")
    assert (before.verdict, before.own_round, before.defects) == ("pass", "pass", ())


def test_a_log_that_is_wrong_in_its_own_round_too_fails_both_and_one_of_another_division_has_no_defect(
    closed_bert, write
):
    good, short, bare = closed_bert, closed_bert[:-1], [r for r in closed_bert if r["key"] != "opt_epsilon"]
    opened = [r | {"value": "open"} if r["key"] == "submission_division" else r for r in short]
    logs = (good, short, bare, opened)
    paths = [write(records, f"result_{number}.txt") for number, records in enumerate(logs)]
    first, second, third, fourth = mlcommons.check_logs(paths, "2.1.0")
    assert (first.verdict, first.own_round) == ("fail", "pass")
    assert (second.verdict, second.own_round) == ("fail", "fail") and len(second.messages) == 2
    assert second.own_messages == ("result_1.txt: Required EXACTLY_ONE occurrence of 'run_stop' but found 0",)
    assert third.own_messages == ("result_2.txt: Required EXACTLY_ONE occurrence of 'opt_epsilon' but found 0",)
    assert (fourth.verdict, fourth.own_round, fourth.defects) == ("fail", "fail", ())


@pytest.mark.parametrize("ruleset", ["5.1.0", "6.0.0", "6.1.0"])
def test_an_open_llama_log_cannot_pass_today_and_passes_its_own_round(write, ruleset):
    verdict = mlcommons.check_log(write(log_of(ruleset, "llama31_8b", keys.OPEN)), ruleset)
    assert (verdict.verdict, verdict.own_round) == ("fail", "pass")
    assert any("v['value'] < 1.0" in message for message in verdict.messages)
    assert verdict.own_messages == () and "below 1.0" in verdict.defects[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": "no such text"}, "the installed training_2.1.0/closed_bert.yaml lacks the text to replace"),
        ({"file": "training_2.1.0/closed_absent.yaml"}, "no rule file training_2.1.0/closed_absent.yaml"),
    ],
)
def test_a_repair_that_does_not_fit_the_installed_rules_is_said_and_passes_nothing(
    closed_bert, write, monkeypatch, change, said
):
    rules = RULESETS["2.1.0"]
    (defect,) = [defect for defect in rules.defects if defect.benchmark == "bert"]
    unfit = replace(rules, defects=(replace(defect, repair=replace(defect.repair, **change)),))
    monkeypatch.setitem(RULESETS, "2.1.0", unfit)
    verdict = mlcommons.check_log(write(closed_bert), "2.1.0")
    assert (verdict.verdict, verdict.own_round) == ("fail", "not run")
    assert "the round's own rules were not applied" in verdict.messages[-1] and said in verdict.messages[-1]


def test_a_package_fails_today_and_passes_its_own_round_with_its_score(closed_bert, write, tmp_path):
    package = tmp_path / "Nobody"
    results = package / "results" / "laptop" / "bert"
    results.mkdir(parents=True)
    (package / "systems").mkdir()
    (package / "systems" / "laptop.json").write_text(json.dumps(dict.fromkeys(KEYS, "1") | {"division": "closed"}))
    put(closed_bert, "global_batch_size", 448)
    text = re.sub(r'"epoch_num": 2\b', '"epoch_num": 2600000', write(closed_bert).read_text())
    for number in range(10):
        lines = text.replace('"key": "seed", "value": 1,', f'"key": "seed", "value": {number},')
        (results / f"result_{number}.txt").write_text(lines)
    verdict = mlcommons.check_package(package, "2.1.0")
    assert (verdict.verdict, verdict.own_round) == ("fail", "pass")
    assert "results/laptop/bert: 10 files do not comply, directory cannot be accepted" in verdict.messages
    assert verdict.scores == {"laptop": {}} and verdict.own_scores == {
        "laptop": {"bert": pytest.approx(read(results / "result_0.txt").minutes)}
    }
    assert verdict.own_messages == () and len(verdict.defects) == 1
    assert any("RCP Test Passed" in one for one in verdict.convergence)
