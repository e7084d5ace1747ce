"""Random crops and flips: torchvision's distribution and edge cases, and their share of a stored image."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from image_classification import augmentation
from timedrun.methods.training.sampling import random_uniform


def test_random_flips_follow_the_draws_and_alternating_ones_are_half_of_the_images_and_then_the_other():
    drawn = np.array([0.0, 0.49, 0.5, 0.99])
    assert augmentation.flips("random", 1, 1, np.arange(4), drawn).tolist() == [True, True, False, False]
    assert not augmentation.flips("none", 1, 1, np.arange(4), drawn).any()
    samples, none = np.arange(4000), np.zeros(4000)
    first = augmentation.flips("alternating", 3, 1, samples, none)
    assert stats.binomtest(int(first.sum()), 4000).pvalue > 1e-3
    for epoch in (2, 3, 4):
        assert np.array_equal(augmentation.flips("alternating", 3, epoch, samples, none), first ^ (epoch in (2, 4)))
    assert 0.4 < (augmentation.flips("alternating", 4, 1, samples, none) != first).mean() < 0.6
    images = torch.randn(4000, 1, 2, 2)
    crops = torch.from_numpy(augmentation.crops_and_flips(samples, seed=3, epoch=2, padding=0, flip="alternating"))
    out = augmentation.crop_and_flip(images, crops, padding=0, flip="alternating", padding_mode="black")
    assert torch.equal(out, torch.where(torch.from_numpy(first)[:, None, None, None], images, images.flip(3)))


def _drawn(count: int, epoch: int = 1) -> npt.NDArray[np.float64]:
    return random_uniform(0, epoch, np.arange(count), stream="random_resized_crop", count=40).reshape(count, 10, 4)


@pytest.mark.parametrize(("height", "width"), [(300, 400), (500, 333), (90, 700), (24, 17)])
def test_boxes_follow_torchvisions_distribution(torchvision, height, width):
    from torchvision.transforms import RandomResizedCrop

    count = 3000
    ours = augmentation.random_resized_crop_boxes(np.full((count, 2), (height, width)), _drawn(count))
    image = torch.empty(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = np.array(
            [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)], dtype=np.int64
        )
    for ours_of, theirs_of in zip(_measures(ours), _measures(theirs), strict=True):
        assert stats.ks_2samp(ours_of, theirs_of).pvalue > 1e-3


def _measures(boxes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.float64]]:
    """Return area, ratio and the edges."""
    top, left, height, width = boxes.T
    return [height * width, width / height, top, left, top + height, left + width]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 1000))
@settings(max_examples=60)
def test_every_box_is_inside_its_image_and_a_function_of_its_own_draws(height, width, epoch):
    sizes, draws = np.array([[height, width], [7, 9], [height, width]]), _drawn(3, epoch)
    boxes = augmentation.random_resized_crop_boxes(sizes, draws)
    assert (boxes[:, 2:] >= 1).all() and (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()
    for row in range(3):
        assert np.array_equal(
            augmentation.random_resized_crop_boxes(sizes[row : row + 1], draws[row : row + 1])[0], boxes[row]
        )


@pytest.mark.parametrize(("height", "width"), [(1000, 10), (10, 1000), (37, 2000), (333, 7)])
def test_an_image_too_long_for_a_draw_gets_torchvisions_crop(torchvision, height, width):
    from torchvision.transforms import RandomResizedCrop

    # Whole areas: no try fits, in theirs by scale 1, in ours by draws of nearly 1.
    theirs = RandomResizedCrop.get_params(torch.empty(3, height, width), [1.0, 1.0], [3 / 4, 4 / 3])
    ours = augmentation.random_resized_crop_boxes(np.array([[height, width]]), np.full((1, 10, 4), 0.999))
    assert tuple(ours[0].tolist()) == tuple(theirs)


@given(st.data())
@settings(max_examples=60)
def test_scaled_boxes_cover_the_same_share_of_a_stored_image_to_half_a_pixel(data):
    original = np.array(data.draw(st.tuples(st.integers(1, 900), st.integers(1, 900))))
    stored = np.array(data.draw(st.tuples(st.integers(1, 900), st.integers(1, 900))))
    end = [data.draw(st.integers(1, int(side))) for side in original]
    begin = [data.draw(st.integers(0, side - 1)) for side in end]
    box = np.array([[*begin, end[0] - begin[0], end[1] - begin[1]]])
    top_left, sides = np.split(augmentation.scaled_boxes(box, original, stored)[0], 2)
    assert (sides >= 1).all() and (top_left >= 0).all()
    assert (top_left + sides <= stored).all()
    exact_begin, exact_end = np.array(begin) * stored / original, np.array(end) * stored / original
    assert (np.abs(top_left - exact_begin) <= 1).all()
    for axis in range(2):
        if exact_end[axis] - exact_begin[axis] >= 1:
            assert abs(top_left[axis] - exact_begin[axis]) <= 0.5
            assert abs(top_left[axis] + sides[axis] - exact_end[axis]) <= 0.5
    assert np.array_equal(augmentation.scaled_boxes(box, original, original), box)
