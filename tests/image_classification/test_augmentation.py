"""Random crops: what they do to pixels, that ranks do not change them, and torchvision's distribution."""

from types import ModuleType

import numpy as np
import torch
from scipy import stats

from image_classification.augmentation import pad_crop_flip, random_resized_crop_box
from timedrun.order import random_uniform


def test_a_crop_is_a_window_of_the_padded_image_or_its_mirror() -> None:
    images = torch.arange(1, 2 * 3 * 4 * 4 + 1, dtype=torch.float32).view(2, 3, 4, 4)
    for epoch in range(20):
        out = pad_crop_flip(images, np.arange(2), seed=0, epoch=epoch, padding=1, flip=True)
        padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
        for sample in range(2):
            windows = [padded[sample, :, y : y + 4, x : x + 4] for y in range(3) for x in range(3)]
            windows += [window.flip(2) for window in windows]
            assert any(torch.equal(out[sample], window) for window in windows)


def test_every_offset_and_both_mirrors_occur_equally_often() -> None:
    images = torch.zeros(9000, 1, 3, 3)
    images[:, :, 1, 1] = 1
    images[:, :, 1, 2] = 2
    out = pad_crop_flip(images, np.arange(9000), seed=1, epoch=1, padding=1, flip=True)
    _, counts = np.unique(out.flatten(1).numpy(), axis=0, return_counts=True)
    assert len(counts) >= 12
    assert counts.sum() == 9000
    places = (out == 1).flatten(1).int().argmax(1)[(out == 1).flatten(1).any(1)]
    assert stats.chisquare(np.bincount(places.numpy(), minlength=9)).pvalue > 1e-4


def test_a_sample_is_augmented_alike_whatever_batch_it_is_in() -> None:
    images = torch.randn(10, 3, 8, 8)
    whole = pad_crop_flip(images, np.arange(10), seed=3, epoch=2, padding=2, flip=True)
    part = pad_crop_flip(images[6:], np.arange(6, 10), seed=3, epoch=2, padding=2, flip=True)
    assert torch.equal(whole[6:], part)
    other = pad_crop_flip(images, np.arange(10), seed=3, epoch=3, padding=2, flip=True)
    assert not torch.equal(whole, other)


def test_boxes_follow_torchvisions_distribution(torchvision: ModuleType) -> None:
    from torchvision.transforms.v2 import RandomResizedCrop

    height, width, count = 300, 400, 4000
    draws = random_uniform(0, 1, np.arange(count), stream="random_resized_crop", count=40).reshape(count, 10, 4)
    ours = np.array([random_resized_crop_box(height, width, draw) for draw in draws])
    torch.manual_seed(0)
    transform, image = RandomResizedCrop(10), torch.empty(3, height, width)
    sampled = [transform.make_params([image]) for _ in range(count)]
    theirs = np.array([(p["top"], p["left"], p["height"], p["width"]) for p in sampled])
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    for areas in (ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]):
        assert 0.07 < areas.min() / (height * width) < areas.max() / (height * width) <= 1.0
    assert stats.ks_2samp(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3]).pvalue > 1e-3


def test_an_image_too_long_for_any_draw_gets_the_central_crop() -> None:
    draws = np.full((10, 4), 0.999)
    top, left, height, width = random_resized_crop_box(1000, 10, draws)
    assert (left, width, height) == (0, 10, 13)
    assert top == (1000 - 13) // 2
