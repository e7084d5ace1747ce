"""ColOut: which rows and columns stay, and the order with progressive resizing."""

import numpy as np
import pytest
import torch
from torch import nn

from timedrun.methods import ColOut, ProgressiveResizing, stack
from timedrun.methods.colout import colout, kept


def test_rows_and_columns_stay_in_order_and_are_those_of_every_image() -> None:
    images = torch.randn(3, 2, 20, 40)
    for given in (images, images.contiguous(memory_format=torch.channels_last)):
        speed = stack(ColOut(), seed=1)
        speed.enter(5, 0.0)
        smaller, targets = speed.batch(given, torch.arange(3), 3)
        assert smaller.shape == (3, 2, 17, 34) and torch.equal(targets, torch.arange(3))
        rows = [row for row in range(20) if torch.isin(smaller[0, 0], images[0, 0, row]).any()]
        columns = [column for column in range(40) if torch.isin(smaller[0, 0], images[0, 0, :, column]).any()]
        assert torch.equal(smaller, images[:, :, rows][:, :, :, columns])
        for memory_format in (torch.contiguous_format, torch.channels_last):
            assert smaller.is_contiguous(memory_format=memory_format) == given.is_contiguous(
                memory_format=memory_format
            )


def test_every_line_stays_equally_often_in_another_draw_of_each_step() -> None:
    random = np.random.RandomState(0)
    count = torch.zeros(20)
    for _ in range(3000):
        lines = kept(20, 0.15, random)
        assert len(lines) == 17 and (lines.diff() > 0).all()
        count[lines] += 1
    assert count / 3000 == pytest.approx(0.85, abs=0.03)


@pytest.mark.parametrize(("progress", "size"), [(0.0, 98), (1.0, 167)])
def test_images_are_resized_first_whatever_the_order_given(progress: float, size: int) -> None:
    """The published sizes of the Hot recipe at 176 px: 104 to 98 and 176 to 167."""
    resizing = ProgressiveResizing(start=0.6, delay=0.2, finetune=0.2)
    speed = stack(ColOut(p_row=0.05, p_col=0.05), resizing)
    speed.enter(0, progress)
    images = torch.arange(176.0).expand(1, 1, 176, 176)
    smaller, _ = speed.batch(images, torch.arange(1), 1)
    assert smaller.shape[2:] == (size, size)
    assert speed.methods[0] is resizing


def test_a_model_of_one_image_size_is_refused() -> None:
    class PatchEmbedding(nn.Module):
        img_size, strict_img_size = (224, 224), True

    with pytest.raises(ValueError, match="colout trains on images of other sizes, but PatchEmbedding"):
        ColOut().model(PatchEmbedding())


def test_colout_selects_rows_and_columns() -> None:
    images = torch.arange(12.0).reshape(1, 1, 3, 4)
    assert colout(images, torch.tensor([0, 2]), torch.tensor([1, 3])).tolist() == [[[[1, 3], [9, 11]]]]
