"""Tests of image_classification/centre_crop.py."""

import numpy as np
from PIL import Image

from image_classification.centre_crop import centre_windows
from image_classification.loaders.pillow import evaluation_image


def test_central_windows_are_those_of_the_reference() -> None:
    sizes = np.array([[300, 400], [401, 300], [256, 256], [1000, 257], [97, 333]])
    starts, shapes = centre_windows(sizes, 256, 224)
    for (height, width), start, shape in zip(sizes.tolist(), starts, shapes, strict=True):
        ramp = np.add.outer(np.arange(height) * 1000.0, np.arange(width)).astype(np.float32)
        image = Image.fromarray(ramp).resize((int(shape[1]), int(shape[0])), Image.Resampling.BILINEAR)
        top, left = start.tolist()
        cut = np.asarray(image.crop((left, top, left + 224, top + 224)))
        assert np.array_equal(cut, np.asarray(evaluation_image(Image.fromarray(ramp), 256, 224)))
