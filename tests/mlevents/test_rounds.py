"""The rounds' data agree with the rule files of MLCommons' own checker, its run counts and its word lists."""

import dataclasses
import importlib.metadata
import inspect
import json
import math
import re
from datetime import datetime
from pathlib import Path

import mlperf_logging.rcp_checker
import pytest
from mlperf_logging import benchmark_meta
from mlperf_logging.mllog import constants
from mlperf_logging.result_summarizer import result_summarizer

from mlevents import keys
from mlevents.rounds import (
    BENCHMARK_DATASET,
    MLPERF_RULESETS,
    RULESETS,
    default_ruleset,
    named_round,
    round_of_path,
    ruleset,
    rulesets_of,
)
from tests.mlevents.rounds import rule_files

RCP = Path(mlperf_logging.rcp_checker.__file__).parent
OWN_KEYS = {
    "STEP",
    *("DATASET", "QUALITY_TARGET", "CONFIG_NAME", "CONFIG_DIGEST", "METHOD", "ELAPSED_MS", "RESUMED", "METRIC"),
    *("CHECKPOINT", "CLOCK_SET", "RECOMPILED"),
    *("TRACKED_STATS", "THROUGHPUT", "MACHINE_LOAD", "LEDGER_ENTRY"),
    *("TRAIN_LOSS", "RULESET", "READ_LATE", "COMMAND", "REPORTED_SECONDS", "ENDED_AT_TARGET", "SOURCE_SHA256"),
    *("DATA_LOADER", "DATA_STORE", "DATA_ORDER", "DATA_WORKERS", "DATA_PREFETCH", "BENCHMARK_RULES"),
    *("OPEN", "CLOSED"),  # words of the rule files
}


def test_every_key_is_mlperf_loggings_constant_of_the_same_name_or_declared_as_our_own():
    ours = {name: value for name, value in vars(keys).items() if name.isupper()}
    assert {name for name in ours if name not in OWN_KEYS} <= set(dir(constants))
    assert {name: value for name, value in ours.items() if getattr(constants, name, value) != value} == {}
    assert len(set(ours.values())) == len(ours)


@pytest.mark.parametrize("name", MLPERF_RULESETS)
def test_benchmarks_runs_init_limits_and_words_are_the_tools(name):
    rules = ruleset(name)
    assert set(rules.benchmarks) == set(benchmark_meta.get_allowed_benchmarks("training", name))
    runs = benchmark_meta.get_result_file_counts("training")
    assert {key: own.runs for key, own in rules.benchmarks.items()} == {key: runs[key] for key in rules.benchmarks}
    assert all(own.name == key for key, own in rules.benchmarks.items())
    entries = rule_files.entries(name, "common")
    limits = re.search(r"= (\d+) if v\['value'\] == 'open' else (\d+)", entries["submission_division"]["POST"])
    minutes = limits.groups() if limits else re.findall(r"< \((\d+)\*60", str(entries["init_stop"]["CHECK"])) * 2
    assert rules.init_minutes == {"open": float(minutes[0]), "closed": float(minutes[1])}
    asked = {item.key: item.vocabulary for item in rules.required}
    assert rules.status_words == asked.get("submission_status", ())
    assert (name, rules.checker) == (f"{rules.round[1:]}.0", importlib.metadata.version("mlperf-logging"))


@pytest.mark.parametrize("name", MLPERF_RULESETS)
def test_targets_are_those_of_the_closed_rule_files(name):
    for benchmark, own in ruleset(name).benchmarks.items():
        entries = rule_files.entries(name, f"closed_{benchmark}")
        text = (entries.get("aggregated_eval_accuracy") or entries["eval_accuracy"])["ATLEAST_ONE_CHECK"]
        text = text.replace("s['target_accuracy']", {"dlrmv4": "0.75", "qwen35_397b_grpo": "0.69"}.get(benchmark, ""))
        if own.parts:
            for part, target in own.parts.items():
                stated = set(re.findall(rf"\['{part}'\] ([<>]=) ([0-9.]+)", text))
                stated |= {(">=", number) for number in re.findall(rf"([0-9.]+) <= v\['value'\]\['{part}'\]", text)}
                assert (target.direction, target.target) in {(sign, float(text)) for sign, text in stated}, benchmark
            assert (own.target, own.direction) == tuple(dataclasses.astuple(next(iter(own.parts.values())))), benchmark
        else:
            sign, number = re.search(r"v\['value'\] ([<>]=?) ([0-9.]+)", text).groups()
            stated = (sign[0] + "=", sign == ">", float(number))
            assert (own.direction, own.target_excluded, own.target) == stated, benchmark
        progress = keys.SAMPLES_COUNT if "samples_count" in str(entries) else keys.EPOCH_NUM
        assert own.progress == (keys.STEP_NUM if "step_num" in str(entries) else progress), benchmark


@pytest.mark.parametrize("name", MLPERF_RULESETS)
def test_units_are_those_the_reference_convergence_points_count_in(name):
    for benchmark, own in ruleset(name).benchmarks.items():
        file = RCP / f"training_{name}" / f"rcps_{benchmark}.json"
        if own.progress == keys.SAMPLES_COUNT:
            assert own.unit == "samples", benchmark
        elif not file.exists():
            assert (benchmark, own.unit) == ("minigo", "epoch")
        else:
            point = next(iter(json.loads(file.read_text()).values()))
            epochs = point["Epochs to converge"][0]
            # No run took more than ten thousand epochs, or fewer than that many of anything else but steps.
            assert (own.unit == "epoch") == (epochs < 10_000 and own.unit != "steps"), benchmark
            assert (own.unit == "tokens") == (epochs > 1e9), benchmark


def test_unet3d_drops_four_runs_at_each_end_and_every_other_benchmark_one():
    assert 'max_dropped_scores = 4 if benchmark == "unet3d" else 1' in inspect.getsource(result_summarizer)
    dropped = {(own.name, own.dropped) for rules in MLPERF_RULESETS.values() for own in rules.benchmarks.values()}
    assert {name for name, number in dropped if number != 1} == {"unet3d"} and ("unet3d", 4) in dropped


def test_every_defect_is_about_a_benchmark_of_its_round_and_its_repair_fits_the_installed_rule_file():
    for rules in MLPERF_RULESETS.values():
        for defect in rules.defects:
            assert defect.benchmark in rules.benchmarks and defect.division in ("open", "closed")
            text = (rule_files.CHECKER / defect.repair.file).read_text()
            assert text.count(defect.repair.text) == 1 and defect.repair.by not in text
    assert sum(len(rules.defects) for rules in MLPERF_RULESETS.values()) == 14


def test_evaluation_intervals_follow_the_rules_formulas():
    v21, v31, v61 = (ruleset(name).benchmarks for name in ("2.1.0", "3.1.0", "6.1.0"))
    assert v21["resnet"].evaluation_interval.at(2048) == 4
    # training_rules.adoc by hand: 0.05 * (230.23 * B + 3,000,000) rounded down to 25,000.
    assert [v21["bert"].evaluation_interval.at(b) for b in (448, 3072, 65536)] == [150_000, 175_000, 900_000]
    # CEILING(20 * 168 / samples per epoch), the epoch padded to whole batches: 168, 168 and 256 samples.
    assert [v21["unet3d"].evaluation_interval.at(b) for b in (1, 56, 128)] == [20, 20, 14]
    assert v31["unet3d"].evaluation_interval is None
    assert [v61["llama31_8b"].evaluation_interval.at(b) for b in (16, 96, 1000)] == [12_288, 12_288, 13_000]
    assert [v61["flux1"].evaluation_interval.at(b) for b in (512, 1000)] == [262_144, 263_000]
    assert [v61["llama2_70b_lora"].evaluation_interval.at(b) for b in (8, 9)] == [384, 387]
    assert v61["deepseekv3_671b"].evaluation_interval.at(16384) == 16384
    assert v61["dlrmv4"].evaluation_interval.at(8192) == 280 * 8192


def test_a_target_is_reached_at_equality_and_never_by_nan():
    resnet = ruleset("2.0.0").benchmarks["resnet"]
    assert resnet.reached(0.759) and not resnet.reached(0.7589999) and not resnet.reached(math.nan)
    assert resnet.reached(0.5, target=0.5)
    rnnt = ruleset("2.0.0").benchmarks["rnnt"]
    assert rnnt.reached(0.058) and not rnnt.reached(0.0581) and not rnnt.reached(math.nan)
    qwen = ruleset("6.1.0").benchmarks["qwen35_397b_grpo"]
    assert qwen.reached(0.6901) and not qwen.reached(0.69)
    gpt = ruleset(default_ruleset("gpt_125m")).benchmarks["gpt_125m"]
    assert gpt.target == pytest.approx(math.log(24.11), abs=5e-5) and not gpt.reached(3.19)


def test_a_quality_of_several_numbers_reaches_only_with_all_of_them():
    boxes = ruleset("2.0.0").benchmarks["maskrcnn"]
    assert boxes.reached({"BBOX": 0.377, "SEGM": 0.339})
    assert not boxes.reached({"BBOX": 0.4, "SEGM": 0.3}) and not boxes.reached({"BBOX": 0.4})
    assert boxes.reached(0.377) and not boxes.reached(0.376)  # one number stands for the first part
    assert boxes.quality_parts({"BBOX": 0.4, "SEGM": 0.3, "more": 1}) == {"BBOX": 0.4, "SEGM": 0.3}
    assert boxes.quality_parts(0.4) == {}
    images = ruleset("4.1.0").benchmarks["stable_diffusion"]
    assert images.reached({"FID": 90.0, "CLIP": 0.15}) and not images.reached({"FID": 90.1, "CLIP": 0.2})
    assert images.quality_parts(80.0, "FID") == {"FID": 80.0} and images.quality_parts(80.0) == {}
    assert not ruleset("2.0.0").benchmarks["resnet"].reached({"BBOX": 1.0})


def test_defaults_are_the_reference_rounds_or_the_newest_and_unknown_names_list_the_known():
    assert (default_ruleset("resnet"), default_ruleset("bert")) == ("2.0.0", "2.1.0")
    assert (default_ruleset("llama31_8b"), default_ruleset("rgat")) == ("6.1.0", "5.1.0")
    assert rulesets_of("resnet") == ("2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0")
    assert rulesets_of("bert")[-1] == "5.0.0" and rulesets_of("gpt_125m") == ("beyond_mlperf",)
    assert rulesets_of("gnmt") == ()
    assert (BENCHMARK_DATASET["resnet"], BENCHMARK_DATASET["bert"]) == ("imagenet", "wikipedia")
    assert BENCHMARK_DATASET["gpt_125m"] == "openwebtext" and len(BENCHMARK_DATASET) == 24
    with pytest.raises(ValueError, match=r"2\.0\.0, 2\.1\.0"):
        ruleset("9.9.9")
    with pytest.raises(ValueError, match="resnet, ssd, .*gpt_125m"):
        default_ruleset("gnmt")


@pytest.mark.parametrize(
    ("benchmark", "date", "name"),
    [
        ("resnet", "2022-05-15", "2.0.0"),  # days of published logs of that round
        *(("bert", "2022-10-02", "2.1.0"), ("resnet", "2023-09-30", "3.1.0"), ("unet3d", "2024-05-18", "4.0.0")),
        *(("stable_diffusion", "2024-10-22", "4.1.0"), ("llama2_70b_lora", "2025-05-15", "5.0.0")),
        ("llama2_70b_lora", "2025-06-01", "5.1.0"),
        ("resnet", "2024-06-01", "2.0.0"),  # after its last round: the reference
        ("bert", "1970-01-01", "2.1.0"),
        *(("bert", "2018-07-01", "none"), ("ssd", "2021-10-11", "none")),  # before the first round here
        ("bert", "2021-12-31", "2.0.0"),
        ("gpt_125m", "2021-09-30", "beyond_mlperf"),
    ],
)
def test_a_date_chooses_the_first_round_that_was_still_open(benchmark, date, name):
    assert default_ruleset(benchmark, datetime.fromisoformat(f"{date}T12:00Z").timestamp() * 1e3) == name


def test_each_round_closes_after_the_one_before_and_no_time_breaks_the_choice():
    months = [rules.last_month for rules in RULESETS.values() if rules.name in MLPERF_RULESETS]
    assert months == sorted(set(months)) and RULESETS["beyond_mlperf"].last_month == ""
    for time_ms in (-1e300, 0, 1e300, math.nan, math.inf):
        assert default_ruleset("resnet", time_ms) == "2.0.0"


def test_the_round_is_found_from_the_name_of_a_folder():
    for path, name in {
        "v5.1/Org/results/s/flux1/result_0.txt": "5.1.0",
        "v2.1-runs/Org": None,
        "training_results_v2.1/MosaicML/results/s/bert/result_0.txt": "2.1.0",
        "/data/training_results_v6.1/Org": "6.1.0",
        "training_results_v4.0-main/Org/results": "4.0.0",
        "training_results_v2.0/training_results_v5.0/x": "5.0.0",
        "training_results_v1.1/Org": None,
        "training_results_v2.10/Org": None,
        "training_results_v2.0.1/Org": None,
        "my_training_results_v2.0/Org": None,
        "": None,
    }.items():
        assert round_of_path(path) == round_of_path(Path(path)) == name, path
    assert named_round("v1.1/Org/results/s/bert/result_0.txt") == "1.1.0"
    assert named_round("my/v1.1/Org/runs/result_0.txt") is None
    assert named_round("hpc_results_v3.0/Org") == "hpc 3.0.0"
