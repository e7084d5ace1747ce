"""The U-Net, its loss and its quality equal computations by hand, and images of any size pass."""

import numpy as np
import pytest
import torch

from image_segmentation.dice import dice_cross_entropy, mean_dice, overlaps
from image_segmentation.model import UNet
from tests.image_segmentation import plain_unet
from timedrun.methods import BlurPool


@pytest.mark.parametrize("size", [(8, 12), (7, 10)])
def test_the_network_and_its_loss_equal_a_computation_by_hand(size):
    torch.manual_seed(1)
    model = UNet(2, 3, (4, 6, 5)).double().eval()
    plain_unet.random_statistics(model)
    images, masks = torch.randn(2, 2, *size, dtype=torch.float64), torch.randint(3, (2, *size))
    with torch.no_grad():
        logits = model(images)
    wanted = plain_unet.logits(model, images.numpy())
    np.testing.assert_allclose(logits, wanted, rtol=1e-10, atol=1e-10)
    loss = float(dice_cross_entropy(logits, masks))
    assert loss == pytest.approx(plain_unet.loss(wanted, masks.numpy()), rel=1e-5)


def test_the_network_of_the_text_has_its_size_and_blurpool_finds_its_five_strided_levels_twice():
    model = UNet(4, 4, (32, 64, 128, 256, 512, 512))
    assert sum(parameter.numel() for parameter in model.parameters()) == 24_543_268
    _, change = BlurPool().model(model)
    assert change == "10 convolutions, 0 max-pools"  # and their shortcuts'


def test_the_loss_is_zero_for_sure_and_right_masks_and_falls_along_its_gradient():
    masks = torch.randint(3, (2, 6, 6))
    right = 50 * torch.nn.functional.one_hot(masks, 3).movedim(-1, 1).float()
    assert float(dice_cross_entropy(right, masks)) == pytest.approx(0, abs=1e-6)
    logits = torch.zeros(2, 3, 6, 6, requires_grad=True)
    loss = dice_cross_entropy(logits, masks)
    loss.backward()
    assert float(dice_cross_entropy(logits - logits.grad, masks)) < float(loss)


def test_quality_is_the_mean_over_cases_and_classes_and_a_class_in_neither_mask_counts_as_one():
    masks = torch.tensor([[[1, 1, 2]], [[0, 1, 2]], [[0, 0, 0]]])
    predicted = torch.tensor([[[1, 2, 2]], [[1, 1, 0]], [[0, 0, 1]]])
    counts = overlaps(predicted, masks, 3)
    assert counts.tolist() == [[[1, 3], [1, 3]], [[1, 3], [0, 1]], [[0, 1], [0, 0]]]
    cases = torch.stack([counts[:2].sum(0), counts[2]])  # the first two slices are one scan
    assert mean_dice(cases) == pytest.approx((2 * 2 / 6 + 2 * 1 / 4 + 0 + 1) / 4)
