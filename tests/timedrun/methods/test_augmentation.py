"""RandAugment and AugMix: operations that are Pillow's and torchvision's, what is drawn and mixed."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from timedrun.methods import AugMix, Method, RandAugment
from timedrun.methods.augmix import chain_weights
from timedrun.methods.image_operations import ENHANCING, OPERATIONS, names_of, operate, strengths
from timedrun.training.sampling import random_bits, random_uniform


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Return noise, dark smooth noise, a gradient, one colour, and few pixels of two values."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (2, 3, 40, 52), generator=generator).byte()
    noise[1] = torch.nn.functional.avg_pool2d(noise[1].float(), 5, 1, 2).byte()
    gradient = torch.arange(52).mul(3).byte().expand(3, 40, 52)
    sparse = torch.full((3, 40, 52), 7).byte()
    sparse[:, 3, :9] = 200
    return torch.stack([*noise, gradient, torch.full((3, 40, 52), 90).byte(), sparse])


def by_pillow(name: str, image: Image.Image, strength: float) -> Image.Image:
    if name in ENHANCING:
        return getattr(ImageEnhance, name.capitalize())(image).enhance(strength)
    if name == "rotate":
        return image.rotate(strength, resample=Image.Resampling.BILINEAR)
    if name.startswith(("shear", "translate")):
        matrix = {
            "shear_x": (1, strength, 0, 0, 1, 0),
            "shear_y": (1, 0, 0, strength, 1, 0),
            "translate_x": (1, 0, strength, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, strength),
        }
        return image.transform(image.size, Image.Transform.AFFINE, matrix[name], resample=Image.Resampling.BILINEAR)
    strengths = () if name in ("autocontrast", "equalize") else (int(strength),)
    return getattr(ImageOps, name)(image, *strengths)


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_pillows(name, images):
    draws = np.random.RandomState(1).uniform(size=(len(images), 2))
    for severity in (2.0, 10.0):
        chosen = strengths(name, "all", severity, draws, (40, 52))
        made = OPERATIONS[name](images, torch.from_numpy(chosen).float())
        assert made.dtype == torch.uint8
        for number, image in enumerate(images):
            pillow = by_pillow(name, Image.fromarray(image.permute(1, 2, 0).numpy()), chosen[number].item())
            off = made[number].int() - torch.from_numpy(np.array(pillow)).permute(2, 0, 1).int()
            # On a border that is sampled exactly, the last digit of a coordinate decides whether it is outside.
            assert (off.abs() > 1).float().mean() <= (0.002 if name == "rotate" else 0), number
            exact = name in ("equalize", "posterize", "solarize", "color", "contrast", "brightness", "sharpness")
            assert not exact or not off.any(), number


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "posterize", "solarize", *ENHANCING])
def test_each_operation_on_values_is_torchvisions(torchvision, name, images):
    from torchvision.transforms.v2 import functional

    theirs = getattr(
        functional, {"color": "adjust_saturation"}.get(name, f"adjust_{name}" if name in ENHANCING else name)
    )
    strength = {"posterize": (3,), "solarize": (100,)}.get(name, (1.5,) if name in ENHANCING else ())
    made = OPERATIONS[name](images, torch.tensor([float(*strength or (0,))]).expand(len(images)))
    assert (made.int() - theirs(images, *strength).int()).abs().max() <= 2


def test_grayscale_images_change_as_pillows(images):
    gray = images[:2, :1]
    for name in OPERATIONS:
        strength = {"posterize": 2.0, "solarize": 99.0, "rotate": 9.0}.get(name, 0.3)
        made = OPERATIONS[name](gray, torch.full((2,), strength))
        pillow = by_pillow(name, Image.fromarray(gray[1, 0].numpy()), strength)
        assert (made[1, 0].int() - torch.from_numpy(np.array(pillow)).int()).abs().max() <= 1, name


def test_strengths_have_the_published_ranges():
    draws = np.random.RandomState(2).uniform(size=(20_000, 2))

    def bounds(name: str, severity: float = 9.0, chosen: str = "all") -> tuple[float, float]:
        values = strengths(name, chosen, severity, draws, (90, 120))
        return round(values.min().item(), 2), round(values.max().item(), 2)

    assert bounds("rotate") == (-26, 26)  # int of below 9 * 30 / 10
    assert bounds("posterize", 10) == (1, 4)
    assert bounds("solarize", 10) == (1, 254)
    assert bounds("shear_x") == bounds("shear_y") == (-0.27, 0.27)
    assert bounds("translate_x") == (-35, 35) and bounds("translate_y") == (-26, 26)
    assert bounds("contrast") == bounds("color") == bounds("sharpness") == (0.19, 9.0)
    assert bounds("brightness") == (0.19, 6.75)
    for name in ENHANCING:
        assert bounds(name, chosen="original") == (0.12, 1.72)
    above = strengths("color", "all", 9.0, draws, (90, 120)) > 1
    assert above.mean() == pytest.approx(0.5, abs=0.02)


def test_operations_are_drawn_alike_and_each_image_gets_its_own(images):
    for chosen, count in (("all", 13), ("safe", 9), ("original", 13)):
        names = names_of(chosen)
        assert len(names) == count
        draws = np.stack([(np.arange(count) + 0.5) / count, np.full(count, 0.7), np.full(count, 0.2)], axis=1)
        many = images[:1].expand(count, -1, -1, -1)
        made = operate(many, chosen, 5.0, draws)
        for number, name in enumerate(names):
            strength = strengths(name, chosen, 5.0, draws[:1, 1:], (40, 52))
            expected = OPERATIONS[name](images[:1], torch.from_numpy(strength).float())
            assert torch.equal(made[number], expected[0]), name


@pytest.mark.parametrize(
    "wrong", [torch.zeros(1, 3, 4, 4), torch.zeros(1, 2, 4, 4).byte(), torch.zeros(3, 4, 4).byte()]
)
def test_other_inputs_are_refused(wrong):
    with pytest.raises(ValueError, match="operations on images need"):
        operate(wrong, "all", 5.0, np.zeros((len(wrong), 3)))


IMAGES = torch.randint(256, (24, 3, 16, 20), generator=torch.Generator().manual_seed(0)).byte()
SAMPLES = np.arange(24) * 7


def augmented(method: Method, images: Tensor = IMAGES, samples: np.ndarray = SAMPLES, epoch: int = 1) -> Tensor:
    return method.hooks().augment(images, samples, epoch, 3)


@pytest.mark.parametrize("method", [RandAugment(), AugMix()])
def test_an_image_depends_on_its_sample_epoch_and_seed_and_not_on_its_batch(method):
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


def test_randaugment_is_a_sequence_of_operations_and_augmix_the_weighted_sum_of_the_image_and_its_chains():
    draws = random_uniform(3, 1, SAMPLES, "randaugment", 6)
    expected = operate(operate(IMAGES, "safe", 4.0, draws[:, :3]), "safe", 4.0, draws[:, 3:])
    assert torch.equal(augmented(RandAugment(severity=4.0, operations="safe")), expected)
    draws = random_uniform(3, 1, SAMPLES, "augmix", 14).reshape(24, 2, 7)
    weights = chain_weights(2, 1.0, random_bits(3, 1, SAMPLES, "augmix_weights", 1))
    parts = [IMAGES]
    for chain in range(2):
        once = operate(IMAGES, "all", 3.0, draws[:, chain, 1:4])
        parts.append(operate(once, "all", 3.0, draws[:, chain, 4:7]))
    expected = sum(part.double() * torch.from_numpy(weights[:, [k], None, None]) for k, part in enumerate(parts))
    off = augmented(AugMix(width=2, depth=2)) - expected
    assert off.abs().max() <= 0.5 + 1e-4


def test_chains_have_one_to_three_operations():
    images, samples = torch.randint(256, (300, 3, 8, 8)).byte(), np.arange(300)
    drawn = random_uniform(3, 1, samples, "augmix", 10)
    chains = [images]
    for number in range(3):
        chains.append(operate(chains[-1], "all", 3.0, drawn[:, 1 + 3 * number : 4 + 3 * number]))
    mixed = augmented(AugMix(width=1, alpha=1e9), images, samples)  # half of the image, half of the only chain
    off = torch.stack([(2.0 * mixed - images - chain).abs().flatten(1).amax(1) for chain in chains[1:]])
    assert off.min(0).values.max() <= 1
    assert off.argmin(0).bincount().min() > 50
