"""The published recipes, number for number, and their ranges of budgets."""

from dataclasses import fields

import pytest

from timedrun.recipes import RECIPES, budget_problem

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
        "stochastic_depth": {"kind": "sample", "rate": 0.1, "distribution": "linear"},
        "randaugment": {"severity": 10, "depth": 1, "operations": "all"},
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
def test_methods_and_numbers_are_the_published_ones(name: str) -> None:
    recipe = RECIPES[name]
    given = {m.name: {field.name: getattr(m, field.name) for field in fields(m)} for m in recipe.methods}
    assert given == METHODS[name]
    optimizer, schedule = recipe.optimizer, recipe.schedule
    assert (optimizer.kind, optimizer.nesterov, optimizer.decay_norms_and_biases) == ("decoupled_sgd", False, True)
    assert (optimizer.peak_lr, optimizer.momentum, optimizer.weight_decay) == (2.048, 0.875, DECAY[name])
    assert (schedule.kind, schedule.epochs, schedule.warmup_epochs, schedule.scale_warmup) == ("cosine", 90, 8, False)
    assert not budget_problem(name, schedule.epochs_scaled)
    assert (recipe.train_size, recipe.eval_resize, recipe.eval_size, recipe.global_batch) == (176, 232, 224, 2048)
    assert (recipe.loss, recipe.initialisation) == ("binary_cross_entropy", "kaiming_bn_uniform")


def test_a_budget_out_of_range_is_refused_with_the_range() -> None:
    assert not budget_problem("mild", 66)
    assert budget_problem("mild", 67) == (
        "recipe mild is meant for 9 to 66 epochs, not for 67; recipes for this budget: medium (67 to 234 epochs)"
    )
    assert "hot (235 epochs or more)" in budget_problem("medium", 235) and not budget_problem("hot", 10_000)
    assert budget_problem("mild", 8).endswith("no recipe is meant for this budget")
