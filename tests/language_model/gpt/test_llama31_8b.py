"""Llama 3.1 8B: closed logs pass MLCommons' checker for v6.1; parameters of the full size."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import preflight
from language_model.gpt.llama31_8b_configs import LLAMA31_8B, c4_full, topics_closed
from language_model.gpt.model import Decoder
from language_model.gpt.prepare import prepare
from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.one_rank import ALONE, CPU, trained
from timedrun.evidence.preflight.dry_run import SimulatedClock, write_log
from timedrun.runner.benchmark import find
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan

BENCHMARK = find("llama31_8b")
CONFIG = topics_closed()
PARAMETERS = 8_030_261_248


def planned(config: GptRunConfig, ranks: int) -> Plan:
    """Return the plan of a run of three evaluations."""
    whole = BENCHMARK.plan(config, ProcessGroup(0, ranks, 0, CPU), None)
    return replace(whole, total=3 * config.evaluation.every)


def dry_run(config: RunConfig, plan: Plan, path: Path) -> Path:
    write_log(BENCHMARK.spec, config, plan, path, "1xCPU", SimulatedClock())
    return path


def test_its_log_passes_mlcommons_checker_and_the_strict_checks_of_v6_1_with_its_configs_values(tmp_path):
    path = dry_run(CONFIG, planned(CONFIG, 2), tmp_path / "result_0.txt")
    verdict = mlcommons.check_logs([path], "6.1.0")[0]
    assert (verdict.verdict, verdict.messages) == ("pass", ())
    report = check(path, BENCHMARK.spec.ruleset)  # by its date it is of v5.1: a dry run's clock is no real time
    assert (report.ruleset, report.passed, report.demonstration) == ("6.1.0", True, True)
    log = record.read(path)
    assert [point.progress for point in log.quality] == [112, 224, 336]
    assert log.final_quality == 3.3 and log.quality[0].value > 3.3
    assert [event.metadata["samples_count"] for event in log.all(keys.BLOCK_START)] == [0, 112, 224]
    assert [event.metadata["samples_count"] for event in log.all(keys.BLOCK_STOP)] == [112, 224, 336]
    assert not [event for event in log.events if {keys.EPOCH_NUM, keys.FIRST_EPOCH_NUM} & event.metadata.keys()]
    for key, value in {
        keys.MICRO_BATCH_SIZE: 1,
        keys.GRADIENT_ACCUMULATION_STEPS: 1,  # on each of the two ranks
        keys.MAX_STEPS: 1_200_000,
        keys.OPT_LR_DECAY_STEPS: 1_199_996,
        keys.OPT_END_LR: 0.002,
    }.items():
        assert log.value(key) == pytest.approx(value), key


def test_logs_of_the_sharded_full_size_pass_too(tmp_path):
    path = dry_run(c4_full(), planned(c4_full(), 8), tmp_path / "result_0.txt")
    report = check(path, BENCHMARK.spec.ruleset)
    assert (report.passed, report.demonstration) == (True, False)


def test_a_real_run_of_a_smaller_model_logs_what_its_dry_run_does(tmp_path):
    config = replace(
        CONFIG,
        global_batch=8,
        micro_batch=8,
        model=replace(CONFIG.model, context=16),
        data=replace(CONFIG.data, eval_sequences=8),
        evaluation=replace(CONFIG.evaluation, target=3.1),
    )
    store = tmp_path / "store"
    prepare(config, store, decode=False, workers=1)
    trained(config, RunLog(tmp_path / "result_0.txt"), data_folder=store)
    real = record.read(tmp_path / "result_0.txt")
    plan = replace(BENCHMARK.plan(config, ALONE, store), total=336)
    dry = record.read(dry_run(config, plan, tmp_path / "result_1.txt"))
    assert real.status == keys.SUCCESS and real.final_quality is not None and real.final_quality <= 3.1
    assert len(real.quality) > 1 and real.quality[0].value > 3.1
    logged, planned = ({event.key for event in one.events} for one in (real, dry))
    assert logged == planned
    assert real.value(keys.EVAL_SAMPLES) == dry.value(keys.EVAL_SAMPLES) == 8


def test_the_full_size_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = Decoder(LLAMA31_8B)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS


def test_a_run_of_the_full_size_is_refused_as_long_as_stores_have_16_bits_for_a_token():
    assert any("no run can start" in problem for problem in preflight(c4_full(), None, 8))
    assert not any("no run can start" in problem for problem in preflight(topics_closed(), None, 8))
