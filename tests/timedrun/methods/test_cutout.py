"""CutOut: squares set to 0."""

import pytest
import torch

from timedrun.methods import CutOut, cutout, stack


def holes(method: CutOut, step: int = 0, size: tuple[int, int] = (12, 16)) -> torch.Tensor:
    """Return True where an image of ones became 0: [64, H, W]."""
    speed = stack(method)
    speed.enter(step, 0.0)
    images, targets = speed.batch(torch.ones(64, 2, *size), torch.arange(64), 64)
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(targets, torch.arange(64))
    return images[:, 0] == 0


def test_squares_are_where_their_centres_say_and_are_clipped_at_the_border() -> None:
    images = torch.ones(2, 1, 6, 8).contiguous(memory_format=torch.channels_last)
    expected = torch.ones(2, 1, 6, 8)
    expected[0, :, 1:5, 2:6] = 0
    expected[1, :, 4:, :2] = 0
    cut = cutout(images, torch.tensor([[[3, 4]], [[6, 0]]]), 4)
    assert torch.equal(cut, expected) and torch.equal(images, torch.ones(2, 1, 6, 8))
    assert cut.is_contiguous(memory_format=torch.channels_last)
    expected[0, :, 0:2, 0:2] = 0
    assert torch.equal(cutout(images[:1], torch.tensor([[[3, 4], [0, 0]]]), 4), expected[:1])


def test_one_square_for_the_batch_or_one_for_each_image() -> None:
    whole, each = holes(CutOut()), holes(CutOut(per_sample=True))
    assert (whole == whole[0]).all() and whole[0].any()
    assert len(each.flatten(1).unique(dim=0)) > 30
    assert not torch.equal(whole[0], holes(CutOut(), step=1)[0])


def test_squares_have_half_the_shorter_side_and_uniform_centres() -> None:
    cut = torch.cat([holes(CutOut(per_sample=True), step) for step in range(40)])
    assert cut.any(2).sum(1).max() == 6 and cut.any(1).sum(1).max() == 6
    assert cut.any(2).sum(1).min() == 3  # the centre is always inside
    assert cut[:, 4:8, 6:10].float().mean() == pytest.approx(36 / 192, abs=0.02)
