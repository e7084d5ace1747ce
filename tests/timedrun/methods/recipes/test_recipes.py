"""The published recipes, number for number, and recipes on models of torchvision, timm and transformers."""

import copy
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.timedrun.methods.small_transformers import small_transformer
from timedrun.methods import ALiBi, SequenceLengthWarmup
from timedrun.methods.recipes import LANGUAGE_RECIPES, PLAIN_LOOP, RECIPES, Training, budget_problem, recipe
from timedrun.runner.config import OptimizerConfig

COMMON = {
    "log_bias": {},
    "channels_last": {},
    "ema": {"half_life": 100, "update_interval": 20},
    "blurpool": {"replace_convs": True, "replace_maxpools": True, "blur_first": True, "min_channels": 16},
}
RESIZING = {"start": 0.5, "delay": 0.4, "finetune": 0.2, "increment": 4, "interpolation": "nearest", "where": "batch"}
SAM = {"rho": 0.5, "epsilon": 1e-12, "interval": 10}
METHODS = {
    "mild": {**COMMON, "label_smoothing": {"smoothing": 0.08}, "progressive_resizing": RESIZING},
    "medium": {
        **COMMON,
        "label_smoothing": {"smoothing": 0.1},
        "mixup": {"alpha": 0.2, "hard_partner": True},
        "progressive_resizing": RESIZING,
        "sam": SAM,
    },
    "hot": {
        **COMMON,
        "stochastic_depth": {"kind": "sample", "rate": 0.1, "distribution": "linear", "divided": False},
        "randaugment": {"severity": 10, "depth": 1, "operations": "all", "spread": 0, "probability": 1},
        "label_smoothing": {"smoothing": 0.13},
        "mixup": {"alpha": 0.25, "hard_partner": True},
        "progressive_resizing": {**RESIZING, "start": 0.6, "delay": 0.2},
        "colout": {"p_row": 0.05, "p_col": 0.05},
        "sam": {**SAM, "interval": 5},
    },
}
"""Of MosaicML's files of 2022."""
DECAY = {"mild": 5e-4, "medium": 5e-4, "hot": 3e-4}


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_numbers_are_the_published_ones(name):
    recipe = RECIPES[name]
    given = {m.name: {field.name: getattr(m, field.name) for field in fields(m)} for m in recipe.methods}
    assert given == METHODS[name]
    optimizer, schedule = recipe.optimizer, recipe.schedule
    assert (optimizer.kind, optimizer.nesterov, optimizer.decay_norms_and_biases) == ("decoupled_sgd", False, True)
    assert (optimizer.peak_lr, optimizer.momentum, optimizer.weight_decay) == (2.048, 0.875, DECAY[name])
    assert (schedule.kind, schedule.epochs, schedule.warmup_epochs, schedule.scale_warmup) == ("cosine", 90, 8, False)
    assert not budget_problem(name, schedule.epochs_scaled)
    assert not budget_problem(name, recipe.last_epochs or 10_000)
    assert (recipe.train_size, recipe.eval_resize, recipe.eval_size, recipe.global_batch) == (176, 232, 224, 2048)
    assert (recipe.loss, recipe.initialisation) == ("binary_cross_entropy", "kaiming_bn_uniform")


def trained(parts: Training, steps: int, size: int = 32) -> list[float]:
    """Return the losses of a plain loop over one batch."""
    model, optimizer, schedule, speed, loss_function = parts
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.factor(step / steps * schedule.epochs))
    images, labels = torch.randn(4, 3, size, size), torch.arange(4)
    losses = []
    for step in range(steps):
        speed.before_step(model, step, step / steps)
        inputs, targets = speed.batch(images, labels, 10)

        def compute(reduced: bool) -> torch.Tensor:
            loss = loss_function(model(inputs), targets)  # noqa: B023
            loss.backward()
            return loss.detach()

        losses.append(speed.backward(compute, model).item())
        speed.gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        speed.after_step(model)
        rate.step()
    return losses


def test_hot_trains_resnets_whose_loop_augments(torchvision):
    with pytest.raises(ValueError, match=r"randaugment acts on `augment`.*\(without=...\), or add the call"):
        recipe("hot", nn.Linear(1, 1), epochs=300)
    timm = pytest.importorskip("timm")
    for model in (torchvision.models.resnet18(num_classes=10), timm.create_model("test_resnet", num_classes=10)):
        parts = recipe("hot", model, epochs=300, batch=4, places=(*PLAIN_LOOP, "augment"))
        assert parts.model is model
        parts.methods.augment(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), np.arange(4), 1)
        trained(parts, 6)
        done = [line for line in parts.methods.report if not line.endswith("nothing yet")]
        assert len(done) == len(RECIPES["hot"].methods) - 1  # an average begins after 20 steps


def test_a_vision_transformer_is_refused_with_every_method_that_does_not_fit_and_the_way_on():
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_vit", num_classes=10, dynamic_img_size=False)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"(?s)blurpool: .*_resizing: .*without=\('blurpool', 'prog") as error:
        recipe("mild", model, epochs=30)
    assert "VisionTransformer, which was not changed" in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    adamw = OptimizerConfig(kind="adamw", peak_lr=1e-3, weight_decay=0.05)
    parts = recipe("mild", model, epochs=30, optimizer=adamw, without=("blurpool", "progressive_resizing"))
    assert isinstance(parts.optimizer, torch.optim.AdamW) and parts.optimizer.param_groups[0]["lr"] == 1e-3
    assert trained(parts, 3, size=160)[-1] > 0


@pytest.mark.parametrize(("batch", "rate", "decay"), [(0, 2.048, 5e-4), (256, 0.256, 5e-4 / 8)])
def test_only_rate_and_decay_follow_the_batch(torchvision, batch, rate, decay):
    own, new = (torchvision.models.resnet18() for _ in range(2))
    before = own.conv1.weight.clone()
    parts = recipe("mild", own, epochs=30, batch=batch)
    assert torch.equal(own.conv1.weight, before)  # own weights are kept unless new ones are wanted
    recipe("mild", new, epochs=30, initialize=True)
    assert new.bn1.weight.min() >= 0 and new.bn1.weight.std() > 0.2
    assert torch.equal(new.fc.bias, torch.full((1000,), -6.907755374908447))
    group = parts.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (rate, decay)
    coupled = recipe("baseline_nvidia", torchvision.models.resnet18(), epochs=50, batch=batch).optimizer
    assert coupled.param_groups[0]["weight_decay"] == RECIPES["baseline_nvidia"].optimizer.weight_decay
    assert {*parts.methods.methods} == {*RECIPES["mild"].methods}
    assert (parts.schedule.epochs_scaled, parts.schedule.warmup_epochs_scaled) == (30, 8)


def gpt(**settings: Any) -> Any:
    shape = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": None, "eos_token_id": None}
    return small_transformer("GPT2LMHeadModel", vocab_size=60, **shape | settings)


def test_settings_of_language_models_are_the_published_ones_and_adams_rate_follows_the_root_of_the_batch():
    bert, gpt_recipe = LANGUAGE_RECIPES["bert"].optimizer, LANGUAGE_RECIPES["gpt"].optimizer
    assert (bert.kind, bert.peak_lr, bert.momentum, bert.beta2) == ("decoupled_adamw", 1e-4, 0.9, 0.98)
    assert (bert.epsilon, bert.weight_decay, LANGUAGE_RECIPES["bert"].global_batch) == (1e-6, 1e-5, 448)
    assert (gpt_recipe.kind, gpt_recipe.peak_lr, LANGUAGE_RECIPES["gpt"].global_batch) == ("adamw", 6e-4, 512)
    for batch, rate in ((0, 6e-4), (128, 3e-4)):
        parts = recipe("gpt", gpt(), steps=1400, batch=batch)
        assert parts.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert (parts.schedule.factor(14), parts.schedule.factor(1400)) == (1.0, 0.0)
    assert parts.methods.methods == (ALiBi(), SequenceLengthWarmup(steps=1400, max_length=64, pacing="composer_2022"))


def test_the_recipe_gpt_trains_a_gpt2_on_shorter_sequences():
    torch.manual_seed(0)
    steps, adam = 24, OptimizerConfig(kind="adamw", peak_lr=1e-2)
    model, optimizer, schedule, speed, loss_of = recipe("gpt", gpt(), steps=steps, optimizer=adam)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)
    tokens, losses = torch.randint(60, (2, 64)), []
    for step in range(steps):
        speed.before_step(model, step, step / steps)
        losses.append(loss_of(model(**speed.batch_dict({"input_ids": tokens, "labels": tokens}))))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        speed.after_step(model)
        rate.step()
    speed.verify()
    assert [line.partition(": ")[0] for line in speed.report] == ["alibi", "sequence_length_warmup"]
    assert "24 batches cut to 0.25" in speed.report[0] and "cut to 8..8 tokens" in speed.report[1]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("mild", {"epochs": 67}, "for 9 to 66 epochs, not for 67; recipes for this budget: medium (67 to 234 epochs)"),
        ("medium", {"epochs": 235}, "hot (235 epochs or more)"),
        ("mild", {"epochs": 8}, "no recipe is meant for this budget"),
        ("mild", {"epochs": 30, "without": ("sam",)}, "has no sam to leave out; it has log_bias, blurpool"),
        ("gtp", {"steps": 99}, "no recipe 'gtp'. Did you mean gpt? Recipes: mild, medium, hot, resnet101_2021, "),
        ("gpt", {"epochs": 9}, "recipe gpt takes steps=..., neither epochs nor initialize"),
        ("mild", {"steps": 99}, "recipe mild takes epochs=..., not steps"),
        ("bert", {"steps": 99}, "recipe bert is meant for transformers' BertForMaskedLM, RobertaForMaskedLM, Distil"),
        ("gpt", {"steps": 9}, "too few for an increment"),
        ("gpt", {"steps": 99, "without": ("ema",)}, "recipe gpt has no ema to leave out; it has alibi, sequence_"),
        ("gpt", {"steps": 99, "places": ("before_step",)}, "add the call to the loop"),
    ],
)
def test_what_cannot_be_done_is_refused(name, given, words):
    model = gpt()
    with pytest.raises(ValueError, match=re.escape(words)):
        recipe(name, model, **given)
    assert model.transformer.wpe.weight.any()
