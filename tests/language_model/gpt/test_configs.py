"""The configs: MosaicML's and nanoGPT's numbers, that all can be stored and read, and what the methods do of them."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from language_model.gpt import configs
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import preflight
from language_model.gpt.tokens import TokenStore
from timedrun.methods import ALiBi, SequenceLengthWarmup
from timedrun.training.batch_plan import BatchPlan

ALL = [
    function
    for name, function in vars(configs).items()
    if inspect.isfunction(function) and function.__module__ == configs.__name__
]


@pytest.mark.parametrize("function", ALL)
def test_every_config_bears_its_functions_name_and_lasts_as_long_as_its_schedule(
    function: Callable[[], GptRunConfig],
) -> None:
    config = function()
    assert config.name == function.__name__
    assert config.notes
    assert config.total_samples >= config.schedule.steps * config.global_batch
    assert config.max_samples or config.total_samples == config.schedule.steps * config.global_batch
    assert 0 < config.evaluation.first <= config.total_samples
    assert config.evaluation.every % config.global_batch == 0


def test_there_are_three_of_openwebtext_and_three_of_shakespeare() -> None:
    assert [function.__name__ for function in ALL] == [
        "gpt_125m_baseline",
        "gpt_125m_methods",
        "gpt_125m_modern",
        "gpt_shakespeare_nanogpt",
        "gpt_shakespeare_baseline",
        "gpt_shakespeare_modern",
    ]


def test_the_baseline_sees_734_billion_tokens_at_mosaicmls_rates() -> None:
    config = configs.gpt_125m_baseline()
    assert config.total_samples * config.model.context == 7_340_032_000
    assert math.exp(config.evaluation.target) == pytest.approx(24.11, abs=0.005)
    optimizer = config.optimizer
    assert (optimizer.kind, optimizer.peak_lr, optimizer.momentum, optimizer.beta2) == ("adamw", 6e-4, 0.9, 0.999)
    assert (optimizer.epsilon, optimizer.weight_decay, config.clip_norm) == (1e-8, 0.0, 1.0)
    assert config.schedule.factor(70) == pytest.approx(0.5)
    assert config.schedule.factor(140) == 1 and config.schedule.factor(14_000) == pytest.approx(0)
    assert [BatchPlan.of(config.global_batch, config.micro_batch, ranks).local for ranks in (1, 8)] == [512, 64]


def test_the_methods_config_is_the_baseline_and_two_methods() -> None:
    baseline, methods = configs.gpt_125m_baseline(), configs.gpt_125m_methods()
    assert [method.name for method in methods.methods] == ["alibi", "sequence_length_warmup"]
    warmup = methods.methods[1]
    assert isinstance(warmup, SequenceLengthWarmup)
    assert warmup.steps == methods.schedule.steps
    # As the notes say: at 256 tokens, all there are after ALiBi, the warm-up is over.
    assert warmup.length(1_055 / 14_000) < 256 <= warmup.length(1_056 / 14_000)
    for field in ("model", "data", "schedule", "optimizer", "evaluation", "global_batch", "clip_norm"):
        assert getattr(methods, field) == getattr(baseline, field)


def test_shakespeare_has_nanogpts_settings_for_a_cpu() -> None:
    config = configs.gpt_shakespeare_nanogpt()
    model, optimizer, schedule = config.model, config.optimizer, config.schedule
    assert (model.layers, model.hidden, model.heads, model.context, model.dropout) == (4, 128, 4, 64, 0.0)
    assert (config.global_batch, schedule.steps, schedule.warmup_steps) == (12, 2_000, 100)
    assert (optimizer.peak_lr, optimizer.momentum, optimizer.beta2, optimizer.weight_decay) == (1e-3, 0.9, 0.99, 0.1)
    assert optimizer.peak_lr * schedule.factor(2_000) == pytest.approx(1e-4)
    baseline = configs.gpt_shakespeare_baseline()
    assert baseline.total_samples == 2_000 * 12
    assert replace(baseline.optimizer, peak_lr=1e-3) == optimizer
    assert (baseline.model, baseline.data, baseline.global_batch) == (config.model, config.data, config.global_batch)


def test_the_modern_one_has_the_same_target_in_no_more_steps() -> None:
    baseline, modern = configs.gpt_shakespeare_baseline(), configs.gpt_shakespeare_modern()
    assert modern.evaluation.target == baseline.evaluation.target
    assert modern.total_samples <= baseline.total_samples
    assert modern.data == baseline.data


def test_settings_that_do_not_go_together_or_do_nothing_are_named() -> None:
    gpt2, modern = configs.gpt_shakespeare_baseline(), configs.gpt_shakespeare_modern()
    assert not any(function().problems() for function in ALL)
    for config, words in (
        (replace(gpt2, model=replace(gpt2.model, logit_softcap=15.0)), "model.logit_softcap would change nothing"),
        (replace(modern, model=replace(modern.model, attention="eager")), "model.attention would change nothing"),
        (replace(gpt2, optimizer=modern.optimizer), "optimizer muon is for a modern model"),
        (replace(modern, methods=(ALiBi(),)), "alibi is surgery on transformers' GPT-2"),
        (replace(gpt2, methods=(ALiBi(train_sequence_length_scaling=0.2),)), "64"),
    ):
        assert any(words in problem for problem in config.problems()), words


def test_a_store_of_another_vocabulary_is_refused(store: TokenStore) -> None:
    """A model of many tokens on a text of few characters would reach any target of the large one at once."""
    config = configs.gpt_shakespeare_baseline()
    config = replace(config, model=replace(config.model, vocabulary=50_257, context=8))
    assert any("the model 50,257" in problem for problem in preflight(config, store.folder, 1))
