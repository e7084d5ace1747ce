"""RandAugment, TrivialAugment and AugMix, operations of Pillow, timm and torchvision; what mixes and what removes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from timedrun.methods import AugMix, ColOut, LabelSmoothing, ProgressiveResizing, RandAugment, stack
from timedrun.methods.augmix import chain_weights
from timedrun.methods.channels_last import is_channels_last
from timedrun.methods.cutmix import CutMix, cutmix, random_box
from timedrun.methods.cutout import CutOut, cutout
from timedrun.methods.image_operations import ENHANCING, OPERATIONS, names_of, operate, strengths
from timedrun.methods.label_smoothing import smoothed
from timedrun.methods.method import Method, Position
from timedrun.methods.mixup import MixUp
from timedrun.methods.random_erasing import RandomErasing, erase, erased_boxes
from timedrun.methods.training.sampling import random_bits, random_uniform
from timedrun.methods.trivial_augment import TrivialAugment


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


@pytest.mark.parametrize("name", names_of("all"))
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


def test_grayscale_images_change_as_pillows(images):
    gray = images[:2, :1]
    for name in names_of("all"):
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
    assert bounds("posterize", 10) == (1, 4) and bounds("solarize", 10) == (1, 254)
    assert bounds("shear_x") == bounds("shear_y") == (-0.27, 0.27)
    assert bounds("translate_x") == (-35, 35) and bounds("translate_y") == (-26, 26)
    assert bounds("contrast") == bounds("color") == bounds("sharpness") == (0.19, 9.0)
    assert bounds("brightness") == (0.19, 6.75)
    for name in ENHANCING:
        assert bounds(name, chosen="original") == (0.12, 1.72)
    above = strengths("color", "all", 9.0, draws, (90, 120)) > 1
    assert above.mean() == pytest.approx(0.5, abs=0.02)


def close(made: Tensor, expected: Image.Image) -> bool:
    off = made[0].int() - torch.from_numpy(np.array(expected)).permute(2, 0, 1).int()
    return (off.abs() > 1).float().mean().item() <= 0.004


def test_trivial_augment_has_torchvisions_operations_and_levels(torchvision, images):
    from torchvision.transforms import InterpolationMode, autoaugment

    image, ours = Image.fromarray(images[1].permute(1, 2, 0).numpy()), iter(sorted(names_of("wide")))
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    for (theirs, (magnitudes, _)), name in zip(
        sorted(space.items(), key=lambda item: item[0].lower()), ours, strict=True
    ):
        for level in range(0, 31, 3):
            strength = strengths(name, "wide", 10, np.array([[(level + 0.5) / 31, 0.2]]), (40, 52))
            magnitude = (-1 if "translate" in name else 1) * magnitudes.expand(31)[level].item()
            expected = autoaugment._apply_op(image, theirs, magnitude, InterpolationMode.BILINEAR, None)
            assert close(OPERATIONS[name](images[1:2], torch.from_numpy(strength).float()), expected), (name, level)


def test_randaugment_has_timms_operations_levels_and_chances(torchvision, images, monkeypatch):
    augment = pytest.importorskip("timm.data.auto_augment")
    image, size = Image.fromarray(images[1].permute(1, 2, 0).numpy()), (40, 52)
    options = {"resample": Image.Resampling.BILINEAR, "fillcolor": (0, 0, 0)}
    transforms = sorted(augment._RAND_INCREASING_TRANSFORMS, key=lambda name: name.removesuffix("Increasing"))
    for theirs, name in zip(transforms, sorted(names_of("timm")), strict=True):
        for severity, up in ((0.0, 0.2), (3.3, 0.7), (7.0, 0.2), (9.9, 0.7)):
            monkeypatch.setattr(augment.random, "random", lambda up=up: up)
            level = augment.LEVEL_TO_ARG[theirs]
            expected = augment.NAME_TO_OP[theirs](image, *(level(severity, {}) if level else ()), **options)
            strength = torch.from_numpy(strengths(name, "timm", severity, np.array([[0.5, up]]), size, 0.5)).float()
            assert close(OPERATIONS[name](images[1:2], strength), expected), (name, severity)
    levels = np.abs(strengths("rotate", "timm", 7.0, np.random.RandomState(0).rand(20_000, 2), size, 0.5))
    assert (levels.mean(), levels.std()) == pytest.approx((21, 1.5), abs=0.05)
    rare, many = RandAugment(operations="timm", probability=0.25), images[:1, :, :8, :8].expand(4000, -1, -1, -1)
    unchanged = (augmented(rare, many, np.arange(4000)) == many).flatten(1).all(1).float().mean()
    assert unchanged == pytest.approx(0.75**2, abs=0.06)  # a few operations leave an image as it is


def test_operations_are_drawn_alike_and_each_image_gets_its_own(images):
    for chosen, count in (("all", 13), ("safe", 9), ("original", 13), ("timm", 15), ("wide", 14)):
        names = names_of(chosen)
        assert len(names) == count
        draws = np.stack([(np.arange(count) + 0.5) / count, np.full(count, 0.7), np.full(count, 0.2)], axis=1)
        many = images[:1].expand(count, -1, -1, -1)
        made = operate(many, chosen, 5.0, draws)
        for number, name in enumerate(names):
            strength = strengths(name, chosen, 5.0, draws[:1, 1:], (40, 52))
            expected = OPERATIONS[name](images[:1], torch.from_numpy(strength).float())
            assert torch.equal(made[number], expected[0]), name
    with pytest.raises(ValueError, match="operations on images need"):
        operate(many.float(), "all", 5.0, draws)


IMAGES = torch.randint(256, (24, 3, 16, 20), generator=torch.Generator().manual_seed(0)).byte()
SAMPLES = np.arange(24) * 7


def augmented(method: Method, images: Tensor = IMAGES, samples: np.ndarray = SAMPLES, epoch: int = 1) -> Tensor:
    return method.hooks().augment(images, samples, epoch, 3)


@pytest.mark.parametrize(
    "method", [RandAugment(), RandAugment(operations="timm", spread=2, probability=0.9), TrivialAugment(), AugMix()]
)
def test_an_image_depends_on_its_sample_epoch_and_seed_and_not_on_its_batch(method):
    before = IMAGES.clone()
    whole = augmented(method)
    assert torch.equal(IMAGES, before) and whole.dtype == torch.uint8 and whole.shape == IMAGES.shape
    order = np.arange(24)[::-1].copy()
    parts = [augmented(method, IMAGES[part.copy()], SAMPLES[part]) for part in np.array_split(order, 5)]
    assert torch.equal(torch.cat(parts).flip(0), whole)
    for other in (augmented(method, epoch=2), method.hooks().augment(IMAGES, SAMPLES, 1, 4)):
        assert (other != whole).flatten(1).any(1).sum() > 15
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


LABELS = torch.arange(64)


def mixed(*methods: Method, step: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return what the methods make of one-hot inputs of 64 samples, each of its own class."""
    speed = stack(*methods, seed=seed)
    speed.enter(step, 0.0)
    return speed.batch(torch.eye(64, dtype=torch.float64), LABELS, 64)


def test_smoothed_targets_are_what_torch_calls_label_smoothing_and_mixed_with_the_uniform():
    logits, labels = torch.randn(6, 5), torch.randint(5, (6,))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2)
    torch.testing.assert_close(F.cross_entropy(logits, smoothed(labels, 0.2, 5)), expected)
    dense = torch.tensor([[0.3, 0.7], [1.0, 0.0]])
    torch.testing.assert_close(smoothed(dense, 0.1, 2), torch.tensor([[0.32, 0.68], [0.95, 0.05]]))
    assert dense[1, 0] == 1  # the caller's targets are not changed


def test_inputs_and_targets_are_mixed_alike_with_one_weight_and_a_permutation():
    weights = [float(1 - mixed(MixUp(), step=step)[0].diagonal().min()) for step in range(400)]
    assert sum(weights) / 400 == pytest.approx(0.101, abs=0.02)  # numerical integral for alpha 0.2
    assert len(set(weights)) > 390
    inputs, targets = mixed(MixUp(alpha=1.0))
    torch.testing.assert_close(inputs.float(), targets)
    weight = float(1 - inputs.diagonal().min())
    assert 0 < weight < 0.5
    torch.testing.assert_close(inputs.sum(0), torch.ones(64, dtype=torch.float64))  # each is a partner once
    others = inputs - torch.diag(inputs.diagonal())
    assert torch.isclose(others[others > 0], torch.tensor(weight, dtype=torch.float64)).all()


def test_a_hard_partner_is_not_smoothed_as_in_the_published_recipes():
    smoothing = 0.1
    inputs, soft = mixed(LabelSmoothing(smoothing=smoothing), MixUp(alpha=1.0))
    _, hard = mixed(MixUp(alpha=1.0, hard_partner=True), LabelSmoothing(smoothing=smoothing))  # in the same order
    weight = float(1 - inputs.diagonal().min())
    y = torch.eye(64, dtype=torch.float64)
    partner = (inputs - (1 - weight) * y) / weight
    smooth = (1 - smoothing) * y + smoothing / 64
    torch.testing.assert_close(hard.double(), (1 - weight) * smooth + weight * partner, atol=1e-6, rtol=0)
    all_smooth = (1 - smoothing) * inputs + smoothing / 64
    torch.testing.assert_close(soft.double(), all_smooth, atol=1e-6, rtol=0)


def test_the_box_is_the_partners_and_targets_follow_its_area():
    images = torch.arange(3.0)[:, None, None, None].expand(3, 2, 4, 5)
    mixed, targets = cutmix(images, torch.eye(3), torch.tensor([1, 2, 0]), (1, 3, 2, 5))
    expected = torch.zeros(4, 5)
    expected[1:3, 2:5] = 1
    assert torch.equal(mixed[0, 0], expected) and torch.equal(mixed[0, 1], expected)
    torch.testing.assert_close(targets[0], torch.tensor([14 / 20, 6 / 20, 0]))
    torch.testing.assert_close(targets[2], torch.tensor([6 / 20, 0, 14 / 20]))
    for seed, box in ((1, (3, 7, 7, 15)), (11, (7, 10, 12, 20))):  # around (5, 11), and (9, 16) at the border
        assert random_box(np.random.RandomState(seed), 10, 20, 0.17) == box
    random, inside = np.random.RandomState(1), np.zeros((8, 12))
    for _ in range(4000):
        top, bottom, left, right = random_box(random, 8, 12, 0.25)  # 4 x 6 unless clipped
        assert 2 <= bottom - top <= 4 and 3 <= right - left <= 6
        inside[top:bottom, left:right] += 1
    assert inside[3:5, 4:8] / 4000 == pytest.approx(24 / 96, abs=0.04)


def test_each_step_draws_another_box_and_targets_sum_to_1():
    speed, shares = stack(CutMix(), seed=1), set()
    images = torch.arange(16.0)[:, None, None, None].expand(16, 1, 32, 32)
    for step in range(20):
        speed.enter(step, 0.0)
        mixed, targets = speed.batch(images, torch.arange(16), 16)
        torch.testing.assert_close(targets.sum(1), torch.ones(16))
        kept = (mixed == images).float().mean((1, 2, 3))
        torch.testing.assert_close(targets.diagonal(), kept)  # also of a sample that is its own partner
        shares.add(float(kept.min()))
    assert len(shares) > 15
    assert speed.report == ["cutmix: 20 batches with boxes of other images"]


def test_half_of_the_batches_are_mixed_as_by_mixup_if_asked():
    hooks, images, blends = CutMix(mixup_alpha=0.4).hooks(), torch.arange(16.0)[:, None, None, None], 0
    for step in range(200):
        mixed, targets = hooks.batch(images.expand(16, 1, 32, 32), torch.arange(16), Position(step, 0.0), 16)
        torch.testing.assert_close(mixed.mean((1, 2, 3)), targets @ torch.arange(16.0))  # one share of both
        blends += bool((mixed == mixed[:, :, :1, :1]).all()) and targets.diagonal().min() >= 0.5
    assert 80 < blends < 120


def test_the_first_rectangle_that_fits_is_erased_with_a_probability():
    tall, small = [1.0, 1.0, 0.5, 0.5], [0.0, 0.5, 0.0, 0.99]
    boxes = erased_boxes(np.array([[tall, small], [small, tall], [tall, tall]]), 24, 96)
    assert boxes.tolist() == [[0, 89, 7, 7], [0, 89, 7, 7], [0, 0, 0, 0]]  # 2 % of 24 x 96, at a ratio of 0.995
    erased = erase(torch.ones(3, 2, 24, 96), torch.from_numpy(boxes))
    assert not erased[:2, :, :7, 89:].any() and erased.sum() == 3 * 2 * 24 * 96 - 2 * 2 * 49
    inputs, _ = (
        RandomErasing(probability=0.1)
        .hooks()
        .batch(torch.ones(4000, 1, 32, 32), torch.arange(4000), Position(0, 0.0), 2)
    )
    gone = (inputs == 0).flatten(1).float().mean(1)
    assert (gone > 0).float().mean() == pytest.approx(0.1, abs=0.02)
    assert gone[gone > 0].min() > 0.01 and 0.3 < gone.max() < 0.35  # 2 to 33 %


def holes(method: CutOut, step: int = 0, size: tuple[int, int] = (12, 16)) -> torch.Tensor:
    """Return True where an image of ones became 0: [64, H, W]."""
    speed = stack(method)
    speed.enter(step, 0.0)
    images, targets = speed.batch(torch.ones(64, 2, *size), torch.arange(64), 64)
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(targets, torch.arange(64))
    return images[:, 0] == 0


def test_squares_are_where_their_centres_say_and_are_clipped_at_the_border():
    images = torch.ones(2, 1, 6, 8).contiguous(memory_format=torch.channels_last)
    expected = torch.ones(2, 1, 6, 8)
    expected[0, :, 1:5, 2:6] = 0
    expected[1, :, 4:, :2] = 0
    cut = cutout(images, torch.tensor([[[3, 4]], [[6, 0]]]), 4)
    assert torch.equal(cut, expected) and torch.equal(images, torch.ones(2, 1, 6, 8))
    assert cut.is_contiguous(memory_format=torch.channels_last)
    expected[0, :, 0:2, 0:2] = 0
    assert torch.equal(cutout(images[:1], torch.tensor([[[3, 4], [0, 0]]]), 4), expected[:1])


def test_one_square_for_the_batch_or_one_for_each_image_of_half_the_shorter_side_and_uniform_centres():
    whole, each = holes(CutOut()), holes(CutOut(per_sample=True))
    assert (whole == whole[0]).all() and whole[0].any()
    assert len(each.flatten(1).unique(dim=0)) > 30
    assert not torch.equal(whole[0], holes(CutOut(), step=1)[0])
    cut = torch.cat([holes(CutOut(per_sample=True), step) for step in range(40)])
    assert cut.any(2).sum(1).max() == 6 and cut.any(1).sum(1).max() == 6
    assert cut.any(2).sum(1).min() == 3  # the centre is always inside
    assert cut[:, 4:8, 6:10].float().mean() == pytest.approx(36 / 192, abs=0.02)


def test_rows_and_columns_stay_in_order_and_are_those_of_every_image():
    images = torch.randn(3, 2, 20, 40)
    for given in (images, images.contiguous(memory_format=torch.channels_last)):
        speed = stack(ColOut(), seed=1)
        speed.enter(5, 0.0)
        smaller, targets = speed.batch(given, torch.arange(3), 3)
        assert smaller.shape == (3, 2, 17, 34) and torch.equal(targets, torch.arange(3))
        rows = [row for row in range(20) if torch.isin(smaller[0, 0], images[0, 0, row]).any()]
        columns = [column for column in range(40) if torch.isin(smaller[0, 0], images[0, 0, :, column]).any()]
        assert torch.equal(smaller, images[:, :, rows][:, :, :, columns])
        assert is_channels_last(smaller) == is_channels_last(given) == (given is not images)


def test_images_are_resized_first_whatever_the_order_given():
    speed = stack(ColOut(p_row=0.05, p_col=0.05), ProgressiveResizing(start=0.6, delay=0.2, finetune=0.2))
    for progress, size in ((0.0, 98), (1.0, 167)):  # of 104 and 176 px, as published for the Hot recipe
        speed.enter(0, progress)
        assert speed.batch(torch.zeros(1, 1, 176, 176), torch.arange(1), 1)[0].shape[2:] == (size, size)
