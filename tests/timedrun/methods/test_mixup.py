"""MixUp: weights of inputs, targets and losses."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from timedrun.methods import LabelSmoothing, MixUp, mixup, stack
from timedrun.methods.method import Method
from timedrun.training.loss import binary_cross_entropy, cross_entropy

LABELS = torch.arange(64)


def mixed(*methods: Method, step: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return what the methods make of one-hot inputs of 64 samples, each of its own class."""
    speed = stack(*methods, seed=seed)
    speed.enter(step, 0.0)
    return speed.batch(torch.eye(64, dtype=torch.float64), LABELS, 64)


@pytest.mark.parametrize("loss", [cross_entropy, binary_cross_entropy])
def test_mixed_targets_equal_the_interpolated_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    logits, one_hot, partners = torch.randn(6, 5), torch.eye(5)[torch.tensor([0, 3, 1, 4, 2, 2])], torch.randperm(6)
    _, targets = mixup(torch.zeros(6, 1), one_hot, partners, 0.3)
    expected = 0.7 * loss(logits, one_hot) + 0.3 * loss(logits, one_hot[partners])
    torch.testing.assert_close(loss(logits, targets), expected)


def test_inputs_and_targets_are_mixed_alike_with_one_weight_and_a_permutation() -> None:
    inputs, targets = mixed(MixUp(alpha=1.0))
    torch.testing.assert_close(inputs.float(), targets)
    weight = float(1 - inputs.diagonal().min())
    assert 0 < weight < 0.5
    torch.testing.assert_close(inputs.sum(0), torch.ones(64, dtype=torch.float64))  # each is a partner once
    others = inputs - torch.diag(inputs.diagonal())
    assert torch.isclose(others[others > 0], torch.tensor(weight, dtype=torch.float64)).all()


def test_a_hard_partner_is_not_smoothed_as_in_the_published_recipes() -> None:
    smoothing = 0.1
    inputs, soft = mixed(LabelSmoothing(smoothing=smoothing), MixUp(alpha=1.0))
    _, hard = mixed(MixUp(alpha=1.0, hard_partner=True), LabelSmoothing(smoothing=smoothing))  # in the same order
    weight = float(1 - inputs.diagonal().min())
    y = torch.eye(64, dtype=torch.float64)
    partner = (inputs - (1 - weight) * y) / weight
    smooth = (1 - smoothing) * y + smoothing / 64
    torch.testing.assert_close(hard.double(), (1 - weight) * smooth + weight * partner, atol=1e-6, rtol=0)
    all_smooth = (1 - smoothing) * inputs + smoothing / 64
    torch.testing.assert_close(soft.double(), all_smooth, atol=1e-6, rtol=0)


def test_weights_have_the_mean_of_the_smaller_part_of_a_beta_distribution() -> None:
    weights = [float(1 - mixed(MixUp(), step=step)[0].diagonal().min()) for step in range(400)]
    assert sum(weights) / 400 == pytest.approx(0.101, abs=0.02)  # numerical integral for alpha 0.2
    assert len(set(weights)) > 390
