"""The strict checks find each broken rule, at its line, and leave a good log alone; what failed never passes."""

import random
from collections.abc import Callable
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents.checks.log_check import check, check_record
from mlevents.record import read
from tests.mlevents.conftest import good_records, lines_of, named, shifting
from tests.mlevents.conftest import noting as note
from tests.mlevents.conftest import putting as put


def move(key, behind):
    """Move a record behind another."""

    def mutate(records):
        moved = records.pop(records.index(named(records, key)))
        records.insert(records.index(named(records, behind)) + 1, moved)

    return mutate


def insert(key, value=1):
    """Log another value before init_stop."""
    return lambda records: records.insert(9, {**named(records, "seed"), "key": key, "value": value})


def insert_within(key, value, **metadata):
    """Log a value while the second epoch is trained, and return the place of its record."""

    def mutate(records):
        stop = named(records, "epoch_stop", 1)
        place = records.index(stop)
        event = {**stop, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        records.insert(place, {**event, "metadata": {**stop["metadata"], **metadata}})
        return place

    return mutate


def found(write, records, ruleset="2.0.0", level="error") -> list[str]:
    return [finding.rule for finding in check_record(read(write(records)), ruleset) if finding.level == level]


def test_a_good_log_has_no_finding_and_a_demonstration_is_named_one(records, demonstration, write):
    report = check(write(records))
    # Two evaluations an epoch apart: allowed in the open division, and said.
    assert [(finding.level, finding.rule) for finding in report.findings] == [("note", "evaluation-interval")]
    assert report.passed and not report.demonstration and report.ruleset == "2.0.0"
    report = check(write(demonstration))
    assert report.passed and report.demonstration
    assert [finding.message for finding in report.findings] == [
        "dataset digits is not the benchmark's imagenet; a demonstration cannot be a submission"
    ]


ERRORS: dict[str, tuple[Callable, str]] = {
    "empty platform": (put("submission_platform", ""), "value-filled"),
    "no train_samples value": (put("train_samples", None), "value-filled"),
    "benchmark without rules here": (put("submission_benchmark", "resnet50"), "benchmark-known"),
    "block without its count": (lambda r: named(r, "block_start")["metadata"].pop("epoch_count"), "required-metadata"),
    "target lost again": (lambda r: (put("eval_accuracy", 0.77)(r), put("eval_accuracy", 0.7, 1)(r)), "target-reached"),
    "no evaluation in the timed region": (
        lambda r: [move("eval_accuracy", "run_stop")(r) for _ in (0, 1)],
        "target-reached",
    ),
    "run_start before init_stop": (move("init_stop", "run_stop"), "clock-order"),
    "epoch trained twice": (note("epoch_start", 1, epoch_num=1), "epoch-numbering"),
    "epoch is no number": (note("epoch_start", 0, epoch_num="one"), "epoch-numbering"),
    "seed is no integer": (put("seed", 1.5), "seed"),
    "blank organization": (put("submission_org", "  "), "name"),
    "platform is no text": (put("submission_platform", []), "name"),
    "no evaluation samples": (put("eval_samples", 0), "count"),
    "another evaluation set": (put("eval_samples", 10_000), "dataset-size"),
    "batch size as text": (put("global_batch_size", "64"), "count"),
    "target reached without training": (
        lambda r: [note(key, 1, epoch_num=0)(r) for key in ("eval_start", "eval_accuracy", "eval_stop")],
        "target-reached",
    ),
    "clock set back while training": (shifting(60_000, "epoch_stop"), "clock-order"),
    "a demonstration's dataset under the benchmark's": (
        lambda r: [r.insert(9, {**named(r, "seed"), "key": "dataset", "value": x}) for x in ("imagenet", "digits")],
        "one-occurrence",
    ),
    "wall clock set back": (note("run_stop", elapsed_ms=240_000.0), "clock-agreement"),
    "cache cleared late by its time": (shifting(60_000, "cache_clear"), "cache-clear"),
    "step back": (lambda r: [note("eval_accuracy", i, samples_count=9 - i)(r) for i in (0, 1)], "epoch-numbering"),
    "time in seconds": (
        lambda r: (r[-1]["metadata"].pop("elapsed_ms"), [x.update(time_ms=x["time_ms"] // 1000) for x in r]),
        "time-unit",
    ),
    "no time passes": (lambda r: r[-1].update(time_ms=named(r, "run_start")["time_ms"]), "clock-order"),
    "a value of an interval": (lambda r: named(r, "eval_accuracy").update(event_type="INTERVAL_END"), "event-type"),
    "elapsed is no duration": (note("run_stop", elapsed_ms="long"), "clock-agreement"),
    "aborted": (note("run_stop", status="aborted"), "status-success"),
    "target missed at last": (put("eval_accuracy", 0.7589, -1), "target-reached"),
    "not a number at last": (put("eval_accuracy", float("nan"), -1), "record-number"),
    "digits as ImageNet": (put("train_samples", 1437), "dataset-size"),
    "run_stop before run_start in time": (shifting(-(10**10), "run_stop"), "clock-order"),
    "cache cleared after run_stop": (move("cache_clear", "run_stop"), "cache-clear"),
    "run_start twice": (
        lambda r: r.insert(r.index(named(r, "run_start")) + 1, named(r, "run_start") | {"metadata": {"again": 1}}),
        "one-occurrence",
    ),
    "first epochs cut off": (
        lambda r: [note(f"epoch_{x}", n, epoch_num=n + 3)(r) for x in ("start", "stop") for n in (0, 1)],
        "epoch-numbering",
    ),
    "an evaluation never stops": (lambda r: r.remove(named(r, "eval_stop", -1)), "pairs"),
    "no epoch of the accuracy": (lambda r: named(r, "eval_accuracy")["metadata"].pop("epoch_num"), "required-metadata"),
    "no organization": (lambda r: r.remove(named(r, "submission_org")), "required-key"),
    "status of no round": (put("submission_status", "rdi"), "vocabulary"),
    "division after init_stop": (move("submission_division", "init_stop"), "submission-order"),
    "init of 241 minutes": (shifting(-241 * 60_000, "init_start", "cache_clear"), "init-limit"),
    "run_start after the first block": (move("run_start", "block_start"), "before-run-start"),
    "null": (put("eval_accuracy", None), "quality-range"),
    "no metadata": (lambda r: named(r, "seed").pop("metadata"), "record-metadata"),
}
WARNINGS: dict[str, tuple[Callable, str]] = {
    "caches left warm": (put("cache_clear", False), "cache-clear"),
    "caches left warm, and cleared in the run": (
        lambda r: (put("cache_clear", False)(r), r.insert(-1, {**r[0], "value": True, "time_ms": r[-1]["time_ms"]})),
        "cache-clear",
    ),
    "two batch sizes": (insert("global_batch_size", 32), "one-occurrence"),
    "Cyrillic letters in a key": (insert("s\u0435ed"), "key-look-alike"),
    "capitals in a key": (insert("RUN_START"), "key-look-alike"),
    "not one mistake": (put("eval_accuracy", 1.0, 1), "quality-range"),
    "evaluated again until it reaches": (
        lambda r: (put("eval_accuracy", 0.7, 1)(r), r.insert(-3, {**named(r, "eval_accuracy", 1), "value": 0.77})),
        "evaluated-again",
    ),
    "time from 0": (lambda r: [x.update(time_ms=x["time_ms"] - r[0]["time_ms"]) for x in r[::-1]], "time-unit"),
    "two seeds": (insert("seed", 2), "seed"),
    "time steps back": (shifting(60_000, "eval_stop"), "time-order"),
    "evaluation never starts": (lambda r: r.remove(named(r, "eval_start")), "pairs"),
    "block never stops": (lambda r: r.remove(named(r, "block_stop")), "pairs"),
    "block never starts": (lambda r: r.remove(named(r, "block_start")), "pairs"),
    "epoch after run_stop": (
        lambda r: r.append({**named(r, "epoch_stop"), "time_ms": r[-1]["time_ms"]}),
        "after-run-stop",
    ),
    "epochs end under other numbers": (
        lambda r: [note("epoch_stop", i, epoch_num=i + 2)(r) for i in (0, 1)],
        "epoch-numbering",
    ),
    "epochs jump": (lambda r: [note(f"epoch_{x}", 1, epoch_num=5)(r) for x in ("start", "stop")], "epoch-numbering"),
    "epoch ends within an evaluation": (
        lambda r: r.insert(r.index(named(r, "eval_start", 1)) + 1, r.pop(r.index(named(r, "epoch_stop", 1)))),
        "nesting",
    ),
    "a value without an evaluation": (
        lambda r: r.insert(
            -1, {**named(r, "eval_accuracy", 1), "time_ms": r[-1]["time_ms"], "metadata": {"epoch_num": 3}}
        ),
        "evaluation-pairs",
    ),
    "evaluations take no time": (shifting(3_000, "eval_start"), "evaluation-duration"),
    "evaluated once, though every 4 epochs are asked for": (
        lambda r: (
            r.__delitem__(slice(r.index(named(r, "eval_start")), r.index(named(r, "eval_stop")) + 1)),
            [note(f"eval_{name}", epoch_num=9)(r) for name in ("start", "accuracy", "stop")],
            put("global_batch_size", 128.0)(r),
        ),
        "single-evaluation",
    ),
    "trained beyond the schedule in epochs": (insert("opt_learning_rate_decay_epochs"), "beyond-schedule"),
    "trained beyond the schedule in steps": (insert("lars_opt_learning_rate_decay_steps", 20_000), "beyond-schedule"),
    "faster by the clock than by its own throughput": (
        lambda r: r.insert(-1, {**named(r, "seed"), "key": "tracked_stats", "value": {"throughput": 19_000.0}}),
        "logged-throughput",
    ),
    "no quality until the target": (put("eval_accuracy", 0.1), "quality-leap"),
    "init ends by a start": (lambda r: named(r, "init_stop").update(event_type="INTERVAL_START"), "event-type"),
    "another target logged": (insert("quality_target"), "quality-target"),
    "a looser target logged": (insert("target_accuracy", 0.75), "quality-target"),
    "a looser target logged before the right one": (
        lambda r: (insert("target_accuracy", 0.759)(r), insert("target_accuracy", 0.75)(r)),
        "quality-target",
    ),
    "a stop that is a start, as in published logs": (
        lambda r: named(r, "run_stop").update(event_type="INTERVAL_START"),
        "event-type",
    ),
    "stopped at an earlier epoch than evaluated": (note("run_stop", epoch_num=1), "stop-count"),
    "stopped at a later epoch than evaluated": (note("run_stop", epoch_num=3), "stop-count"),
    "stopped at a block's samples": (
        lambda r: [
            note(key, key != "run_stop", samples_count=n)(r) for key, n in (("eval_accuracy", 256), ("run_stop", 128))
        ],
        "stop-count",
    ),
}


@pytest.mark.parametrize(("name", "level"), [*((x, "error") for x in ERRORS), *((x, "warning") for x in WARNINGS)])
def test_a_broken_rule_is_an_error_and_a_doubtful_log_a_warning_that_passes(records, write, name, level):
    mutate, rule = (ERRORS | WARNINGS)[name]
    mutate(records)
    report = check(write(records))
    assert (level, rule) in [(finding.level, finding.rule) for finding in report.findings]
    assert report.passed == (level == "warning")


def test_a_clock_that_starts_after_the_limit_of_initialization_is_an_error(records, write):
    for key in ("cache_clear", "init_start", "init_stop"):
        shifting(-240 * 60_000, key)(records)
    path = write(records)
    (error,) = [finding for finding in check(path).findings if finding.level == "error"]
    assert (error.rule, error.line) == ("init-limit", records.index(named(records, "run_start")) + 1)
    assert "between init_stop and run_start" in error.message


def test_a_finding_names_the_files_own_line(records, write):
    put("eval_accuracy", 76.0)(records)
    path = write(records)
    path.write_text("a banner\n\n" + path.read_text())
    finding = next(finding for finding in check(path).findings if finding.rule == "quality-range")
    assert path.read_text().splitlines()[finding.line - 1].count("76.0") == 1
    assert str(finding) == f"{path}:{finding.line}: error [quality-range] {finding.message}"
    assert "percent" in finding.message


def test_the_clocks_may_differ_by_a_second_or_a_five_hundredth(records, write):
    named(records, "run_stop")["metadata"]["elapsed_ms"] = 120_002 - 990
    assert found(write, records) == []
    named(records, "run_stop")["metadata"]["elapsed_ms"] = 120_002 - 1_010
    assert found(write, records) == ["clock-agreement"]
    named(records, "run_stop")["time_ms"] += 1_080_000  # 20 minutes in all, of which 2.4 s
    named(records, "run_stop")["metadata"]["elapsed_ms"] = 1_200_002 - 2_350
    assert found(write, records) == []
    named(records, "run_stop")["metadata"]["elapsed_ms"] = 1_200_002 - 2_450
    assert found(write, records) == ["clock-agreement"]


def test_a_resumed_run_is_noted_at_the_line_where_it_went_on(records, write):
    place = insert_within("resumed", 46)(records)
    report = check(write(records))
    assert [(f.level, f.rule) for f in report.findings] == [("note", "resumed"), ("note", "evaluation-interval")]
    assert "46 steps" in report.findings[0].message and report.findings[0].line == place + 1


TOLD_ONCE: dict[str, tuple[Callable, str, str]] = {
    "resumed": (insert_within("resumed", 46, gap_seconds=3.5), "resumed", "note"),
    "resumed, closed": (
        lambda r: (put("submission_division", "closed")(r), insert_within("resumed", 46)(r)),
        *("resumed", "error"),
    ),
    "resumed after the clock was set back": (insert_within("resumed", 46, gap_seconds=-3.5), "resumed", "error"),
    "clock set": (insert_within("clock_set", 60.0), "clock-agreement", "error"),
    "clock set back": (insert_within("clock_set", -3.0), "clock-agreement", "error"),
    "clock set by an unknown time": (insert_within("clock_set", "much"), "clock-agreement", "error"),
    "clock set by less than clocks may part": (insert_within("clock_set", -0.7), "clock-agreement", "warning"),
    "a digit too many in run_start": (shifting(9 * 1_800_003_630_015, "run_start"), "time-digits", "error"),
    "a digit too many in run_stop": (shifting(9 * 1_800_003_750_017, "run_stop"), "time-digits", "error"),
}


@pytest.mark.parametrize(("mutate", "rule", "level"), TOLD_ONCE.values(), ids=TOLD_ONCE)
def test_what_happened_to_the_clock_and_to_the_run_is_told_once_at_its_level(records, write, mutate, rule, level):
    mutate(records)
    assert [f.level for f in check(write(records)).findings if f.rule == rule] == [level]


@pytest.mark.parametrize(
    ("division", "rates", "warned"),
    [
        ("open", (21_500.0, 22_500.0, 23_000.0), False),  # evaluating takes time
        ("open", (40_000.0, 16_000.0, 16_000.0), False),
        ("closed", (40_000.0, 16_000.0, 16_000.0), True),
    ],
)
def test_throughput_may_be_above_that_of_the_whole_run_and_fall_in_an_open_run(records, write, division, rates, warned):
    put("submission_division", division)(records)
    # 2 epochs of 1,281,167 images in 120 s: 21,353 images/s
    records[-1:-1] = [{**named(records, "seed"), "key": "throughput", "value": rate} for rate in rates]
    assert ("logged-throughput" in found(write, records, level="warning")) is warned


@pytest.mark.parametrize(("stretch", "warned"), [(0.04, True), (0.1, False)])  # of 120 s; the published record is 11 s
def test_a_run_far_faster_than_any_published_one_is_a_warning(records, write, stretch, warned):
    start = named(records, "run_start")["time_ms"]
    for record in records[records.index(named(records, "run_start")) :]:
        record["time_ms"] = start + int(stretch * (record["time_ms"] - start))
    named(records, "run_stop")["metadata"].pop("elapsed_ms")
    assert ("record-time" in found(write, records, level="warning")) is warned


@pytest.mark.parametrize(
    ("folder", "day", "words"),
    [
        ("v2.0/Org/results/box/resnet", "2022-05-30", ""),
        ("v2.0/Org/results/box/resnet", "2022-06-02", "2022-06-02, but v2.0, which its folder names, closed"),
        ("v2.0/Org/results/box/resnet", "2021-03-01", ""),  # older runs are handed in
        ("own", "2024-06-02", ""),
        ("own", "2199-01-01", "2199-01-01, a day that has not come"),
    ],
)
def test_a_run_after_its_round_or_in_the_future_is_a_warning(
    records, demonstration, write, tmp_path, folder, day, words
):
    moved = datetime.fromisoformat(f"{day}T12:00Z").timestamp() * 1e3 - named(records, "run_start")["time_ms"]
    (tmp_path / folder).mkdir(parents=True)
    for log, said in (
        (records, bool(words)),
        (demonstration, words.endswith("not come")),
    ):  # a demonstration has no round
        for record in log:
            record["time_ms"] += int(moved)
        messages = [f.message for f in check(write(log, f"{folder}/result_0.txt")).findings if f.rule == "date"]
        assert len(messages) == said and all(words in message for message in messages)


def test_starts_and_stops_may_be_points_in_time_as_in_published_logs(records, write):
    for record in records:
        record["event_type"] = "POINT_IN_TIME"
    assert found(write, records) == []


@pytest.mark.parametrize(
    ("division", "cut_ms", "warned"), [("closed", 50_000, True), ("closed", 20_000, False), ("open", 50_000, False)]
)
def test_an_epoch_of_a_closed_run_that_takes_less_than_half_of_the_others_is_a_warning(
    make_records, write, division, cut_ms, warned
):
    records = make_records(accuracies=(0.3, 0.4, 0.5, 0.6, 0.76))
    put("submission_division", division)(records)
    for record in records[records.index(named(records, "epoch_stop", 2)) :]:
        record["time_ms"] -= cut_ms
    named(records, "run_stop")["metadata"]["elapsed_ms"] -= cut_ms
    assert ("epoch-duration" in found(write, records, level="warning")) is warned


@pytest.mark.parametrize(
    ("division", "key", "number", "moved_ms", "level"),
    [
        *(("closed", "block_stop", 3, -52_000, "warning"), ("open", "block_stop", 3, -52_000, "warning")),
        ("open", "block_stop", 0, -52_000, "note"),  # by design, such as by smaller images
        ("closed", "block_stop", 4, -52_000, "warning"),  # the last one
        ("closed", "block_stop", 3, -20_000, None),
        ("closed", "block_stop", 3, 600_000, "note"),  # it may have waited
        *(("open", "eval_accuracy", 3, -2_500, "warning"), ("closed", "eval_accuracy", 3, -1_000, None)),
        ("closed", "eval_accuracy", 3, 60_000, "note"),
    ],
)
def test_a_clock_set_back_in_a_block_or_an_evaluation_is_seen_by_its_time_per_sample(
    make_records, write, division, key, number, moved_ms, level
):
    records = make_records(accuracies=(0.3, 0.4, 0.5, 0.6, 0.7, 0.76))
    records = [record for record in records if not record["key"].startswith("epoch")]
    for block in range(6):  # which ends before its evaluation, and counts its length in samples
        stop = records.pop(records.index(named(records, "block_stop", block)))
        evaluation = named(records, "eval_start", block)
        records.insert(records.index(evaluation), {**stop, "time_ms": evaluation["time_ms"]})
        for event in (named(records, "block_start", block), records[records.index(evaluation) - 1]):
            event["metadata"]["samples_count"] = 128
    put("submission_division", division)(records)
    for record in records[records.index(named(records, key, number)) :]:
        record["time_ms"] += moved_ms
    named(records, "run_stop")["metadata"].pop("elapsed_ms")
    rule = "evaluation-duration" if key == "eval_accuracy" else "block-duration"
    assert [f.level for f in check(write(records)).findings if f.rule.endswith("-duration")] == (
        [level] if level else []
    )
    assert level is None or rule in [f.rule for f in check(write(records)).findings]


def test_a_demonstration_is_held_to_its_own_logged_target_and_the_benchmarks_data_to_its(
    demonstration, make_records, write
):
    put("quality_target", 0.8)(demonstration)
    assert found(write, demonstration) == ["target-reached"]
    demonstration.remove(named(demonstration, "quality_target"))
    assert found(write, demonstration) == ["quality-target"]
    assert found(write, make_records(dataset="imagenet", accuracies=(0.5, 0.755))) == ["target-reached"]
    assert not check(write(make_records(dataset="ImageNet"))).demonstration


def test_samples_count_from_0_without_a_warning(records, write):
    put("submission_benchmark", "bert")(records)
    put("eval_samples", 10_000)(records)
    for record in records:
        for name in {"epoch_num", "first_epoch_num"} & record["metadata"].keys():
            record["metadata"][name] = (record["metadata"][name] - 1) * 448
    report = check(write(records))
    assert report.ruleset == "2.1.0" and {finding.rule for finding in report.findings} <= {"evaluation-interval"}


@pytest.mark.parametrize(
    ("micro", "steps", "wrong"),
    [(16, 4, False), (22, 3, False), (64, 1, False), (32, None, False), (65, 1, True), (32, 3, True), (65, None, True)],
)
def test_a_micro_batch_and_its_accumulation_steps_fit_into_the_global_batch(records, write, micro, steps, wrong):
    insert("micro_batch_size", micro)(records)
    if steps is not None:
        insert("gradient_accumulation_steps", steps)(records)
    assert ("batch-size" in found(write, records, level="warning")) == wrong


@pytest.mark.parametrize("batch", [1e308, 10**300, 1e-310, -1, "64", None])
def test_what_is_no_batch_size_has_no_evaluation_interval(records, write, batch):
    for key, value in {"submission_division": "closed", "submission_benchmark": "bert"}.items():
        put(key, value)(records)
    put("global_batch_size", batch)(records)
    assert "evaluation-interval" not in found(write, records, level="warning")


@pytest.mark.parametrize(
    ("value", "errors"),
    [
        *(({"BBOX": 0.377, "SEGM": 0.339}, []), ({"BBOX": 0.377, "SEGM": 0.338}, ["SEGM"])),
        *(({"BBOX": 0.3}, ["BBOX", "SEGM"]), ({"BBOX": None, "SEGM": 0.4}, ["BBOX"]), (0.9, ["BBOX", "SEGM"])),
    ],
)
def test_every_part_of_a_quality_of_several_numbers_must_reach_its_target(records, write, value, errors):
    put("submission_benchmark", "maskrcnn")(records)
    for number in (0, 1):
        put("eval_accuracy", value, number)(records)
    findings = check_record(read(write(records)), "2.0.0")
    missed = [finding.message for finding in findings if finding.rule == "target-reached"]
    assert [name for name in ("BBOX", "SEGM") if any(name in message for message in missed)] == errors


def test_irregular_evaluations_of_an_open_run_are_noted_at_their_line(make_records, write):
    records = make_records(accuracies=(0.1, 0.2, 0.3, 0.4, 0.76))
    for number, epoch in enumerate((4, 8, 12, 13, 17)):
        note("eval_accuracy", number, epoch_num=epoch)(records)
    noted = [f for f in check(write(records)).findings if f.rule == "evaluation-interval"]
    assert [(f.level, f.line) for f in noted] == [("note", records.index(named(records, "eval_accuracy", 3)) + 1)]
    for number, epoch in enumerate((3, 7, 11, 15, 19)):
        note("eval_accuracy", number, epoch_num=epoch)(records)
    assert "evaluation-interval" not in [f.rule for f in check(write(records)).findings]


@pytest.mark.parametrize(
    "mutate",
    [
        *(shifting(900, "eval_stop"), insert("opt_learning_rate_decay_epochs", 2)),
        *(insert("lars_opt_learning_rate_decay_steps", 27_000), insert("lars_opt_learning_rate_decay_steps", 37)),
        insert("opt_learning_rate_training_steps", "many"),
    ],
    ids=["nodes' clocks a second apart", "epochs", "steps", "steps of LARS in epochs", "an unreadable schedule"],
)
def test_what_is_within_the_rules_has_no_warning(records, write, mutate):
    mutate(records)
    assert found(write, records, level="warning") == []


def test_dlrm_may_clear_caches_in_another_process_and_end_at_an_evaluation_without_a_stop(records, write):
    records.remove(named(records, "eval_stop", 1))
    assert found(write, records) == ["pairs"]
    put("submission_benchmark", "dlrm")(records)
    assert "pairs" not in found(write, records)
    put("submission_benchmark", "dlrm_dcnv2")(records)
    move("cache_clear", "run_stop")(records)
    assert "cache-clear" not in found(write, records, "5.1.0")
    shifting(60_000, "cache_clear")(records)
    assert "cache-clear" in found(write, records, "5.1.0")


BLOCKS = {  # samples_count of each block's start and stop, of each evaluation, and whether a block steps back
    "lengths, the first ones unevaluated": ((1536, 384, 384), (1536, 384, 384), (1536, 1920, 2304), False),
    "lengths, the last block cut": ((384, 384, 384), (384, 384, 384), (384, 768, 900), False),
    "lengths, only the last stop cut": ((384, 384, 384), (384, 384, 132), (384, 768, 900), False),
    "lengths, evaluations count epochs": ((384, 384, 384), (384, 384, 384), (0.05, 0.1, 0.15), False),
    "lengths at starts alone, the last block cut": ((384, 384, 384), (), (384, 768, 900), False),
    "positions": ((0, 384, 768), (384, 768, 1152), (384, 768, 1152), False),
    "a position that steps back": ((0, 384, 256), (384, 768, 1152), (384, 768, 1152), True),
    "a block trained twice": ((0, 384, 384), (384, 768, 768), (384, 768, 1152), True),
}


@pytest.mark.parametrize(("starts", "stops", "evaluations", "wrong"), BLOCKS.values(), ids=BLOCKS)
def test_samples_of_a_block_are_its_position_or_its_length(make_records, write, starts, stops, evaluations, wrong):
    records = make_records(accuracies=(0.97, 0.95, 0.92))
    put("submission_benchmark", "llama2_70b_lora")(records)
    for key, counts in (("block_start", starts), ("block_stop", stops), ("eval_accuracy", evaluations)):
        for number, samples in enumerate(counts):
            unit = "epoch_num" if 0 < samples < 1 else "samples_count"
            note(key, number, **{unit: samples})(records)
            named(records, key, number)["metadata"].pop("first_epoch_num", None)
    assert ("epoch-numbering" in found(write, records, "5.1.0")) == wrong


def test_a_block_of_evaluations_after_the_last_epoch_trains_nothing(records, write):
    stop = records.index(named(records, "eval_start", 1))
    block = {**named(records, "block_start"), "time_ms": records[stop]["time_ms"]}
    records.insert(stop, {**named(records, "block_stop"), "time_ms": block["time_ms"]})
    records.insert(stop + 1, block)
    assert found(write, records) == []
    epoch = [record for record in records if record["key"].startswith("epoch")][-2:]
    records[stop + 2 : stop + 2] = [{**record, "time_ms": block["time_ms"]} for record in epoch]
    assert "epoch-numbering" in found(write, records)  # it trains the second epoch again


@pytest.mark.parametrize(
    ("evaluated", "words"),
    [(50_063, None), (50_064, "by less than a batch of 64"), (40_000, "log its size"), (10_000, "not a result of")],
)
def test_an_evaluation_set_is_padded_by_less_than_a_batch(records, write, evaluated, words):
    put("eval_samples", evaluated)(records)
    messages = [f.message for f in check_record(read(write(records)), "2.0.0") if f.rule == "dataset-size"]
    assert len(messages) == (words is not None) and all(words in message for message in messages)


def test_blocks_of_an_evaluation_train_nothing(records, write):
    first = records.index(named(records, "eval_accuracy"))
    block = {**named(records, "block_start"), "time_ms": records[first]["time_ms"] - 30_000}
    records.insert(first, {**block, "metadata": {**block["metadata"], "first_epoch_num": 0}})
    records.insert(first + 1, {**named(records, "block_stop"), "time_ms": records[first]["time_ms"]})
    assert "clock-order" not in found(write, records) and "epoch-numbering" not in found(write, records)


def test_a_first_evaluation_and_values_of_one_progress_are_no_second_evaluation(make_records, write):
    assert found(write, make_records(accuracies=(0.76,)), level="warning") == []
    records = make_records(accuracies=(0.5, 0.7, 0.76))
    for number in range(3):
        note("eval_accuracy", number, epoch_num=1)(records)
    assert "evaluated-again" not in found(write, records, level="warning")


@pytest.mark.parametrize("key", ["block_start", "eval_accuracy", "seed"])
@pytest.mark.parametrize("factor", [10, 0.1])
def test_a_time_with_another_number_of_digits_is_named_and_nothing_else_is_said_of_it(records, write, key, factor):
    named(records, key)["time_ms"] = int(named(records, key)["time_ms"] * factor)
    (finding,) = (x for x in check(write(records)).findings if x.rule != "evaluation-interval")
    assert (finding.level, finding.rule) == ("warning", "time-digits")
    assert finding.message.startswith(f"time_ms of {key} is 17600")
    assert finding.message.endswith("the log's other times have 13 digits")
    assert ("too many" in finding.message) == (factor > 1)


FATAL = {
    "target missed": put("eval_accuracy", 0.7, -1),
    "aborted": note("run_stop", status="aborted"),
    "run_stop in the past": shifting(-(10**10), "run_stop"),
}


def spoiled(records, seed, edits) -> list[str]:
    """Random deletions, repetitions, swaps and other values on the lines of `records` that no fatal flaw is on."""
    chance, lines = random.Random(seed), lines_of(records)
    kept = ("run_stop", "run_start", "eval_accuracy", "submission_benchmark")
    free = [place for place, record in enumerate(records) if record["key"] not in kept]
    for _ in range(edits):
        place, other = chance.choice(free), chance.choice(free)
        choice = chance.randrange(4)
        if choice == 0:
            lines[place] = ""
        elif choice == 1:
            lines[place] = f"{lines[place]}\n{lines[place]}"
        elif choice == 2:
            lines[place], lines[other] = lines[other], lines[place]
        else:
            value = chance.choice(["null", "-1", "1e400", '"resnet"', "[]", "{}", "true", "0.99"])
            lines[place] = lines[place].replace('"value": null', f'"value": {value}')
    return lines


@pytest.mark.parametrize("flaw", FATAL)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), edits=st.integers(0, 12))
def test_what_failed_never_passes_whatever_else_is_edited(tmp_path_factory, flaw, seed, edits):
    records = good_records()
    FATAL[flaw](records)
    path = tmp_path_factory.mktemp("spoiled") / "result_0.txt"
    path.write_text("\n".join(spoiled(records, seed, edits)))
    assert any(finding.level == "error" for finding in check_record(read(path), "2.0.0"))
