"""JPEGs of coloured 1/f noise, as costly to decode as photographs, for benchmarks without a dataset."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

EXPONENT = 1.15
"""Decay of amplitude with frequency; photographs have about 1. With CONTRAST, 500x375 pixels at quality 90 take about
100 kB, as in ImageNet."""
CONTRAST = 52.0
COMMON = 0.85
"""Weight of the noise common to the three colours; OWN is the weight of each colour's own."""
OWN = 0.5


@dataclass(frozen=True, kw_only=True)
class SyntheticImages:
    """Settings of synthetic images; equal settings yield equal pixels."""

    train: int
    evaluation: int = 16
    classes: int = 8
    width: int = 500
    height: int = 375
    quality: int = 90
    seed: int = 1


def write_images(folder: Path, settings: SyntheticImages, *, workers: int) -> None:
    """Write train/<class>/*.jpg and val/<class>/*.jpg into a new `folder`, which appears only when complete. Raises
    OSError if the disk is full."""
    from PIL import Image

    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    for split in ("train", "val"):
        for label in range(settings.classes):
            (draft / split / f"class_{label:02d}").mkdir(parents=True)

    def write(number: int) -> None:
        split = "train" if number < settings.train else "val"
        path = draft / split / f"class_{number % settings.classes:02d}" / f"{number:07d}.jpg"
        Image.fromarray(pixels(settings, number)).save(path, "JPEG", quality=settings.quality)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(write, range(settings.train + settings.evaluation)))  # the first error is raised
    draft.rename(folder)


def pixels(settings: SyntheticImages, number: int) -> NDArray[np.uint8]:
    """Return image `number`, of class `number` modulo the number of classes: noise (height, width, 3) uint8 with an
    amplitude of frequency^-EXPONENT around the class's colour."""
    generator = np.random.default_rng([settings.seed, number])
    height, width = settings.height, settings.width
    rows, columns = np.fft.fftfreq(height) * height, np.fft.rfftfreq(width) * width
    frequency = np.hypot(rows[:, None], columns[None, :])
    frequency[0, 0] = 1.0
    amplitude = frequency**-EXPONENT
    amplitude[0, 0] = 0.0  # the mean is the class's
    label = number % settings.classes
    colour = 118 + 40 * np.cos(2 * np.pi * (label / settings.classes + np.arange(3) / 3))
    common = _spectrum(generator, frequency.shape)
    image = np.empty((height, width, 3), dtype=np.uint8)
    for channel in range(3):
        mixed = COMMON * common + OWN * _spectrum(generator, frequency.shape)
        plane = np.fft.irfft2(mixed * amplitude, s=(height, width))
        plane *= CONTRAST / plane.std()
        image[:, :, channel] = np.clip(plane + colour[channel], 0, 255)
    return image


def _spectrum(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.complex128]:
    parts = generator.standard_normal((*shape, 2))
    return parts.view(np.complex128)[..., 0]
