"""Reference loader: torchvision's pixels."""

import numpy as np
import pytest
from PIL import Image

from image_classification.augmentation import train_crops
from tests.image_classification.small_image_data import loaded, pixels
from tests.image_classification.small_stores import FOLDER, indexed, photographs


@pytest.mark.parametrize(("train", "size"), [(True, 24), (False, 32), (False, 33), (False, 40)])
def test_images_are_torchvisions_resized_crop_of_their_box_or_its_central_crop(tmp_path, torchvision, train, size):
    from torchvision.transforms import functional, v2

    folder = indexed(tmp_path, photographs(30, largest=90))
    options = {"store": FOLDER, "eval_resize": 40, "eval_size": size, "train": train, "seed": 5}
    (batch,) = loaded("pillow", folder, [range(30)], size, epoch=3 if train else 0, **options)
    central = v2.Compose([v2.Resize(40), v2.CenterCrop(size)])
    for sample, path in enumerate(sorted((folder / "train").rglob("*.jpg"))):
        image = Image.open(path)
        boxes, flips = train_crops(5, 3, np.array([sample]), np.array([(image.height, image.width)]), flip="random")
        crop = functional.resized_crop(image, *boxes[0].tolist(), [size, size])
        expected = (functional.hflip(crop) if flips[0] else crop) if train else central(image)
        assert np.array_equal(pixels(batch)[sample], np.asarray(expected))
