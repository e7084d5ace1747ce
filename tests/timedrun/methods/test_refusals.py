"""Models and inputs that a method cannot change: refused with what it looks for, and left as they are."""

import copy

import pytest
import torch
from torch import Tensor, nn

from timedrun.methods import (
    ALiBi,
    BlurPool,
    ColOut,
    CutMix,
    Factorize,
    Float8,
    GhostBatchNorm,
    LabelSmoothing,
    LayerFreezing,
    LogBias,
    LowPrecisionGroupNorm,
    LowPrecisionLayerNorm,
    Method,
    MixUp,
    NoEffect,
    ProgressiveResizing,
    SequenceLengthWarmup,
    SqueezeExcite,
    WeightStandardization,
    Whitening,
    stack,
)

WARM_UP = SequenceLengthWarmup(steps=14_000, pacing="composer_2022")


@pytest.mark.parametrize(
    ("method", "layers", "words"),
    [
        (BlurPool(), [nn.Conv2d(16, 16, 3), nn.Linear(4, 2)], "blurpool found no strided convolution"),
        (BlurPool(), [BlurPool().model(nn.Sequential(nn.Conv2d(16, 8, 3, 2), nn.MaxPool2d(2)))[0]], "blurpool found"),
        (Factorize(), [nn.Linear(10, 10)], "256 channels or 256 features"),
        (Float8(layers="nowhere"), [nn.Linear(16, 16)], "no linear layer named 'nowhere'"),
        (GhostBatchNorm(), [nn.BatchNorm2d(3, momentum=None)], "no batch norm with a momentum"),
        (LayerFreezing(), [nn.Linear(2, 2)], "layer_freezing"),
        (LogBias(), [nn.Linear(2, 3), nn.Linear(3, 2, bias=False)], "log_bias"),
        (LogBias(), [nn.Linear(2, 3), nn.Conv2d(3, 1, 1)], "log_bias"),
        (LogBias(), [nn.Linear(2, 3), nn.LayerNorm(3)], "log_bias"),
        (LowPrecisionGroupNorm(), [nn.Linear(2, 2)], "found no"),
        (LowPrecisionLayerNorm(), [nn.Linear(2, 2)], "found no"),
        (SqueezeExcite(), [nn.Conv2d(3, 64, 3)], "128 or more"),
        (WeightStandardization(ignore_last=1), [nn.Conv2d(3, 3, 1)], "weight_standardization"),
        (Whitening(), [nn.Linear(2, 2)], "found none"),
        (Whitening(), [nn.Conv2d(3, 8, 3)], "set 54 output"),
    ],
)
def test_a_model_without_what_a_method_changes_is_refused_unchanged(
    method: Method, layers: list[nn.Module], words: str
) -> None:
    model = nn.Sequential(*layers)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NoEffect, match=words):
        method.model(model)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("method", "inputs", "words"),
    [
        (ALiBi(), torch.zeros(2, 6), "alibi"),
        (ALiBi(), torch.zeros(2, 3, 8), "alibi"),
        (ColOut(p_row=0.9), torch.zeros(1, 1, 5, 5), "colout leaves 0 x 4 px of images of 5 x 5"),
        (CutMix(), torch.zeros(2, 7), r"cutmix needs images .*got \[2, 7\]"),
        (MixUp(), torch.zeros(2, 3, 4, 4).byte(), r"mixup needs inputs of floating point, got torch\.uint8"),
        (ProgressiveResizing(), torch.zeros(2, 5), r"got \[2, 5\]"),
        (ProgressiveResizing(), torch.zeros(1, 1, 3, 3), "rounds to 0 px"),
        (WARM_UP, torch.zeros(2, 3, 8, 8), r"got \[2, 3, 8, 8\]"),
    ],
)
def test_inputs_of_another_kind_are_refused(method: Method, inputs: Tensor, words: str) -> None:
    speed = stack(method)
    speed.enter(0, 0.0)
    with pytest.raises(ValueError, match=words):
        speed.batch(inputs, torch.zeros(len(inputs), dtype=torch.int64), 30)


@pytest.mark.parametrize(
    ("method", "inputs"),
    [
        (ColOut(p_row=0.0, p_col=0.0), torch.zeros(1, 1, 5, 5)),
        (LabelSmoothing(smoothing=0.0), torch.zeros(1, 2)),
        (WARM_UP, torch.zeros(2, 8)),  # no longer than its minimum
    ],
)
def test_a_setting_that_changes_no_batch_hands_it_on_and_has_no_effect(method: Method, inputs: Tensor) -> None:
    speed, targets = stack(method), torch.zeros(len(inputs), dtype=torch.int64)
    speed.enter(0, 0.0)
    assert all(a is b for a, b in zip(speed.batch(inputs, targets, 3), (inputs, targets), strict=True))
    assert speed.report == [f"{method.name}: nothing yet"]
    with pytest.raises(NoEffect, match=method.name):
        speed.verify()
