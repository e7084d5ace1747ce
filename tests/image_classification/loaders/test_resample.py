"""Crops resized by matrix products, compared with Pillow pixel by pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from image_classification.loaders import raw
from image_classification.loaders.raw import resample

Pixels = NDArray[np.uint8]


def by_pillow(image: Pixels, box: tuple[int, int, int, int], size: int, flip: bool) -> Pixels:
    top, left, height, width = box
    crop = Image.fromarray(image).crop((left, top, left + width, top + height))
    made = np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR))
    return made[:, ::-1] if flip else made


def drawn(seed, count, height, width, *, black_and_white=False):
    """Noise, the hardest image to resize, with boxes and flips."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    if black_and_white:
        images = np.where(images > 127, 255, 0).astype(np.uint8)
    tall, wide = generator.integers(1, height + 1, count), generator.integers(1, width + 1, count)
    corners = generator.integers(0, [height - tall + 1, width - wide + 1]).T
    return images, np.column_stack([corners, tall, wide]), generator.random(count) < 0.5


def resampled(images, boxes, flips, size, dtype=None):
    made = resample(torch.from_numpy(images), torch.from_numpy(boxes), torch.from_numpy(flips), size, dtype=dtype)
    assert made.shape == (len(images), 3, size, size)
    assert made.dtype == torch.uint8
    return made.permute(0, 2, 3, 1).numpy()


def most_off(images: Pixels, boxes: NDArray[np.int64], flips: NDArray[np.bool_], made: Pixels) -> int:
    wanted = [
        by_pillow(image, tuple(box), made.shape[1], flip)
        for image, box, flip in zip(images, boxes.tolist(), flips, strict=True)
    ]
    return int(np.abs(np.stack(wanted).astype(int) - made).max())


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 70),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_every_crop_is_within_one_level_of_pillow(seed, height, width, size, black_and_white, dtype):
    images, boxes, flips = drawn(seed, 4, height, width, black_and_white=black_and_white)
    assert most_off(images, boxes, flips, resampled(images, boxes, flips, size, dtype)) <= 1


def test_working_in_slices_changes_nothing(monkeypatch):
    images, boxes, flips = drawn(6, 7, 40, 50)
    whole = resampled(images, boxes, flips, 23)
    monkeypatch.setattr(raw, "WORKING_BYTES", 1)
    assert (resampled(images, boxes, flips, 23) == whole).all()


@pytest.mark.gpu
def test_a_gpu_is_within_one_level_of_pillow_and_waits_for_nothing():
    images, boxes, flips = drawn(9, 64, 256, 341)
    there = [torch.from_numpy(values).cuda() for values in (images, boxes, flips)]
    for size in (224, 88):
        resample(there[0], there[1], there[2], size)
        torch.cuda.set_sync_debug_mode("error")
        try:
            made = resample(there[0], there[1], there[2], size)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert most_off(images, boxes, flips, made.permute(0, 2, 3, 1).cpu().numpy()) <= 1
