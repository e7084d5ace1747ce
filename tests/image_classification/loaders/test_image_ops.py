"""In-place operations on single images."""

import numpy as np
import pytest

from image_classification.loaders.image_ops import mirror_into


@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 8), (224, 224), (3, 32_767), (97, 113)])
def test_mirroring_in_pieces_is_mirroring(height: int, width: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    target = np.zeros_like(image)
    mirror_into(target, image)
    assert (target == image[:, ::-1]).all()
