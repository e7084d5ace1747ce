"""MixUp, CutMix and label smoothing: weights of inputs, targets and losses; CutOut and ColOut: the pixels left."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from timedrun.methods import ColOut, CutMix, CutOut, LabelSmoothing, Method, MixUp, ProgressiveResizing, stack
from timedrun.methods.channels_last import is_channels_last
from timedrun.methods.cutmix import cutmix, random_box
from timedrun.methods.cutout import cutout
from timedrun.methods.label_smoothing import smoothed
from timedrun.methods.mixup import mixup
from timedrun.training.loss import binary_cross_entropy, cross_entropy

LABELS = torch.arange(64)


def mixed(*methods: Method, step: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return what the methods make of one-hot inputs of 64 samples, each of its own class."""
    speed = stack(*methods, seed=seed)
    speed.enter(step, 0.0)
    return speed.batch(torch.eye(64, dtype=torch.float64), LABELS, 64)


@pytest.mark.parametrize("loss", [cross_entropy, binary_cross_entropy])
def test_mixed_targets_equal_the_interpolated_loss(loss):
    logits, one_hot, partners = torch.randn(6, 5), torch.eye(5)[torch.tensor([0, 3, 1, 4, 2, 2])], torch.randperm(6)
    _, targets = mixup(torch.zeros(6, 1), one_hot, partners, 0.3)
    expected = 0.7 * loss(logits, one_hot) + 0.3 * loss(logits, one_hot[partners])
    torch.testing.assert_close(loss(logits, targets), expected)


def test_smoothed_targets_are_what_torch_calls_label_smoothing_and_mixed_with_the_uniform():
    logits, labels = torch.randn(6, 5), torch.randint(5, (6,))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2)
    torch.testing.assert_close(F.cross_entropy(logits, smoothed(labels, 0.2, 5)), expected)
    dense = torch.tensor([[0.3, 0.7], [1.0, 0.0]])
    torch.testing.assert_close(smoothed(dense, 0.1, 2), torch.tensor([[0.32, 0.68], [0.95, 0.05]]))
    assert dense[1, 0] == 1  # the caller's targets are not changed


def test_inputs_and_targets_are_mixed_alike_with_one_weight_and_a_permutation():
    weights = [float(1 - mixed(MixUp(), step=step)[0].diagonal().min()) for step in range(400)]
    assert sum(weights) / 400 == pytest.approx(0.101, abs=0.02)  # numerical integral for alpha 0.2
    assert len(set(weights)) > 390
    inputs, targets = mixed(MixUp(alpha=1.0))
    torch.testing.assert_close(inputs.float(), targets)
    weight = float(1 - inputs.diagonal().min())
    assert 0 < weight < 0.5
    torch.testing.assert_close(inputs.sum(0), torch.ones(64, dtype=torch.float64))  # each is a partner once
    others = inputs - torch.diag(inputs.diagonal())
    assert torch.isclose(others[others > 0], torch.tensor(weight, dtype=torch.float64)).all()


def test_a_hard_partner_is_not_smoothed_as_in_the_published_recipes():
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


def test_the_box_is_the_partners_and_targets_follow_its_area():
    images = torch.arange(3.0)[:, None, None, None].expand(3, 2, 4, 5)
    mixed, targets = cutmix(images, torch.eye(3), torch.tensor([1, 2, 0]), (1, 3, 2, 5))
    expected = torch.zeros(4, 5)
    expected[1:3, 2:5] = 1
    assert torch.equal(mixed[0, 0], expected) and torch.equal(mixed[0, 1], expected)
    torch.testing.assert_close(targets[0], torch.tensor([14 / 20, 6 / 20, 0]))
    torch.testing.assert_close(targets[2], torch.tensor([6 / 20, 0, 14 / 20]))
    for seed, box in ((1, (3, 7, 7, 15)), (11, (7, 10, 12, 20))):  # around (5, 11), and (9, 16) at the border
        assert random_box(np.random.RandomState(seed), 10, 20, 0.17) == box
    random, inside = np.random.RandomState(1), np.zeros((8, 12))
    for _ in range(4000):
        top, bottom, left, right = random_box(random, 8, 12, 0.25)  # 4 x 6 unless clipped
        assert 2 <= bottom - top <= 4 and 3 <= right - left <= 6
        inside[top:bottom, left:right] += 1
    assert inside[3:5, 4:8] / 4000 == pytest.approx(24 / 96, abs=0.04)


def test_each_step_draws_another_box_and_targets_sum_to_1():
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


def holes(method: CutOut, step: int = 0, size: tuple[int, int] = (12, 16)) -> torch.Tensor:
    """Return True where an image of ones became 0: [64, H, W]."""
    speed = stack(method)
    speed.enter(step, 0.0)
    images, targets = speed.batch(torch.ones(64, 2, *size), torch.arange(64), 64)
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(targets, torch.arange(64))
    return images[:, 0] == 0


def test_squares_are_where_their_centres_say_and_are_clipped_at_the_border():
    images = torch.ones(2, 1, 6, 8).contiguous(memory_format=torch.channels_last)
    expected = torch.ones(2, 1, 6, 8)
    expected[0, :, 1:5, 2:6] = 0
    expected[1, :, 4:, :2] = 0
    cut = cutout(images, torch.tensor([[[3, 4]], [[6, 0]]]), 4)
    assert torch.equal(cut, expected) and torch.equal(images, torch.ones(2, 1, 6, 8))
    assert cut.is_contiguous(memory_format=torch.channels_last)
    expected[0, :, 0:2, 0:2] = 0
    assert torch.equal(cutout(images[:1], torch.tensor([[[3, 4], [0, 0]]]), 4), expected[:1])


def test_one_square_for_the_batch_or_one_for_each_image_of_half_the_shorter_side_and_uniform_centres():
    whole, each = holes(CutOut()), holes(CutOut(per_sample=True))
    assert (whole == whole[0]).all() and whole[0].any()
    assert len(each.flatten(1).unique(dim=0)) > 30
    assert not torch.equal(whole[0], holes(CutOut(), step=1)[0])
    cut = torch.cat([holes(CutOut(per_sample=True), step) for step in range(40)])
    assert cut.any(2).sum(1).max() == 6 and cut.any(1).sum(1).max() == 6
    assert cut.any(2).sum(1).min() == 3  # the centre is always inside
    assert cut[:, 4:8, 6:10].float().mean() == pytest.approx(36 / 192, abs=0.02)


def test_rows_and_columns_stay_in_order_and_are_those_of_every_image():
    images = torch.randn(3, 2, 20, 40)
    for given in (images, images.contiguous(memory_format=torch.channels_last)):
        speed = stack(ColOut(), seed=1)
        speed.enter(5, 0.0)
        smaller, targets = speed.batch(given, torch.arange(3), 3)
        assert smaller.shape == (3, 2, 17, 34) and torch.equal(targets, torch.arange(3))
        rows = [row for row in range(20) if torch.isin(smaller[0, 0], images[0, 0, row]).any()]
        columns = [column for column in range(40) if torch.isin(smaller[0, 0], images[0, 0, :, column]).any()]
        assert torch.equal(smaller, images[:, :, rows][:, :, :, columns])
        assert is_channels_last(smaller) == is_channels_last(given) == (given is not images)


@pytest.mark.parametrize(("progress", "size"), [(0.0, 98), (1.0, 167)])
def test_images_are_resized_first_whatever_the_order_given(progress, size):
    """The published sizes of the Hot recipe at 176 px: 104 to 98 and 176 to 167."""
    resizing = ProgressiveResizing(start=0.6, delay=0.2, finetune=0.2)
    speed = stack(ColOut(p_row=0.05, p_col=0.05), resizing)
    speed.enter(0, progress)
    images = torch.arange(176.0).expand(1, 1, 176, 176)
    smaller, _ = speed.batch(images, torch.arange(1), 1)
    assert smaller.shape[2:] == (size, size)
    assert speed.methods[0] is resizing
