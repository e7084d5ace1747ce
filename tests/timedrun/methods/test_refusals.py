"""Settings out of range, models and inputs that a method cannot change: refused by name, and left as they are."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

from timedrun import methods
from timedrun.methods import REGISTRY, BlurPool, LogBias, NoEffect, ProgressiveResizing, stack

NAN, INF = float("nan"), float("inf")
WRONG: dict[str, dict[str, list[Any]]] = {
    "alibi": {"max_sequence_length": [-1], "train_sequence_length_scaling": [0.0, 0.3, 1.5, -0.25]},
    "augmix": {"severity": [0.0, 10.1, NAN], "depth": [-1], "operations": ["most"], "width": [0], "alpha": [0.0, INF]},
    "colout": {"p_row": [-0.1, 1.0, NAN], "p_col": [-0.1, 1.0, NAN]},
    "cutmix": {"alpha": [0]},
    "cutout": {"num_holes": [0], "length": [0.0, 1.1, NAN]},
    "ema": {"half_life": [0.0, NAN], "update_interval": [0]},
    "factorize": {"latent_channels": [0], "latent_features": [1.5], "min_channels": [0], "min_features": [0]},
    "ghost_batch_norm": {"ghost_batch": [1]},
    "gradient_clipping": {"threshold": [0.0, NAN], "by": ["length"]},
    "gyro_dropout": {"p": [0.0, 1.0], "tau": [3, 0]},
    "label_smoothing": {"smoothing": [-0.1, 1.1, NAN]},
    "layer_freezing": {"start": [-0.1, 1.0], "level": [0.0, 1.1]},
    "mixup": {"alpha": [0.0, -1.0, INF, NAN]},
    "progressive_resizing": {
        "start": [0.0, 1.1],
        "delay": [-0.1, 0.9],
        "finetune": [1.5],
        "increment": [0],
        "interpolation": ["loadr"],
        "where": ["loadr"],
    },
    "randaugment": {"severity": [0.0, 10.1, NAN], "depth": [-1, 0], "operations": ["most"]},
    "sam": {"rho": [0.0], "epsilon": [-1.0], "interval": [0]},
    "selective_backprop": {"keep": [1.0], "start": [0.9], "end": [1.5], "scale": [0.0], "interrupt": [1]},
    "sequence_length_warmup": {
        "steps": ["many"],
        "duration": [0.0, 1.5],
        "min_length": [0, 1024],
        "step_size": [0],
        "pacing": ["cosine"],
    },
    "squeeze_excite": {"latent_channels": [0, 2.5], "min_channels": [0]},
    "stochastic_depth": {"rate": [0.0, 1.0], "kind": ["layer"], "distribution": ["cubic"]},
    "swa": {"start": [-0.1, 0.98], "end": [1.0], "interval": [0.0]},
    "weight_standardization": {"ignore_last": [-1]},
    "whitening": {"eps": [0.0], "bias_end": [-0.1, 1.1]},
}
REQUIRED = {"sequence_length_warmup": {"steps": 14_000}}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_out_of_its_range_is_refused_by_name(name):
    for field, values in WRONG[name].items():
        for value in values:
            words = rf"^{name}\.{field} must be .+, not {re.escape(repr(value))}$"
            with pytest.raises(ValueError, match=words):
                REGISTRY[name](**REQUIRED.get(name, {}) | {field: value})


@pytest.mark.parametrize("values", [{"step_size": 2000}, {"steps": 300, "pacing": "composer_2022"}, {"steps": 3}])
def test_a_warm_up_too_short_for_its_increments_is_refused(values):
    with pytest.raises(ValueError, match="too few for an increment, or for each of them"):
        methods.SequenceLengthWarmup(**{"steps": 14_000, **values})


WARM_UP = methods.SequenceLengthWarmup(steps=14_000, pacing="composer_2022")


@pytest.mark.parametrize(
    ("method", "layers", "words"),
    [
        (BlurPool(), [nn.Conv2d(16, 16, 3), nn.Linear(4, 2)], "blurpool found no strided convolution"),
        (BlurPool(), [BlurPool().model(nn.Sequential(nn.Conv2d(16, 8, 3, 2), nn.MaxPool2d(2)))[0]], "blurpool found"),
        (methods.Factorize(), [nn.Linear(10, 10)], "256 channels or 256 features"),
        (methods.Float8(layers="nowhere"), [nn.Linear(16, 16)], "no linear layer named 'nowhere'"),
        (methods.GhostBatchNorm(), [nn.BatchNorm2d(3, momentum=None)], "no batch norm with a momentum"),
        (methods.LayerFreezing(), [nn.Linear(2, 2)], "layer_freezing"),
        (LogBias(), [nn.Linear(2, 3), nn.Linear(3, 2, bias=False)], "log_bias"),
        (LogBias(), [nn.Linear(2, 3), nn.Conv2d(3, 1, 1)], "log_bias"),
        (LogBias(), [nn.Linear(2, 3), nn.LayerNorm(3)], "log_bias"),
        (methods.LowPrecisionGroupNorm(), [nn.Linear(2, 2)], "found no"),
        (methods.LowPrecisionLayerNorm(), [nn.Linear(2, 2)], "found no"),
        (methods.SqueezeExcite(), [nn.Conv2d(3, 64, 3)], "128 or more"),
        (methods.WeightStandardization(ignore_last=3), [nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)], "before the last 3"),
        (methods.Whitening(), [nn.Linear(2, 2)], "found none"),
        (methods.Whitening(), [nn.Conv2d(3, 8, 3)], "set 54 output"),
    ],
)
def test_a_model_without_what_a_method_changes_is_refused_unchanged(method, layers, words):
    model = nn.Sequential(*layers)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NoEffect, match=words):
        method.model(model)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("method", "inputs", "words"),
    [
        (methods.ALiBi(), torch.zeros(2, 6), "alibi"),
        (methods.ALiBi(), torch.zeros(2, 3, 8), "alibi"),
        (methods.ColOut(p_row=0.9), torch.zeros(1, 1, 5, 5), "colout leaves 0 x 4 px of images of 5 x 5"),
        (methods.CutMix(), torch.zeros(2, 7), r"cutmix needs images .*got \[2, 7\]"),
        (methods.MixUp(), torch.zeros(2, 3, 4, 4).byte(), r"mixup needs inputs of floating point, got torch\.uint8"),
        (ProgressiveResizing(), torch.zeros(2, 5), r"got \[2, 5\]"),
        (ProgressiveResizing(), torch.zeros(1, 1, 3, 3), "rounds to 0 px"),
        (WARM_UP, torch.zeros(2, 3, 8, 8), r"got \[2, 3, 8, 8\]"),
    ],
)
def test_inputs_of_another_kind_are_refused(method, inputs, words):
    speed = stack(method)
    speed.enter(0, 0.0)
    with pytest.raises(ValueError, match=words):
        speed.batch(inputs, torch.zeros(len(inputs), dtype=torch.int64), 30)


@pytest.mark.parametrize(
    ("method", "inputs", "targets"),
    [
        (methods.ColOut(p_row=0.0, p_col=0.0), torch.zeros(1, 1, 5, 5), torch.zeros(1)),
        (methods.LabelSmoothing(smoothing=0.0), torch.zeros(1, 2), torch.zeros(1)),
        (WARM_UP, torch.zeros(2, 8), torch.zeros(2, 8)),  # no longer than its minimum
    ],
)
def test_a_setting_that_changes_no_batch_has_no_effect(method, inputs, targets):
    speed = stack(method)
    speed.enter(0, 0.0)
    assert all(a is b for a, b in zip(speed.batch(inputs, targets, 3), (inputs, targets), strict=True))
    assert speed.report == [f"{method.name}: nothing yet"]
    with pytest.raises(NoEffect, match=method.name):
        speed.verify()
