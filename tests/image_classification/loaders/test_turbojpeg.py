"""JPEG decoding at a smaller scale: crops of the reference, and files that simplejpeg does not decode."""

import numpy as np
import pytest
from PIL import Image

from image_classification.augmentation import train_crops
from image_classification.loaders.turbojpeg import divisor_of
from tests.image_classification.small_image_data import loaded, pixels
from tests.image_classification.small_stores import JPEG, encoded, make_store, rotated, smooth

simplejpeg = pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")


def both(folder, count, size, *, train):
    """The images of this loader and of the reference."""
    options = {"eval_resize": 72, "eval_size": size if not train else 16, "train": train, "seed": 0}
    return (pixels(loaded(name, folder, [range(count)], size, **options)[0]) for name in ("turbojpeg", "pillow"))


def test_divided_training_crops_are_the_references_to_half_a_pixel_of_the_result(tmp_path):
    # The levels of a ramp are positions, so a mean difference is a shift of the crop.
    height, width = 397, 503
    ramp = np.zeros((height, width, 3), dtype=np.uint8)
    ramp[:, :, 0] = np.linspace(0, 255, width).round()
    ramp[:, :, 1] = np.linspace(0, 255, height).round()[:, None]
    files = {f"train/ant/{n:02d}.jpg": encoded(Image.fromarray(ramp), quality=98, subsampling=0) for n in range(40)}
    size = 32
    boxes, _ = train_crops(0, 1, np.arange(40), np.full((40, 2), (height, width)), flip="random")
    divisors = [divisor_of(min(box[2:]), size) for box in boxes.tolist()]
    assert {2, 4, 8} <= set(divisors)
    make_store(tmp_path, JPEG, files)
    ours, theirs = both(tmp_path, 40, size, train=True)
    for image, reference, box, divisor in zip(ours, theirs, boxes.tolist(), divisors, strict=True):
        for channel, side in ((0, width), (1, height)):
            moved = abs((image - reference)[:, :, channel].mean()) * side / 255  # pixels of the original
            assert moved <= divisor / 2 + 0.5  # edges lie at multiples of the divisor; 0.5: levels are whole
            assert divisor / 2 <= min(box[2:]) / size / 2


def test_images_of_other_kinds_match_the_reference(tmp_path):
    image, small = smooth(300, 260), smooth(90, 113)
    whole = encoded(image)
    scan = whole.index(b"\xff\xda")
    odd = whole[:scan] + b"\x00\x00" + whole[scan:]  # rubbish before a marker: libjpeg warns and goes on
    with pytest.raises(ValueError):
        simplejpeg.decode_jpeg(odd, "RGB")
    files = {
        "train/ant/0.png": encoded(image, "PNG"),
        "train/ant/1.png": encoded(image, "PNG", "P"),
        "train/ant/2.png": encoded(image, "PNG", "RGBA"),
        "train/ant/3.jpg": encoded(image, mode="CMYK"),
        "train/ant/4.jpg": encoded(image, "WEBP"),  # as named, as not
        "train/ant/5.bmp": encoded(image, "BMP"),
        "train/ant/6.jpg": odd,
        "train/ant/70.jpg": encoded(small, mode="L"),
        "train/ant/71.jpg": encoded(small, progressive=True),
        "train/ant/72.jpg": encoded(small, subsampling=0),
        "train/ant/73.jpg": encoded(small, restart_marker_rows=2),
        "train/ant/8.jpg": rotated(small),  # not turned, as by the reference
    }
    make_store(tmp_path, JPEG, files)
    for train, size, count in ((True, 31, 7), (True, 64, 12), (False, 64, 12)):  # at 31 plain JPEG is decoded smaller
        ours, theirs = both(tmp_path, count, size, train=train)
        difference = np.abs(ours - theirs).max((1, 2, 3))
        assert (difference[:6] <= 1).all() and (difference[6:] <= 2).all(), (train, size)
