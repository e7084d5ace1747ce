"""The checks of required keys report each defect with a clear message at the line of the value."""

import pytest

from mlevents import keys
from mlevents.checks.check_context import CheckedRun
from mlevents.checks.log_check import check_record
from mlevents.checks.required_keys import check_required
from mlevents.event import Finding
from mlevents.rounds import ruleset
from tests.mlevents.conftest import named
from tests.mlevents.rounds.synthetic_logs import Record, log_of, record_of


def found(name: str, records: list[Record]) -> list[Finding]:
    return check_required(CheckedRun(record_of(records), ruleset(name)))


def with_value(records: list[Record], key: str, value: object) -> list[Record]:
    return [{**record, "value": value} if record["key"] == key else record for record in records]


def without(records: list[Record], key: str) -> list[Record]:
    return [record for record in records if record["key"] != key]


@pytest.mark.parametrize(
    ("name", "benchmark", "optimizer", "key", "value", "message"),
    [
        ("2.0.0", "resnet", "lars", "lars_epsilon", 1e-6, "lars_epsilon is 1e-06; ruleset 2.0.0 requires 0.0"),
        (
            *("2.0.0", "resnet", "lars", "lars_opt_weight_decay", 0.0003),
            "lars_opt_weight_decay is 0.0003; ruleset 2.0.0 requires 0.0001 times a power of two",
        ),
        (
            *("5.1.0", "llama31_8b", None, keys.OPT_LR_DECAY_STEPS, 1_200_000),
            "opt_learning_rate_decay_steps is 1200000; "
            "ruleset 5.1.0 requires 1,200,000 - opt_learning_rate_warmup_steps",
        ),
    ],
)
def test_a_refused_value_is_named_with_what_is_asked_at_its_line(name, benchmark, optimizer, key, value, message):
    records = with_value(log_of(name, benchmark, keys.CLOSED, optimizer), key, value)
    errors = [finding for finding in found(name, records) if finding.level == "error"]
    assert (errors[0].rule, errors[0].message) == ("required-value", message)
    assert errors[0].line == records.index(named(records, key)) + 1


def test_a_relation_to_a_key_logged_later_does_not_hold_as_in_the_checker():
    records = log_of("6.0.0", "llama31_8b", keys.CLOSED)
    warmup = [record for record in records if record["key"] == keys.OPT_LR_WARMUP_STEPS]
    late = [*without(records, keys.OPT_LR_WARMUP_STEPS), *warmup]
    assert [finding.rule for finding in found("6.0.0", late) if finding.level == "error"] == ["required-value"]


def test_a_wrong_first_evaluation_is_named_with_its_place():
    records = log_of("6.1.0", "qwen35_397b_grpo", keys.CLOSED)
    assert found("6.1.0", records) == []
    named(records, keys.EVAL_ACCURACY)["metadata"][keys.SAMPLES_COUNT] = 256
    (finding,) = found("6.1.0", records)
    assert finding.rule == "evaluation-points" and finding.line == records.index(named(records, keys.EVAL_ACCURACY)) + 1
    assert finding.message.startswith("eval_accuracy at 256 samples; ruleset 6.1.0 requires the first one after CEIL(")


@pytest.mark.parametrize("benchmark", ["dlrmv4", "deepseekv3_671b", "qwen35_397b_grpo"])
def test_a_batch_too_small_to_divide_by_has_no_evaluation_points(benchmark):
    records = with_value(log_of("6.1.0", benchmark, keys.CLOSED), keys.GLOBAL_BATCH_SIZE, 1e-310)
    assert "evaluation-points" in {finding.rule for finding in found("6.1.0", records)}


def test_one_of_several_names_of_the_metadata_is_enough():
    records = log_of("4.0.0", "llama2_70b_lora", keys.CLOSED)
    metadata = named(records, keys.BLOCK_START)["metadata"]
    del metadata[keys.SAMPLES_COUNT]
    lacks = "block_start lacks the metadata {}"
    assert [finding.message for finding in found("4.0.0", records)] == [lacks.format("epoch_count or samples_count")]
    metadata[keys.EPOCH_COUNT] = 0
    assert [finding.message for finding in found("4.0.0", records)] == [
        lacks.format("first_epoch_num"),
        "epoch_count of block_start is 0; it must be > 0",
    ]


def test_metrics_logged_apart_are_judged_together():
    records = log_of("4.1.0", "stable_diffusion", keys.CLOSED)
    assert found("4.1.0", records) == []
    no_clip = [record for record in records if record["metadata"].get(keys.METRIC) != "CLIP"]
    assert {finding.rule for finding in found("4.1.0", no_clip)} == {"required-value"}
    one_only = [record for record in records if record["metadata"].get(keys.SAMPLES_COUNT) != 64]
    assert "aggregated_eval_accuracy is logged 1 times; ruleset 4.1.0 requires at least two" in {
        finding.message for finding in found("4.1.0", one_only)
    }


def test_a_closed_loss_below_what_the_rule_file_believes_is_an_error_and_an_unreached_target_said_once():
    records = with_value(log_of("3.0.0", "gpt3", keys.CLOSED), keys.EVAL_ACCURACY, 2.5)
    (finding,) = found("3.0.0", records)
    assert finding.message.startswith("no eval_accuracy is > 2.6 and <= 2.69, which ruleset 3.0.0 requires of at least")
    records = with_value(log_of("3.0.0", "bert", keys.CLOSED), keys.EVAL_ACCURACY, 0.5)
    errors = [finding.rule for finding in check_record(record_of(records), "3.0.0") if finding.level == "error"]
    assert errors == ["target-reached"]


def test_todays_rule_file_and_the_rounds_own_are_told_apart():
    old = log_of("2.1.0", "bert", keys.CLOSED)
    (note,) = found("2.1.0", old)
    assert (note.level, note.rule) == ("note", "upstream-defect")
    assert note.message.startswith("bert-epsilon-renamed: today's rule file training_2.1.0/closed_bert.yaml")
    assert "issue 277" in note.message
    new = [{**r, "key": keys.OPT_LAMB_EPSILON} if r["key"] == "opt_epsilon" else r for r in old]
    assert found("2.1.0", new) == []
    (missing, _) = found("2.1.0", without(old, "opt_epsilon"))
    assert missing.message == "opt_epsilon (or opt_lamb_epsilon) is missing; ruleset 2.1.0 requires it"


def test_an_open_log_with_both_counts_is_not_noted_where_the_rule_file_asks_for_epochs():
    records = log_of("5.0.0", "llama2_70b_lora", keys.OPEN)
    (note,) = found("5.0.0", records)
    assert note.rule == "upstream-defect" and note.line == records.index(named(records, keys.EVAL_ACCURACY)) + 1
    for record in records:
        if record["key"] == keys.EVAL_ACCURACY:
            record["metadata"][keys.EPOCH_NUM] = 1
    assert found("5.0.0", records) == []
