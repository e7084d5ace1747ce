"""Logs of the demonstration in the form of llama31_8b pass MLCommons' checker for v6.1, with the config's values."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.prepare import prepare
from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.rounds import RULESETS
from mlevents.runlog import RunLog
from timedrun.benchmark import find
from timedrun.config import RunConfig, SubmissionConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.preflight.dry_run import SimulatedClock, write_log
from timedrun.preflight.plan import Plan
from timedrun.run.progress import Progress
from timedrun.run.timed_run import TimedRun

BENCHMARK = find("llama31_8b")
CONFIG = BENCHMARK.config("closed")
assert isinstance(CONFIG, GptRunConfig)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The plan of a run of three evaluations, on 2 ranks."""
    whole = BENCHMARK.plan(CONFIG, ProcessGroup(0, 2, 0, torch.device("cpu")), None)
    return replace(whole, total=336)


def dry_run(config: RunConfig, plan: Plan, path: Path) -> Path:
    write_log(BENCHMARK.spec, config, plan, path, "1xCPU", SimulatedClock())
    return path


def test_its_log_passes_mlcommons_checker_and_the_strict_checks_of_v6_1(plan: Plan, tmp_path: Path) -> None:
    path = dry_run(CONFIG, plan, tmp_path / "result_0.txt")
    verdict = mlcommons.check_log(path, "6.1.0")
    assert (verdict.verdict, verdict.messages) == ("pass", ())
    report = check(path, BENCHMARK.spec.ruleset)  # by its date it is of v5.1: a dry run's clock is no real time
    assert (report.ruleset, report.passed, report.demonstration) == ("6.1.0", True, True)
    log = record.read(path)
    assert [point.progress for point in log.quality] == [112, 224, 336]
    assert log.final_quality == 3.3 and log.quality[0].value > 3.3
    assert [event.metadata["samples_count"] for event in log.all(keys.BLOCK_START)] == [0, 112, 224]
    assert [event.metadata["samples_count"] for event in log.all(keys.BLOCK_STOP)] == [112, 224, 336]
    assert not [event for event in log.events if {keys.EPOCH_NUM, keys.FIRST_EPOCH_NUM} & event.metadata.keys()]


def test_logs_of_the_sharded_full_size_pass_too(tmp_path: Path) -> None:
    config = BENCHMARK.config("c4_full")
    whole = BENCHMARK.plan(config, ProcessGroup(0, 8, 0, torch.device("cpu")), None)
    path = dry_run(config, replace(whole, total=3 * config.evaluation.every), tmp_path / "result_0.txt")
    verdict = mlcommons.check_log(path, "6.1.0")
    assert (verdict.verdict, verdict.messages) == ("pass", ())
    report = check(path, BENCHMARK.spec.ruleset)
    assert (report.passed, report.demonstration) == (True, False)
    log = record.read(path)
    assert (log.value("sharding"), log.value(keys.LOWEST_NUMERICAL_PRECISION_IN_COMM)) == ("full", "bfloat16")


def test_a_real_run_of_a_smaller_model_logs_what_its_dry_run_does(tmp_path: Path) -> None:
    config = replace(
        CONFIG,
        model=replace(CONFIG.model, context=16),
        data=replace(CONFIG.data, eval_sequences=8),
        evaluation=replace(CONFIG.evaluation, target=2.9),
    )
    store, alone = tmp_path / "store", ProcessGroup(0, 1, 0, torch.device("cpu"))
    prepare(config, store, decode=False, workers=1)
    log, quiet = RunLog(tmp_path / "result_0.txt"), Progress("test", shown=False)
    with TimedRun(config, BENCHMARK.spec, alone, log, platform="1xCPU", progress=quiet, data_folder=store) as run:
        BENCHMARK.train(config, run)
    real = record.read(tmp_path / "result_0.txt")
    plan = replace(BENCHMARK.plan(config, alone, store), total=336)
    dry = record.read(dry_run(config, plan, tmp_path / "result_1.txt"))
    assert real.status == keys.SUCCESS and real.final_quality is not None and real.final_quality <= 2.9
    assert len(real.quality) > 1 and real.quality[0].value > 2.9
    logged, planned = ({event.key for event in one.events} for one in (real, dry))
    assert logged - {keys.PAGE_CACHE_RESIDENT} == planned
    assert real.value(keys.EVAL_SAMPLES) == dry.value(keys.EVAL_SAMPLES) == 8


def test_a_dry_run_ends_long_before_the_longest_run(tmp_path: Path) -> None:
    plan = BENCHMARK.plan(CONFIG, ProcessGroup(0, 1, 0, torch.device("cpu")), None)
    log = record.read(dry_run(CONFIG, plan, tmp_path / "result_0.txt"))
    assert (plan.total, len(log.quality), log.status) == (2_400_000, 200, keys.SUCCESS)


def test_its_log_has_the_values_that_follow_from_its_config(plan: Plan, tmp_path: Path) -> None:
    log = record.read(dry_run(CONFIG, plan, tmp_path / "result_0.txt"))
    for key, value in {
        keys.MICRO_BATCH_SIZE: 1,
        keys.GRADIENT_ACCUMULATION_STEPS: 1,  # on each of the two ranks
        keys.MAX_STEPS: 1_200_000,
        keys.OPT_LR_DECAY_STEPS: 1_199_996,
        keys.OPT_END_LR: 0.002,
    }.items():
        assert log.value(key) == pytest.approx(value), key


def test_each_key_that_v6_1_made_mandatory_is_needed(plan: Plan, tmp_path: Path) -> None:
    path = dry_run(CONFIG, plan, tmp_path / "result_0.txt")
    required = {rule.key for rule in RULESETS["6.1.0"].required} - {rule.key for rule in RULESETS["5.1.0"].required}
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not any(f'"{key}"' in line for key in required)]
    assert len(lines) - len(kept) == len(required) == 9
    path.write_text("".join(kept))
    messages = mlcommons.check_log(path, "6.1.0").messages
    assert sorted(messages) == sorted(
        f"result_0.txt: Required EXACTLY_ONE occurrence of '{k}' but found 0" for k in required
    )
    findings = check(path, "6.1.0").findings
    assert {finding.rule for finding in findings if finding.level == "error"} == {"required-key"}


def test_an_open_log_fails_by_the_defect_of_todays_rule_file_alone(plan: Plan, tmp_path: Path) -> None:
    config = replace(CONFIG, submission=SubmissionConfig(division="open"))
    verdict = mlcommons.check_log(dry_run(config, plan, tmp_path / "result_0.txt"), "6.1.0")
    assert (verdict.verdict, verdict.own_round) == ("fail", "pass")
