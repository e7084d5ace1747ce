"""Operations of RandAugment, TrivialAugment and AugMix on batches of 8-bit images, each with a strength of its own.

They compute what Pillow's ImageOps, ImageEnhance and affine transforms do, for which the published strengths are meant.
torchvision has them with one strength for a whole call, which means one image at a time.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from timedrun.methods.method import Rule

Values = NDArray[np.float64]
SEVERITY = Rule(lambda value: 0.1 <= value <= 10, "0.1 to 10")
OperationSet = Literal["all", "safe", "original"]
"""all: 13 operations; color, contrast, brightness and sharpness by a factor that is as likely above 1, up to the
severity, as below. original: the same 13, with factors of 0.1 to 1.9 as AugMix's authors drew them. safe: without the
four, which resemble the corruptions of ImageNet-C."""
Operations = Literal[OperationSet, "timm", "wide"]
"""timm: the 15 operations and ranges of timm's RandAugment whose effect increases with the level. wide: the 14 of
TrivialAugmentWide in torchvision."""


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """Stretch each channel to 0 to 255.

    Examples:
        >>> images = torch.tensor([[[[50, 100]]]], dtype=torch.uint8)
        >>> autocontrast(images, torch.zeros(1))
        tensor([[[[  0, 255]]]], dtype=torch.uint8)
    """
    low, high = images.amin((2, 3), keepdim=True).float(), images.amax((2, 3), keepdim=True).float()
    one_value = low == high
    low, high = low.masked_fill(one_value, 0), high.masked_fill(one_value, 255)
    return (images - low).mul_(255).div_(high - low).byte()


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Give each channel an even histogram.

    Examples:
        >>> images = torch.arange(64, dtype=torch.uint8).repeat(1, 1, 8, 1)
        >>> int(equalize(images, torch.zeros(1)).max())
        255
    """
    values = images.flatten(2).long()
    histogram = values.new_zeros(*values.shape[:2], 256).scatter_add_(2, values, torch.ones_like(values))
    brightest = histogram.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - brightest) // 255
    table = ((histogram.cumsum(2) - histogram + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(2, values).byte().view(images.shape)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the `bits` highest bits of each value.

    Examples:
        >>> posterize(torch.tensor([[[[200, 7]]]], dtype=torch.uint8), bits=torch.tensor([4]))
        tensor([[[[192,   0]]]], dtype=torch.uint8)
    """
    return images & (256 - 2 ** (8 - bits)).byte().view(-1, 1, 1, 1)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values from the `threshold` on.

    Examples:
        >>> solarize(torch.tensor([[[[200, 7]]]], dtype=torch.uint8), threshold=torch.tensor([128]))
        tensor([[[[55,  7]]]], dtype=torch.uint8)
    """
    inverted = images >= threshold.short().view(-1, 1, 1, 1)
    return images ^ inverted.byte().neg_()  # 255 where True


def solarize_add(images: Tensor, amount: Tensor) -> Tensor:
    """Add `amount`, at most 128, to values below 128.

    Examples:
        >>> solarize_add(torch.tensor([[[[200, 7]]]], dtype=torch.uint8), amount=torch.tensor([100]))
        tensor([[[[200, 107]]]], dtype=torch.uint8)
    """
    return torch.where(images < 128, images + amount.byte().view(-1, 1, 1, 1), images)


def _affine(images: Tensor, x: Sequence[Tensor | float] = (1, 0, 0), y: Sequence[Tensor | float] = (0, 1, 0)) -> Tensor:
    """Sample images at a x + b y + c of each pixel, bilinear and black outside; a, b, c, also [N], for x and y."""
    height, width = images.shape[2:]
    across = torch.arange(width, device=images.device) + 0.5
    down = (torch.arange(height, device=images.device) + 0.5)[:, None]
    rows = [[part.view(-1, 1, 1) if isinstance(part, Tensor) else part for part in row] for row in (x, y)]
    at = torch.broadcast_tensors(*(a * across + b * down + c for a, b, c in rows))  # type: ignore[no-untyped-call]
    grid = torch.stack([at[0] * (2 / width) - 1, at[1] * (2 / height) - 1], dim=3)
    sampled = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    inside = (at[0] >= 0) & (at[0] < width) & (at[1] >= 0) & (at[1] < height)
    return sampled.mul_(inside.unsqueeze(1)).round_().byte()


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise around the centre.

    Examples:
        >>> image = torch.tensor([[[[255, 0], [0, 0]]]], dtype=torch.uint8)
        >>> rotate(image, degrees=torch.tensor([90.0]))
        tensor([[[[  0,   0],
                  [255,   0]]]], dtype=torch.uint8)
    """
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    x, y = images.shape[3] / 2, images.shape[2] / 2
    return _affine(images, (cos, -sin, x - cos * x + sin * y), (sin, cos, y - sin * x - cos * y))


def _gray(images: Tensor) -> Tensor:
    """Return the luma of ITU-R 601 as Pillow rounds it, [N, 1, H, W]."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).unsqueeze(1)


def _blended(images: Tensor, plain: Tensor, factor: Tensor) -> Tensor:
    """Return plain + factor * (images - plain), without fractions."""
    return images.float().sub_(plain).mul_(factor.view(-1, 1, 1, 1)).add_(plain).clamp_(0, 255).byte()


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by [1 1 1; 1 5 1; 1 1 1] / 13, whose border is not smoothed.

    Examples:
        >>> images = torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8)
        >>> torch.equal(sharpness(images, factor=torch.tensor([1.0])), images)
        True
    """
    plain = images.float()
    inner = plain[:, :, 1:-1, 1:-1]
    three_rows = plain[:, :, :-2] + plain[:, :, 1:-1] + plain[:, :, 2:]
    inner.mul_(4).add_(three_rows[..., :-2] + three_rows[..., 1:-1] + three_rows[..., 2:]).div_(13).round_()
    return _blended(images, plain, factor)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "rotate": rotate,
    "solarize": solarize,
    "shear_x": lambda images, strength: _affine(images, x=(1, strength, 0)),
    "shear_y": lambda images, strength: _affine(images, y=(strength, 1, 0)),
    "translate_x": lambda images, pixels: _affine(images, x=(1, 0, pixels)),
    "translate_y": lambda images, pixels: _affine(images, y=(0, 1, pixels)),
    "color": lambda images, factor: _blended(images, _gray(images).float(), factor),
    "contrast": lambda images, factor: _blended(
        images, _gray(images).float().mean((1, 2, 3), keepdim=True).add(0.5).floor(), factor
    ),
    "brightness": lambda images, factor: _blended(images, torch.zeros((), device=images.device), factor),
    "sharpness": sharpness,
    "identity": lambda images, strength: images,
    "invert": lambda images, strength: 255 - images,
    "solarize_add": solarize_add,
}
EXTRA = {"identity": "wide", "invert": "timm", "solarize_add": "timm"}
"""Operations of a single set."""
ENHANCING = ("color", "contrast", "brightness", "sharpness")


def names_of(chosen: Operations) -> list[str]:
    """Return the names of the operations in the set `chosen`.

    Examples:
        >>> len(names_of("all")), len(names_of("safe"))
        (13, 9)
    """
    names = [name for name in OPERATIONS if EXTRA.get(name, chosen) == chosen]
    return [name for name in names if chosen != "safe" or name not in ENHANCING]


def strengths(
    name: str, chosen: Operations, severity: float, draws: Values, size: tuple[int, int], spread: float = 0.0
) -> Values:
    """Return the strength of the operation for each row of `draws` [N, 2], uniform in [0, 1): level and direction.

    The level is 0.1 to `severity`, of 10. Ranges are those of AugMix (arXiv 1912.02781) and MosaicML Composer: 30
    degrees, 4 bits, all values, a shear of 0.3, a third of `size` (height, width).

    "timm": the level is normal around `severity` with the standard deviation `spread`, within 0 to 10. Ranges are
    those of timm's `rand-...-inc1`. "wide": one of 31 levels, whatever the severity, with torchvision's ranges.

    Examples:
        >>> [float(s) for s in strengths("rotate", "all", 10, np.array([[0.5, 0.2]]), size=(224, 224))]  # degrees
        [15.0]
    """
    if chosen == "timm":
        return _timm_strengths(name, severity, draws, size, spread)
    if chosen == "wide":
        return _wide_strengths(name, draws)
    level, up = 0.1 + (severity - 0.1) * draws[:, 0], draws[:, 1] < 0.5
    if name in ENHANCING and chosen == "original":
        return 0.18 * level + 0.1
    if name in ENHANCING:
        most = 1 + (severity - 1) * draws[:, 0]
        if name == "brightness":
            most = np.where(most > 1, 0.75 * most, most)
        return np.where(up, most, 1 - 0.09 * severity * draws[:, 0])
    sign = np.where(up, 1.0, -1.0)
    if name in ("shear_x", "shear_y"):
        return sign * 0.03 * level
    whole = {"posterize": 4, "solarize": 256, "rotate": 30, "translate_y": size[0] / 3, "translate_x": size[1] / 3}
    steps = np.trunc(level * whole.get(name, 0) / 10)
    if name in ("posterize", "solarize"):
        return whole[name] - steps
    return sign * steps


def _timm_strengths(name: str, severity: float, draws: Values, size: tuple[int, int], spread: float) -> Values:
    normal = torch.special.ndtri(torch.from_numpy(draws[:, 0])).numpy() if spread else 0.0
    level = np.clip(severity + spread * normal + np.zeros(len(draws)), 0, 10) / 10
    sign = np.where(draws[:, 1] < 0.5, 1.0, -1.0)
    if name in ENHANCING:
        return np.maximum(0.1, 1 + 0.9 * sign * level)
    if name in ("posterize", "solarize"):
        most = 4 if name == "posterize" else 256
        return most - np.trunc(level * most)
    if name == "solarize_add":
        return np.trunc(level * 110)
    moved = {"translate_x": 0.45 * size[1], "translate_y": 0.45 * size[0], "rotate": 30}
    return sign * level * moved.get(name, 0.3)


def _wide_strengths(name: str, draws: Values) -> Values:
    level = np.trunc(31 * draws[:, 0])
    sign = np.where(draws[:, 1] < 0.5, 1.0, -1.0)
    if name in ENHANCING:
        return 1 + sign * 0.99 * level / 30
    if name == "posterize":
        return 8 - np.rint(level / 5)
    if name == "solarize":
        return np.ceil(255 - 8.5 * level)  # the first whole value that is inverted
    if name in ("translate_x", "translate_y"):
        shifts: Values = torch.linspace(0, 32, 31).trunc().double().numpy()  # 15 in the middle, as there
        return sign * shifts[level.astype(np.int64)]
    return sign * level / 30 * (135 if name == "rotate" else 0.99)


def operate(images: Tensor, chosen: Operations, severity: float, draws: Values, spread: float = 0.0) -> Tensor:
    """Return 8-bit images [N, C, H, W], each after one operation by its row of `draws` [N, 3], uniform in [0, 1).

    Examples:
        >>> images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
        >>> operate(images, "all", severity=9, draws=np.random.RandomState(0).rand(2, 3)).shape
        torch.Size([2, 3, 8, 8])
    """
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"operations on images need torch.uint8 [batch, 1 or 3, height, width], got {images.dtype} "
            f"{list(images.shape)}; remove randaugment, trivial_augment and augmix from the methods of this data"
        )
    names = names_of(chosen)
    nhwc = images.is_contiguous(memory_format=torch.channels_last)
    images = images.contiguous()  # on a CPU twice as fast
    changed = images.clone()
    kinds = (draws[:, 0] * len(names)).astype(np.int64)
    for kind in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == kind)
        size = (images.shape[2], images.shape[3])
        strength = torch.from_numpy(strengths(names[kind], chosen, severity, draws[rows, 1:], size, spread)).float()
        there = torch.from_numpy(rows).to(images.device, non_blocking=True)
        changed[there] = OPERATIONS[names[kind]](images[there], strength.to(images.device, non_blocking=True))
    return changed.contiguous(memory_format=torch.channels_last) if nhwc else changed
