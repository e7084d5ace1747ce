"""RandAugment and AugMix: what is drawn for each image, and how chains are mixed."""

import numpy as np
import pytest
import torch
from torch import Tensor

from timedrun.methods import AugMix, Method, RandAugment
from timedrun.methods.augmix import chain_weights
from timedrun.methods.image_operations import operate
from timedrun.training.sampling import random_bits, random_uniform

IMAGES = torch.randint(256, (24, 3, 16, 20), generator=torch.Generator().manual_seed(0)).byte()
SAMPLES = np.arange(24) * 7


def augmented(method: Method, images: Tensor = IMAGES, samples: np.ndarray = SAMPLES, epoch: int = 1) -> Tensor:
    return method.hooks().augment(images, samples, epoch, 3)


@pytest.mark.parametrize("method", [RandAugment(), AugMix()])
def test_an_image_depends_on_its_sample_epoch_and_seed_and_not_on_its_batch(method: Method) -> None:
    before = IMAGES.clone()
    whole = augmented(method)
    assert torch.equal(IMAGES, before) and whole.dtype == torch.uint8 and whole.shape == IMAGES.shape
    order = np.arange(24)[::-1].copy()
    parts = [augmented(method, IMAGES[part.copy()], SAMPLES[part]) for part in np.array_split(order, 5)]
    assert torch.equal(torch.cat(parts).flip(0), whole)
    for other in (augmented(method, epoch=2), method.hooks().augment(IMAGES, SAMPLES, 1, 4)):
        assert (other != whole).flatten(1).any(1).sum() > 20
    channels_last = augmented(method, IMAGES.contiguous(memory_format=torch.channels_last))
    assert torch.equal(channels_last, whole)
    assert channels_last.is_contiguous(memory_format=torch.channels_last)


def test_randaugment_is_a_sequence_of_operations() -> None:
    draws = random_uniform(3, 1, SAMPLES, "randaugment", 6)
    expected = operate(operate(IMAGES, "safe", 4.0, draws[:, :3]), "safe", 4.0, draws[:, 3:])
    assert torch.equal(augmented(RandAugment(severity=4.0, operations="safe")), expected)


def test_augmix_is_the_weighted_sum_of_the_image_and_its_chains() -> None:
    draws = random_uniform(3, 1, SAMPLES, "augmix", 14).reshape(24, 2, 7)
    weights = chain_weights(2, 1.0, random_bits(3, 1, SAMPLES, "augmix_weights", 1))
    parts = [IMAGES]
    for chain in range(2):
        once = operate(IMAGES, "all", 3.0, draws[:, chain, 1:4])
        parts.append(operate(once, "all", 3.0, draws[:, chain, 4:7]))
    expected = sum(part.double() * torch.from_numpy(weights[:, [k], None, None]) for k, part in enumerate(parts))
    off = augmented(AugMix(width=2, depth=2)) - expected
    assert off.abs().max() <= 0.5 + 1e-4


def test_chains_have_one_to_three_operations() -> None:
    images, samples = torch.randint(256, (300, 3, 8, 8)).byte(), np.arange(300)
    drawn = random_uniform(3, 1, samples, "augmix", 10)
    chains = [images]
    for number in range(3):
        chains.append(operate(chains[-1], "all", 3.0, drawn[:, 1 + 3 * number : 4 + 3 * number]))
    mixed = augmented(AugMix(width=1, alpha=1e9), images, samples)  # half of the image, half of the only chain
    off = torch.stack([(2.0 * mixed - images - chain).abs().flatten(1).amax(1) for chain in chains[1:]])
    assert off.min(0).values.max() <= 1
    assert off.argmin(0).bincount().min() > 50


@pytest.mark.parametrize(("width", "alpha"), [(3, 1.0), (2, 0.3)])
def test_weights_are_of_a_beta_and_a_dirichlet_distribution(width: int, alpha: float) -> None:
    weights = chain_weights(width, alpha, random_bits(1, 1, np.arange(4000), "x", 1))
    assert weights.sum(1) == pytest.approx(1)
    mixed = 1 - weights[:, 0]
    assert mixed.mean() == pytest.approx(0.5, abs=0.02)
    assert mixed.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.08)
    shares = weights[:, 1:] / mixed[:, None]
    assert shares.mean(0) == pytest.approx(np.full(width, 1 / width), abs=0.03)
    assert shares.var(0) == pytest.approx(np.full(width, (width - 1) / width**2 / (width * alpha + 1)), rel=0.1)
