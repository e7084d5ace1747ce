"""Selective backprop: probabilities by rank, when it acts, and what it scores."""

import numpy as np
import pytest
import torch
from torch import Tensor

from timedrun.methods import SelectiveBackprop
from timedrun.methods.method import Position
from timedrun.methods.selective_backprop import keep_probabilities

SAMPLES = torch.arange(8.0).view(8, 1, 1, 1)


def own_values(inputs: Tensor, targets: Tensor) -> Tensor:
    return inputs[:, 0, 0, 0]


def test_probabilities_rise_with_the_rank_of_the_loss() -> None:
    ranks = (np.arange(4) + 0.5) / 4
    assert keep_probabilities(4, 0.5) == pytest.approx(ranks / ranks.sum())  # exponent 1 / 0.5 - 1 = 1
    assert keep_probabilities(4, 0.25) == pytest.approx(ranks**3 / (ranks**3).sum())


def test_high_losses_are_kept_more_often_and_each_sample_once() -> None:
    hooks, times = SelectiveBackprop(start=0.0, interrupt=0).hooks(), np.zeros(8)
    permuted = SAMPLES[torch.randperm(8, generator=torch.Generator().manual_seed(1))]
    for step in range(2000):
        inputs, targets = hooks.select(permuted, permuted.flatten(), own_values, Position(step, 0.0))
        assert torch.equal(inputs.flatten(), targets) and len(inputs.unique()) == 4
        times[targets.long().numpy()] += 1
    assert (np.diff(times) > 0).all()
    # Drawing 4 of 8 without replacement by these weights, in expectation over all orders (NumPy's documented rule).
    random, weights = np.random.RandomState(0), keep_probabilities(8, 0.5)
    expected = np.zeros(8)
    for _ in range(2000):
        expected[random.choice(8, 4, replace=False, p=weights)] += 1
    assert times == pytest.approx(expected, abs=130)


def test_it_acts_within_its_part_of_the_run_and_not_in_interrupted_steps() -> None:
    hooks = SelectiveBackprop(start=0.5, end=0.75, interrupt=2).hooks()
    kept = [len(hooks.select(SAMPLES, SAMPLES, own_values, Position(step, step / 16))[0]) for step in range(16)]
    assert kept == [8] * 8 + [4, 8, 4, 8] + [8] * 4
    assert hooks.effect() == "2 batches cut to 0.5 of their samples"


def test_images_are_scored_at_the_scale_asked_for() -> None:
    seen = []

    def losses(inputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(inputs.shape)
        return torch.arange(float(len(inputs)))

    hooks = SelectiveBackprop(start=0.0, scale=0.5, interrupt=0).hooks()
    inputs, _ = hooks.select(torch.zeros(4, 3, 8, 8), torch.zeros(4), losses, Position(0, 0.0))
    assert seen == [(4, 3, 4, 4)] and inputs.shape == (2, 3, 8, 8)
