"""Published hyper-parameters of MosaicML and nanoGPT, and contradicting settings."""

import inspect
import math
from dataclasses import replace
from pathlib import Path

import pytest

from language_model.gpt import configs, fineweb_configs
from language_model.gpt.configs import GptRunConfig
from mlevents.checks.log_check import check
from tests.one_rank import CPU
from timedrun.evidence.preflight.dry_run import SimulatedClock, write_log
from timedrun.methods import ALiBi, GradientClipping
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.runner.benchmark import find
from timedrun.runner.config_choice import read_config
from timedrun.runner.distributed.process_group import ProcessGroup

FINEWEB = find("fineweb")
ALL = [
    function
    for module in (configs, fineweb_configs)
    for function in vars(module).values()
    if inspect.isfunction(function) and function.__module__ == module.__name__
]


def test_the_baseline_sees_734_billion_tokens_at_mosaicmls_rates():
    config = configs.openwebtext_baseline()
    assert config.total_samples * config.model.context == 7_340_032_000
    assert math.exp(config.evaluation.target) == pytest.approx(24.11, abs=0.005)
    assert config.schedule.factor(70) == pytest.approx(0.5)
    assert config.schedule.factor(140) == 1 and config.schedule.factor(14_000) == pytest.approx(0)
    assert [BatchPlan.of(config.global_batch, config.micro_batch, ranks).local for ranks in (1, 8)] == [512, 64]


def test_contradicting_settings_and_settings_without_effect_are_reported():
    gpt2, modern = configs.shakespeare_baseline(), configs.shakespeare_modern()
    assert not any(function().problems() for function in ALL)
    assert not replace(gpt2, methods=(GradientClipping(),), clip_norm=0.0).problems()
    for config, words in (
        (replace(gpt2, model=replace(gpt2.model, logit_softcap=15.0)), "model.logit_softcap has no effect"),
        (replace(gpt2, data=replace(gpt2.data, eval_sequences=-1)), "data.eval_sequences is negative"),
        (replace(gpt2, optimizer=modern.optimizer), "optimizer muon needs --model.implementation modern"),
        (replace(modern, methods=(ALiBi(),)), "method alibi needs --model.implementation gpt2"),
        (replace(gpt2, methods=(GradientClipping(),)), "add --clip-norm 0"),
        (replace(gpt2, methods=(ALiBi(train_sequence_length_scaling=0.2),)), "64"),
    ):
        assert any(words in problem for problem in config.problems()), words


def test_a_recorded_config_from_before_gpt_was_a_benchmark_of_its_own_is_loaded():
    path = Path(__file__).parent / "old_config.json"  # of results/gpt_shakespeare, which an image does not hold
    old = read_config(find("gpt"), path)
    assert isinstance(old, GptRunConfig)
    new = configs.shakespeare_baseline()
    assert replace(old, benchmark=new.benchmark, name=new.name, notes=new.notes) == new


@pytest.mark.parametrize(("tokens", "rules"), [(10_485_760, []), (1_048_576, ["dataset-size"])])
def test_a_loss_on_fewer_tokens_of_fineweb_is_no_result(tokens, rules, tmp_path):
    config = FINEWEB.config("methods")
    assert isinstance(config, GptRunConfig)
    config = replace(config, data=replace(config.data, eval_tokens=tokens))
    plan = FINEWEB.plan(config, ProcessGroup(0, 8, 0, CPU), None)
    write_log(FINEWEB.spec, config, plan, tmp_path / "result_0.txt", "8xH100", SimulatedClock())
    report = check(tmp_path / "result_0.txt", FINEWEB.spec.ruleset)
    assert [finding.rule for finding in report.findings if finding.level == "error"] == rules
    assert not report.demonstration
