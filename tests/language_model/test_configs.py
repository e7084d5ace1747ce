"""Published rates and targets, and the equality of baseline and methods in all but speed settings; what Muon trains."""

import re
from dataclasses import replace
from pathlib import Path

import mlperf_logging
import pytest
import torch

from judging.ground.config_values import differing
from language_model import configs
from language_model.build import build
from language_model.datasets import declared
from language_model.settings import SpeedUps
from mlevents import keys
from mlevents.mlcommons import check_logs
from mlevents.record import read
from mlevents.rounds import ruleset
from tests.one_rank import ALONE, CPU
from timedrun.evidence.preflight.dry_run import write_set
from timedrun.methods import BlurPool
from timedrun.runner.benchmark import find
from timedrun.runner.config import OptimizerConfig, SubmissionConfig, dump
from timedrun.runner.distributed.process_group import ProcessGroup

CLOSED = SubmissionConfig(division="closed")
MUON = OptimizerConfig(kind="muon", peak_lr=0.02, other_lr=4e-3)
SGD = OptimizerConfig(kind="sgd", peak_lr=1)
TOPICS = configs.topics_baseline().data


def test_the_baseline_has_the_target_data_and_evaluations_of_mlperf_v2_1():
    config = configs.wikipedia_baseline()
    rules = ruleset("2.1.0").benchmarks["bert"]
    assert (config.evaluation.target, config.dataset) == (rules.target, rules.dataset)
    assert config.evaluation.every == config.evaluation.first == 55 * config.global_batch


@pytest.mark.parametrize(
    "step, rate",
    [(0, 0.0), (40, 5e-5), (80, 1e-4), (399, 1e-4), (400, 9e-5), (999, 4.78e-5), (1000, 4.30e-5), (1320, 2.06e-5)]
    + [(1399, 1.50e-5), (1400, 1.35e-5), (1599, 1.35e-5), (1600, 1.22e-5), (5999, 1.22e-5)],
)
def test_the_learning_rate_is_the_published_one(step, rate):
    config = configs.wikipedia_baseline()
    assert config.optimizer.peak_lr * config.schedule.factor(step) == pytest.approx(rate, rel=5e-3)
    assert len(config.schedule.milestones) == len(set(config.schedule.milestones)) == 20


@pytest.mark.parametrize(
    "baseline, methods",
    [
        (configs.wikipedia_baseline(), configs.wikipedia_methods()),
        (configs.wikipedia_small_baseline(), configs.wikipedia_small_methods()),
        (configs.topics_baseline(), configs.topics_methods()),
    ],
)
def test_methods_differ_in_speed_settings_only(baseline, methods):
    changed = {name.split(".")[0] for name, *_ in differing(dump(baseline), dump(methods))}
    assert changed <= {"name", "notes", "implementation", "speed", "compile", "micro_batch"}  # which fits the memory
    assert {"implementation", "speed"} <= changed
    assert not baseline.problems() and not methods.problems()


def test_lamb_is_that_of_the_reference_convergence_points():
    config = configs.wikipedia_lamb()
    assert (config.global_batch, config.schedule.steps, config.schedule.factor(3350)) == (448, 6700, 0.5)
    # training_rules.adoc, "Evaluation": floor(0.05 * (230.23 * batch + 3,000,000), 25,000), none skipped
    assert config.evaluation.first == config.evaluation.every == 0.05 * (230.23 * 448 + 3e6) // 25_000 * 25_000
    assert not config.problems() and not configs.topics_lamb().problems()


def test_a_closed_log_has_all_keys_of_mlcommons_checkers_and_lacks_only_the_next_sentence_heads(tmp_path):
    base = configs.topics_lamb()
    shape = replace(base.architecture, layers=24, hidden=4, intermediate=4, heads=1)
    closed = replace(base, architecture=shape, evaluation=replace(base.evaluation, target=0.72), submission=CLOSED)
    benchmark, ranks = find("language_model"), ALONE
    plan = benchmark.plan(closed, ranks, None)
    (log,) = write_set(benchmark, closed, plan, tmp_path / "set", runs=1, ranks=ranks, platform="box")
    (verdict,) = check_logs([log], "5.0.0")  # the last round of BERT
    assert verdict.verdict == "pass", verdict.messages
    rule = Path(str(mlperf_logging.__path__[0]), "compliance_checker", "training_2.1.0", "closed_bert.yaml").read_text()
    tensors = {event.metadata["tensor"] for event in read(log).all(keys.WEIGHTS_INITIALIZATION)}
    lacking = set(re.findall('"((?:bert|cls)/[^"]*)"', rule)) - tensors
    assert len(tensors) == 394
    assert lacking == {f"bert/pooler/dense/{name}" for name in ("kernel", "bias")} | {
        f"cls/seq_relationship/output_{name}" for name in ("weights", "bias")
    }
    (verdict,) = check_logs([log], "2.1.0")
    assert verdict.verdict == "fail" and all("initialized_tensors" in message for message in verdict.messages)


@pytest.mark.parametrize(
    "config, words",
    [
        (replace(configs.wikipedia_lamb(), implementation="timedrun", speed=SpeedUps(fused_qkv=True)), "no-fused-qkv"),
        (replace(configs.topics_methods(), optimizer=MUON), "muon forms the step of each tensor"),
        (replace(configs.topics_baseline(), optimizer=MUON), "muon knows"),
        (replace(configs.wikipedia_lamb(), submission=CLOSED), "pooler and a next-sentence loss"),
        (replace(configs.topics_baseline(), speed=SpeedUps(unpadding=True)), "transformers' model has no unpadding"),
        (replace(configs.topics_baseline(), speed=SpeedUps(attention="varlen")), "eager or sdpa, not 'varlen'"),
        (replace(configs.topics_baseline(), max_samples=10**9), "exceeds the schedule's"),
        (replace(configs.topics_baseline(), data=replace(TOPICS, max_predictions=0)), "mask nothing or everything"),
        (replace(configs.topics_methods(), methods=(BlurPool(),)), "blurpool cannot be applied to timedrun's BERT"),
        (replace(configs.topics_methods(), optimizer=SGD), "optimizer sgd has no fused form"),
    ],
)
def test_contradicting_settings_are_reported(config, words):
    assert any(words in problem for problem in config.problems())


def test_speed_ups_without_effect_are_not_logged():
    alone, cpus = (ProcessGroup(0, world_size, 0, CPU) for world_size in (1, 2))
    small = configs.topics_methods()
    assert "balance_lengths" in small.speed_ups
    assert "balance_lengths" not in small.effective_speed_ups(alone, "sdpa_grouped")
    assert "balance_lengths" in small.effective_speed_ups(cpus, "sdpa_grouped")
    assert "attention" not in small.effective_speed_ups(alone, "eager")
    padded = replace(configs.ALL_SPEED_UPS, unpadding=False)
    large = replace(configs.wikipedia_methods(), precision="fp32", speed=padded)
    named = large.effective_speed_ups(ProcessGroup(0, 8, 0, torch.device("cuda")), "varlen")
    assert {"low_precision_residual", "row_multiple", "unpadding"}.isdisjoint(named)
    assert {"compile", "fused_qkv", "attention", "balance_lengths"} <= set(named)


def test_muon_trains_the_matrices_of_layers_and_head_and_adamw_the_rest():
    muon = replace(MUON, other_momentum=0.8, beta2=0.98)
    speed = replace(configs.CPU_SPEED_UPS, fused_qkv=False, fused_optimizer=False)
    config = replace(configs.topics_methods(), optimizer=muon, speed=speed)
    assert not config.problems()
    parts = build(config, ALONE, declared(config), torch.device("meta"))
    names = {id(parameter): name for name, parameter in parts.model.named_parameters()}
    matrices, rest = ({names[id(parameter)] for parameter in group["params"]} for group in parts.optimizer.param_groups)
    assert all(name.startswith(("layer.", "head.transform.dense.")) and name.endswith(".weight") for name in matrices)
    assert len(matrices) == 6 * config.architecture.layers + 1
    assert matrices | rest == set(names.values())
    assert [group["rule"] for group in parts.optimizer.param_groups] == ["muon", "adamw"]
    assert parts.optimizer.param_groups[1]["betas"] == (0.8, 0.98)
