"""A closed set may not converge faster than the reference; every verdict is that of MLCommons' RCP_Checker."""

import json

import pytest
from mlperf_logging.rcp_checker import rcp_checker

from mlevents.checks.convergence import convergence
from mlevents.checks.result_set import check_set
from mlevents.record import read
from mlevents.rounds import ruleset
from mlevents.summary import summarize
from tests.mlevents.conftest import put

RULES = ruleset("2.0.0")


@pytest.fixture
def write_set(make_records, write):
    """write_set(epochs, batch): summaries of runs that converge at these epochs; None: that run was aborted."""

    def write_them(epochs, batch=3264, *, division="closed", aborted=(), **settings):
        runs = []
        for number, epoch in enumerate(epochs):
            records = make_records(seed=number + 1)
            put(records, "global_batch_size", batch)
            put(records, "submission_division", division)
            for record in records:
                if record["key"].startswith("eval") and record["metadata"].get("epoch_num") == 2:
                    record["metadata"]["epoch_num"] = epoch
            if number in aborted:
                records[-1]["metadata"]["status"] = "aborted"
            template = next(record for record in records if record["key"] == "seed")
            records[3:3] = [{**template, "key": key, "value": value} for key, value in settings.items()]
            runs.append(summarize(read(write(records, f"result_{number}.txt"))))
        return runs

    return write_them


def official(folder):
    return rcp_checker.check_directory(str(folder), "training", "2.0.0", False, False, rcp_pass="pruned_rcps")


def said(runs):
    return [(finding.level, finding.message) for finding in check_set(runs, "2.0.0") if finding.rule == "convergence"]


@pytest.mark.parametrize(
    ("epochs", "batch", "outcome"),
    [
        *(((36, 36, 36, 37, 38), 3264, "as slow"), ((35, 35, 35, 35, 35), 3264, "scaled")),
        *(((34, 35, 35, 34, 36), 3264, "scaled"), ((33, 33, 33, 33, 33), 3264, "too fast")),
        ((41, 41, 40, 42, 43), 8192, "as slow"),  # a pruned point: compared with the interpolation
        *(((36, 36, 37, 36, 35), 5000, "scaled"), ((30, 31, 31, 32, 32), 5000, "too fast")),
        ((36, 36, 36, 37, 38), 100, "as slow"),  # slower than the smallest point
        *(((20, 21, 22, 23, 24), 100, "missing point"), ((90, 91, 92, 93, 94), 100_000, "missing point")),
    ],
)
def test_the_verdict_and_the_factor_are_the_checkers(write_set, tmp_path, epochs, batch, outcome):
    found = convergence(write_set(epochs, batch), RULES)
    passed, message, factor = official(tmp_path)
    assert found is not None and found.outcome == outcome
    assert passed == (outcome in ("as slow", "scaled"))
    assert ("Missing" in message) == (outcome == "missing point")
    if passed:
        assert found.factor == factor


def test_one_failed_run_is_dropped_and_two_mixed_batches_and_other_data_prevent_the_verdict(write_set, tmp_path):
    epochs = (34, 35, 35, 34, 9)
    verdict = convergence(write_set(epochs, aborted=(4,)), RULES)
    assert verdict is not None and verdict.factor == official(tmp_path)[2] and verdict.mean == pytest.approx(104 / 3)
    assert convergence(write_set(epochs, aborted=(3, 4)), RULES) is None
    runs = write_set((33,) * 5)
    assert convergence(runs[:1], RULES) is convergence(runs[:4], RULES) is convergence([], RULES) is None
    assert convergence([*runs[:4], *write_set((33,), 4096)], RULES) is None
    assert convergence(write_set((33,) * 5, dataset="digits", quality_target=0.5), RULES) is None


def test_a_closed_set_that_is_too_fast_fails_and_names_the_settings_that_differ(write_set):
    settings = {"lars_opt_base_learning_rate": 17.4, "lars_opt_momentum": 0.9, "opt_name": "lars"}
    ((level, message),) = said(write_set((33,) * 5, **settings))
    assert level == "error"
    assert message.startswith("converges in 33 epochs; the reference needs 35.15 (at least 34.31)")
    assert message.endswith("settings other than the reference's: opt_base_learning_rate 17.4 (10.5)")


def test_a_factor_that_makes_up_for_it_leaves_a_warning(write_set, tmp_path):
    runs = write_set((33,) * 5)
    factor = convergence(runs, RULES).normalization
    for value, level in ((round(factor, 6), "warning"), (1.01, "error"), (None, "error")):
        (tmp_path / "scaling.json").write_text(json.dumps({"scaling_factor": value}))
        assert [one for one, _ in said(runs)] == [level]


@pytest.mark.parametrize(
    ("division", "epochs", "factor", "level"),
    [
        *(("closed", 36, 1.01, "warning"), ("closed", 36, 0.5, "error"), ("closed", 36, "1", "error")),
        *(("closed", 36, None, "error"), ("closed", 35, 1.0043956043956044, None)),
        ("open", 35, 1.0043956043956044, "error"),
    ],
)
def test_a_scaling_file_may_only_hold_the_factor_that_slows_a_closed_set_down(
    write_set, tmp_path, division, epochs, factor, level
):
    runs = write_set((epochs,) * 5, division=division)
    (tmp_path / "scaling.json").write_text(json.dumps({"scaling_factor": factor}))
    findings = [finding for finding in check_set(runs, "2.0.0") if finding.rule == "scaling-file"]
    assert [finding.level for finding in findings] == ([level] if level else [])


@pytest.mark.parametrize(("described", "level"), [("open", "note"), ("closed", "error"), (None, "error")])
def test_the_division_of_the_system_description_decides_as_in_the_package_checker(write_set, described, level):
    findings = check_set(write_set((33,) * 5), "2.0.0", described)
    assert [finding.level for finding in findings if finding.rule == "convergence"] == [level]


def test_levels_of_the_other_outcomes(write_set):
    assert said(write_set((36,) * 5)) == []
    ((level, message),) = said(write_set((35,) * 5))
    assert level == "note" and message.endswith("the score is multiplied by 1.004396")
    for epochs, batch in ((90, 100_000), (20, 100)):
        ((level, message),) = said(write_set((epochs,) * 5, batch))
        assert level == "error" and "submit reference runs at that batch" in message
    ((level, message),) = said(write_set((27,) * 5, 2048, division="open"))
    assert level == "note"
    assert message == "converges in 27 epochs; the reference needs 35.04 (at least 33.86) at batch 2048"
