"""The U-Net, its loss and its quality equal computations by hand in float64, and images of any size pass."""

import numpy as np
import pytest
import torch

from image_segmentation.dice import dice_cross_entropy, mean_dice, overlaps
from image_segmentation.model import UNet
from timedrun.methods import BlurPool


def convolve(x, weight, stride=1):
    around, size = (weight.shape[2] - 1) // 2, weight.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (around, around), (around, around)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, size, (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", patches, weight)


def logits_by_hand(model, images):
    """The logits of `model` in evaluation mode, from its weights by their names."""
    w = {name: value.numpy() for name, value in model.state_dict().items()}

    def norm(x, at):
        mean, variance, scale, shift = (
            w[f"{at}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift

    def block(x, at, stride=1):
        out = norm(convolve(x, w[f"{at}.conv1.weight"], stride), f"{at}.norm1")
        out = norm(convolve(np.where(out > 0, out, 0.01 * out), w[f"{at}.conv2.weight"]), f"{at}.norm2")
        if f"{at}.shortcut.0.weight" in w:
            out = out + norm(convolve(x, w[f"{at}.shortcut.0.weight"], stride), f"{at}.shortcut.1")
        return np.where(out > 0, out, 0.01 * out)

    levels = [block(images, "first")]
    for number in range(len(model.down)):
        levels.append(block(levels[-1], f"down.{number}", 2))
    x = levels.pop()
    for number in range(len(model.up)):
        larger = np.einsum("nchw,copq->nohpwq", x, w[f"up.{number}.weight"])
        larger = (
            larger.reshape(*larger.shape[:2], 2 * x.shape[2], 2 * x.shape[3]) + w[f"up.{number}.bias"][:, None, None]
        )
        same = levels.pop()
        x = block(np.concatenate([larger[:, :, : same.shape[2], : same.shape[3]], same], axis=1), f"merge.{number}")
    return convolve(x, w["head.weight"]) + w["head.bias"][:, None, None]


def loss_by_hand(logits, masks):
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    pairs = [(shares[:, number], masks == number) for number in range(logits.shape[1])]
    dice = [1 - (2 * share[truth].sum() + 1e-5) / (share.sum() + truth.sum() + 1e-5) for share, truth in pairs]
    return np.mean(dice[1:]) - np.log(np.concatenate([share[truth] for share, truth in pairs])).mean()


@pytest.mark.parametrize("size", [(8, 12), (7, 10)])
def test_the_network_and_its_loss_equal_a_computation_by_hand(size):
    torch.manual_seed(1)
    model = UNet(2, 3, (4, 6, 5)).double().eval()
    for name, value in model.state_dict().items():
        if ".norm" in name or "shortcut.1" in name:
            value.copy_(torch.rand(value.shape) + 0.5)
    images, masks = torch.randn(2, 2, *size, dtype=torch.float64), torch.randint(3, (2, *size))
    with torch.no_grad():
        logits = model(images)
    wanted = logits_by_hand(model, images.numpy())
    np.testing.assert_allclose(logits, wanted, rtol=1e-10, atol=1e-10)
    assert float(dice_cross_entropy(logits, masks)) == pytest.approx(loss_by_hand(wanted, masks.numpy()), rel=1e-5)


def test_the_network_of_the_text_has_its_size_and_blurpool_finds_its_five_strided_levels_twice():
    model = UNet(4, 4, (32, 64, 128, 256, 512, 512))
    assert sum(parameter.numel() for parameter in model.parameters()) == 24_543_268
    assert BlurPool().model(model)[1] == "10 convolutions, 0 max-pools"  # and their shortcuts'


def test_quality_is_the_mean_over_cases_and_classes_and_a_class_in_neither_mask_counts_as_one():
    masks = torch.tensor([[[1, 1, 2]], [[0, 1, 2]], [[0, 0, 0]]])
    predicted = torch.tensor([[[1, 2, 2]], [[1, 1, 0]], [[0, 0, 1]]])
    counts = overlaps(predicted, masks, 3)
    assert counts.tolist() == [[[1, 3], [1, 3]], [[1, 3], [0, 1]], [[0, 1], [0, 0]]]
    cases = torch.stack([counts[:2].sum(0), counts[2]])  # the first two slices are one scan
    assert mean_dice(cases) == pytest.approx((2 * 2 / 6 + 2 * 1 / 4 + 0 + 1) / 4)
