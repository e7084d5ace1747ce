"""Closed runs keep what only the text of the rules fixes; a round without rules is judged by no other's."""

import pytest

from mlevents import keys
from mlevents.checks.log_check import check, check_record
from mlevents.rounds import NO_RULES
from tests.mlevents.conftest import lines_of, named, noting, put
from tests.mlevents.rounds.synthetic_logs import log_of, record_of


def closed(name, benchmark, every=12_288, first=12_288, **values):
    """A complete closed log with two evaluations, the first after `first` samples."""
    records = log_of(name, benchmark, "closed")
    for key, value in values.items():
        put(records, key, value)
    for key in ("eval_start", "eval_accuracy", "eval_stop"):
        for number in (0, 1):
            noting(key, number, samples_count=first + number * every)(records)
    return records


@pytest.mark.parametrize(
    ("name", "benchmark", "base", "key", "value", "right"),
    [
        ("6.0.0", "gpt_oss_20b", 5e-4, keys.OPT_END_LR, 5e-5, True),
        ("6.0.0", "gpt_oss_20b", 5e-4, keys.OPT_END_LR, 4e-5, True),  # of the reference's runs: in v6.0 alone
        ("6.1.0", "gpt_oss_20b", 5e-4, keys.OPT_END_LR, 4e-5, False),
        ("6.0.0", "gpt_oss_20b", 5e-4, keys.OPT_END_LR, 1e-3, False),
        ("5.1.0", "llama31_8b", 8e-4, keys.OPT_END_LR, 8e-5, True),
        ("5.1.0", "llama31_8b", 8e-4, keys.OPT_END_LR, 8e-4, False),
        ("5.0.0", "llama31_405b", 8e-5, keys.OPT_END_LR, 8e-7, True),
        ("5.0.0", "llama31_405b", 8e-5, keys.OPT_END_LR, 8e-6, False),
        ("5.1.0", "llama31_405b", 8e-5, keys.OPT_LR_WARMUP_STEPS, 8000, True),  # at a batch of 1152
        ("5.1.0", "llama31_405b", 8e-5, keys.OPT_LR_WARMUP_STEPS, 7000, False),
    ],
)
def test_the_schedule_of_the_learning_rate_is_the_rules(name, benchmark, base, key, value, right):
    records = closed(name, benchmark, **{keys.OPT_BASE_LR: base, key: value})
    records.append(records.pop(records.index(named(records, keys.OPT_BASE_LR))))
    for division, fails in (("closed", not right), ("open", False)):
        put(records, keys.SUBMISSION_DIVISION, division)
        findings = check_record(record_of(records), name)
        assert any(f.level == "error" and f.message.startswith(key) for f in findings) == fails, division


@pytest.mark.parametrize(
    ("name", "benchmark", "every", "first", "wrong"),
    [
        *(("6.0.0", "gpt_oss_20b", 12_288, 12_288, False), ("6.0.0", "gpt_oss_20b", 24_576, 24_576, True)),
        *(("6.1.0", "gpt_oss_20b", 12_288, 24_576, True), ("6.0.0", "llama31_8b", 12_288, 24_576, True)),
        ("5.1.0", "llama31_405b", 18_432, 276_480, False),
    ],
)
def test_only_some_benchmarks_skip_evaluations(name, benchmark, every, first, wrong):
    for of in (int, float):
        records = closed(name, benchmark, every, first)
        put(records, keys.GLOBAL_BATCH_SIZE, of(named(records, keys.GLOBAL_BATCH_SIZE)["value"]))
        findings = check_record(record_of(records), name)
        assert ("error" in {f.level for f in findings if f.rule == "evaluation-interval"}) == wrong, of


@pytest.mark.parametrize("folder", ["training_results_v0.7", "hpc_results_v3.0", "v1.1"])
def test_a_log_of_a_round_or_benchmark_without_rules_is_judged_by_no_other_rounds(folder, make_records, tmp_path):
    path = tmp_path / folder / "Org/results/System/resnet/result_0.txt"
    path.parent.mkdir(parents=True)
    records = [record for record in make_records(accuracies=(0.1,)) if record["key"] != "train_samples"]
    path.write_text("\n".join(lines_of(records)))
    assert (check(path).ruleset, [finding.rule for finding in check(path).findings]) == (NO_RULES.name, ["no-rules"])
    put(records, "submission_benchmark", "openfold")
    records[-1]["metadata"]["status"] = "aborted"
    for place, level in ((path, "warning"), (tmp_path / "result_0.txt", "error")):  # maybe no name of a benchmark
        place.write_text("\n".join(lines_of(records)))
        assert sorted(finding.level for finding in check(place).findings) == sorted([level, "error"])
    put(records, "submission_benchmark", "resnet")
    for record in records:
        record["time_ms"] -= 4 * 365 * 86_400_000  # a run of October 2021
    place.write_text("\n".join(lines_of(records)))
    assert "no rules for a round as old as the run, by its date, here, but for v2.0 to v6.1" in str(
        check(place).findings
    )


@pytest.mark.parametrize(
    ("benchmark", "optimizer", "first", "wrong"),
    [("dlrm", None, 1.05, False), ("dlrm", None, 1.1, True), ("resnet", "lars", 1.05, True)],
)
def test_only_dlrm_counts_its_first_block_by_a_fraction(benchmark, optimizer, first, wrong):
    records = [r for r in log_of("2.0.0", benchmark, "closed", optimizer) if not r["key"].startswith("epoch_")]
    for record in records:
        if record["metadata"].get("first_epoch_num") == 1:
            record["metadata"]["first_epoch_num"] = first
    found = [f for f in check_record(record_of(records), "2.0.0") if "counts from" in f.message and f.level == "error"]
    assert bool(found) == wrong
