"""CutMix: boxes, and targets by their area."""

import numpy as np
import pytest
import torch

from timedrun.methods import CutMix, cutmix, stack
from timedrun.methods.cutmix import clipped_box, random_box


def test_the_box_is_the_partners_and_targets_follow_its_area() -> None:
    images = torch.arange(3.0)[:, None, None, None].expand(3, 2, 4, 5)
    mixed, targets = cutmix(images, torch.eye(3), torch.tensor([1, 2, 0]), (1, 3, 2, 5))
    expected = torch.zeros(4, 5)
    expected[1:3, 2:5] = 1
    assert torch.equal(mixed[0, 0], expected) and torch.equal(mixed[0, 1], expected)
    torch.testing.assert_close(targets[0], torch.tensor([14 / 20, 6 / 20, 0]))
    torch.testing.assert_close(targets[2], torch.tensor([6 / 20, 0, 14 / 20]))


def test_boxes_are_clipped_at_the_border() -> None:
    assert clipped_box(10, 20, (4, 6), (5, 9)) == (3, 7, 6, 12)
    assert clipped_box(10, 20, (4, 6), (0, 19)) == (0, 2, 16, 20)


def test_boxes_have_the_sides_of_their_area_and_uniform_centres() -> None:
    random, inside = np.random.RandomState(1), np.zeros((8, 12))
    for _ in range(4000):
        top, bottom, left, right = random_box(random, 8, 12, 0.25)  # 4 x 6 unless clipped
        assert 2 <= bottom - top <= 4 and 3 <= right - left <= 6
        inside[top:bottom, left:right] += 1
    assert inside[3:5, 4:8] / 4000 == pytest.approx(24 / 96, abs=0.04)


def test_each_step_draws_another_box_and_targets_sum_to_1() -> None:
    speed, shares = stack(CutMix(), seed=1), set()
    images = torch.arange(16.0)[:, None, None, None].expand(16, 1, 32, 32)
    for step in range(20):
        speed.enter(step, 0.0)
        mixed, targets = speed.batch(images, torch.arange(16), 16)
        torch.testing.assert_close(targets.sum(1), torch.ones(16))
        kept = (mixed == images).float().mean((1, 2, 3))
        torch.testing.assert_close(targets.diagonal(), kept)  # also of a sample that is its own partner
        shares.add(float(kept.min()))
    assert len(shares) > 15
    assert speed.report == ["cutmix: 20 batches with boxes of other images"]
