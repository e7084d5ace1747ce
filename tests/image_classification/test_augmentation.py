"""Random crops: pixels, independence of ranks, and torchvision's distribution."""

from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from image_classification.augmentation import (
    Flip,
    crop_and_flip,
    crops_and_flips,
    flips,
    random_resized_crop_boxes,
    scaled_boxes,
    train_crops,
)
from timedrun.training.sampling import Indices, random_uniform


def pad_crop_flip(
    images: torch.Tensor, indices: Indices, *, seed: int, epoch: int, padding: int, flip: Flip
) -> torch.Tensor:
    drawn = torch.from_numpy(crops_and_flips(indices, seed=seed, epoch=epoch, padding=padding, flip=flip))
    return crop_and_flip(images, drawn, padding=padding, flip=flip, padding_mode="black")


def test_a_crop_is_a_window_of_the_padded_image_or_its_mirror() -> None:
    images = torch.arange(1, 2 * 3 * 4 * 4 + 1, dtype=torch.float32).view(2, 3, 4, 4)
    for epoch in range(20):
        out = pad_crop_flip(images, np.arange(2), seed=0, epoch=epoch, padding=1, flip="random")
        padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
        for sample in range(2):
            windows = [padded[sample, :, y : y + 4, x : x + 4] for y in range(3) for x in range(3)]
            windows += [window.flip(2) for window in windows]
            assert any(torch.equal(out[sample], window) for window in windows)


def test_every_offset_and_both_mirrors_occur_equally_often() -> None:
    images = torch.zeros(9000, 1, 3, 3)
    images[:, :, 1, 1] = 1
    images[:, :, 1, 2] = 2
    out = pad_crop_flip(images, np.arange(9000), seed=1, epoch=1, padding=1, flip="random")
    _, counts = np.unique(out.flatten(1).numpy(), axis=0, return_counts=True)
    assert len(counts) >= 12
    assert counts.sum() == 9000
    places = (out == 1).flatten(1).int().argmax(1)[(out == 1).flatten(1).any(1)]
    assert stats.chisquare(np.bincount(places.numpy(), minlength=9)).pvalue > 1e-4


def test_the_augmentation_of_a_sample_does_not_depend_on_its_batch() -> None:
    images = torch.randn(10, 3, 8, 8)
    whole = pad_crop_flip(images, np.arange(10), seed=3, epoch=2, padding=2, flip="random")
    part = pad_crop_flip(images[6:], np.arange(6, 10), seed=3, epoch=2, padding=2, flip="random")
    assert torch.equal(whole[6:], part)
    other = pad_crop_flip(images, np.arange(10), seed=3, epoch=3, padding=2, flip="random")
    assert not torch.equal(whole, other)


def test_alternating_flips_are_half_of_the_images_and_then_the_other_half() -> None:
    samples, none = np.arange(4000), np.zeros(4000)
    first = flips("alternating", 3, 1, samples, none)
    assert stats.binomtest(int(first.sum()), 4000).pvalue > 1e-3
    for epoch in (2, 3, 4):
        assert np.array_equal(flips("alternating", 3, epoch, samples, none), first ^ (epoch in (2, 4)))
    assert 0.4 < (flips("alternating", 4, 1, samples, none) != first).mean() < 0.6
    images = torch.randn(4000, 1, 2, 2)
    out = pad_crop_flip(images, samples, seed=3, epoch=2, padding=0, flip="alternating")
    assert torch.equal(out, torch.where(torch.from_numpy(first)[:, None, None, None], images, images.flip(3)))


def test_random_flips_follow_the_draws_and_none_mirrors_nothing() -> None:
    drawn = np.array([0.0, 0.49, 0.5, 0.99])
    assert flips("random", 1, 1, np.arange(4), drawn).tolist() == [True, True, False, False]
    assert not flips("none", 1, 1, np.arange(4), drawn).any()


def _drawn(count: int, epoch: int = 1) -> npt.NDArray[np.float64]:
    return random_uniform(0, epoch, np.arange(count), stream="random_resized_crop", count=40).reshape(count, 10, 4)


@pytest.mark.parametrize(("height", "width"), [(300, 400), (500, 333), (90, 700), (24, 17)])
def test_boxes_follow_torchvisions_distribution(torchvision: ModuleType, height: int, width: int) -> None:
    from torchvision.transforms import RandomResizedCrop

    count = 3000
    ours = random_resized_crop_boxes(np.full((count, 2), (height, width)), _drawn(count))
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


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_every_box_is_inside_its_image_and_a_function_of_its_own_draws(height: int, width: int, epoch: int) -> None:
    sizes, draws = np.array([[height, width], [7, 9], [height, width]]), _drawn(3, epoch)
    boxes = random_resized_crop_boxes(sizes, draws)
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()
    for row in range(3):
        assert np.array_equal(random_resized_crop_boxes(sizes[row : row + 1], draws[row : row + 1])[0], boxes[row])


@pytest.mark.parametrize(("height", "width"), [(1000, 10), (10, 1000), (37, 2000), (333, 7)])
def test_an_image_too_long_for_any_draw_gets_torchvisions_central_crop(
    torchvision: ModuleType, height: int, width: int
) -> None:
    from torchvision.transforms import RandomResizedCrop

    # Whole areas: no try fits, in theirs by scale 1, in ours by draws of nearly 1.
    theirs = RandomResizedCrop.get_params(torch.empty(3, height, width), [1.0, 1.0], [3 / 4, 4 / 3])
    ours = random_resized_crop_boxes(np.array([[height, width]]), np.full((1, 10, 4), 0.999))
    assert tuple(ours[0].tolist()) == tuple(theirs)


def test_boxes_are_those_of_the_formula_worked_by_hand() -> None:
    draws = np.full((1, 10, 4), 0.999)
    draws[0, :2] = [(0.999, 0.999, 0, 0), (0.5, 0.25, 0.5, 0.25)]  # 399 x 299 does not fit into 300 x 300, this does
    area, ratio = 300 * 300 * 0.54, (3 / 4) ** 0.5
    crop_height, crop_width = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
    expected = [(300 - crop_height + 1) // 2, (300 - crop_width + 1) // 4, crop_height, crop_width]
    assert random_resized_crop_boxes(np.array([[300, 300]]), draws).tolist() == [expected]


def test_training_crops_depend_on_seed_epoch_and_sample_alone_and_half_are_mirrored() -> None:
    sizes = np.random.default_rng(0).integers(200, 600, (4000, 2))
    boxes, flips = train_crops(3, 2, np.arange(4000), sizes, flip="random")
    some = np.array([77, 5, 3999, 77])
    again, mirrored = train_crops(3, 2, some, sizes[some], flip="random")
    assert np.array_equal(again, boxes[some])
    assert np.array_equal(mirrored, flips[some])
    assert stats.binomtest(int(flips.sum()), 4000).pvalue > 1e-3
    for seed, epoch in ((4, 2), (3, 3)):
        other, other_flips = train_crops(seed, epoch, np.arange(4000), sizes, flip="random")
        assert (other != boxes).any(axis=1).mean() > 0.9
        assert 0.4 < (other_flips != flips).mean() < 0.6


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_scaled_boxes_cover_the_same_share_of_a_stored_image_to_half_a_pixel(data: st.DataObject) -> None:
    original = np.array(data.draw(st.tuples(st.integers(1, 900), st.integers(1, 900))))
    stored = np.array(data.draw(st.tuples(st.integers(1, 900), st.integers(1, 900))))
    end = [data.draw(st.integers(1, int(side))) for side in original]
    begin = [data.draw(st.integers(0, side - 1)) for side in end]
    box = np.array([[*begin, end[0] - begin[0], end[1] - begin[1]]])
    top_left, sides = np.split(scaled_boxes(box, original, stored)[0], 2)
    assert (sides >= 1).all()
    assert (top_left >= 0).all()
    assert (top_left + sides <= stored).all()
    exact_begin, exact_end = np.array(begin) * stored / original, np.array(end) * stored / original
    assert (np.abs(top_left - exact_begin) <= 1).all()
    for axis in range(2):
        if exact_end[axis] - exact_begin[axis] >= 1:
            assert abs(top_left[axis] - exact_begin[axis]) <= 0.5
            assert abs(top_left[axis] + sides[axis] - exact_end[axis]) <= 0.5
    assert np.array_equal(scaled_boxes(box, original, original), box)
