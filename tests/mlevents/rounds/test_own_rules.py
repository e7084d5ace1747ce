"""A log that records its benchmark's rules is judged by them; it sets no rules of a benchmark that a ruleset has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.scoring.run_set import mismatch
from mlevents.checks.log_check import CheckReport, check
from mlevents.checks.result_set import check_set
from mlevents.rounds.own_rules import BEYOND_MLPERF, as_recorded, benchmark_rules, parse
from mlevents.run_status import failure, rules_of

WINE = benchmark_rules("wine", dataset="wine", metric="accuracy", target=0.75, runs=2)
Write = Callable[..., Path]


@pytest.fixture
def report(write: Write, make_records: Callable[..., list[dict[str, Any]]]) -> Callable[..., CheckReport]:
    """report(benchmark, rules, name, **changes): the check of a log that records `rules` for `benchmark`."""

    def checked(benchmark="wine", rules=None, name="result_0.txt", seed=1, **changes):
        records = make_records(seed=seed)
        for record in records:
            if record["key"] in ("submission_benchmark", *changes):
                record["value"] = changes.get(record["key"], benchmark)
        added = {**records[2], "key": "benchmark_rules", "value": as_recorded(WINE) if rules is None else rules}
        named = {**records[2], "key": "dataset", "value": "wine"}
        return check(write([*records[:3], added, named, *records[3:]], name))

    return checked


def of_level(report: CheckReport, level: str = "error") -> set[str]:
    return {finding.rule for finding in report.findings if finding.level == level}


def test_a_log_is_judged_by_the_rules_it_records(report):
    good = report()
    assert (good.ruleset, good.passed, good.demonstration) == (BEYOND_MLPERF, True, False)
    assert (failure(good.summary), good.summary.own_rules) == (None, WINE)
    missed = report(rules=as_recorded(WINE) | {"target": 0.9}, name="result_1.txt")
    assert failure(missed.summary) == "ended at 0.76, but its target is 0.9"
    assert "target-reached" in of_level(missed)


@pytest.mark.parametrize(
    ("target", "value", "warnings"), [(20, 21.5, set()), (0.75, 21.5, {"quality-range"}), (-150, -120.5, set())]
)
def test_a_metric_has_any_values_but_above_one_are_doubtful_where_the_target_is_not(target, value, warnings, report):
    found = report(rules=as_recorded(WINE) | {"target": target}, eval_accuracy=value)
    assert of_level(found) == set() and of_level(found, "warning") & {"quality-range"} == warnings


@pytest.mark.parametrize("benchmark", ["resnet", "gpt_125m"])
def test_no_log_sets_the_rules_of_a_benchmark_that_a_ruleset_has(benchmark, report):
    found = report(benchmark, as_recorded(WINE) | {"target": 0.1})
    assert "benchmark-rules" in of_level(found)
    assert found.summary.own_rules is None
    rules, _ = rules_of(benchmark, None, [found.summary])
    assert rules is not None and rules.target != 0.1


MALFORMED = {"target": [True, 10**400, "0.9"], "direction": [">", []], "runs": [0, 2.0], "unit": ["steps"]}
MALFORMED |= {"metric": [""], "dataset": ["x" * 41], "more": [1]}


@pytest.mark.parametrize("field", MALFORMED)
def test_malformed_rules_are_a_finding(field, report):
    for value in MALFORMED[field]:
        found = report(rules=as_recorded(WINE) | {field: value})
        assert {"benchmark-rules", "benchmark-known"} <= of_level(found), value
        assert (found.ruleset, found.summary.own_rules) == (BEYOND_MLPERF, None)


@pytest.mark.parametrize("value", [7, [], "resnet", {}, {"target": {}}])
def test_rules_that_are_no_object_of_all_fields_are_a_finding(value, report):
    assert "benchmark-rules" in of_level(report(rules=value))


@pytest.mark.parametrize("name", [None, "", "../x", "a b", "x" * 101, "bert"])
def test_a_name_that_is_taken_or_no_folder_is_refused(name):
    with pytest.raises(ValueError, match="name"):
        parse(name, as_recorded(WINE))


def test_runs_of_different_rules_are_no_set(report):
    one, other = (report(name=f"result_{seed}.txt", seed=seed).summary for seed in (1, 2))
    assert not [finding for finding in check_set([one, other], BEYOND_MLPERF) if finding.level == "error"]
    easier = report(rules=as_recorded(WINE) | {"target": 0.5}, name="result_2.txt", seed=2).summary
    differing = [finding.message for finding in check_set([one, easier], BEYOND_MLPERF) if finding.level == "error"]
    assert any(message.startswith("benchmark_rules differs within the set") for message in differing)
    assert "its runs differ in rules" in str(mismatch([one, easier], [one, easier], "wine"))


def test_a_set_of_another_size_than_its_own_rules_require_is_a_warning(report):
    more = [report(name=f"result_{seed}.txt", seed=seed).summary for seed in range(WINE.runs + 1)]
    (finding,) = [finding for finding in check_set(more, BEYOND_MLPERF) if finding.rule == "run-count"]
    assert finding.level == "warning" and f"wine requires exactly {WINE.runs}" in finding.message
