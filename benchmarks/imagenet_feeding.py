"""Compute cores, disk and memory that ImageNet needs on 8 GPUs, from published epochs and measured loaders.

Rates of epochs are those of MosaicML's published ResNet-50 logs on 8 A100
(results/published/steps.json), rates per core and bytes per image those of results/loaders/loaders_synthetic.json. With
progressive resizing, images of side s pass at

    rate(s) = min(loader, full * (176 / s)^2)

per second, where `full` is the mean rate of the last epochs, which have 176 px. The mean of the epochs at 88 px after
the first is the loader's limit. Cores are required rate / rate per core: they assume that cores add up, which was
measured to 2 cores only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from benchmarks.step_model import IMAGES, Row, table
from timedrun.methods.progressive_resizing import resized

FULL_SIZE: Final = 176
SCHEDULE: Final = 28.8  # epochs, of which the runs needed 27; image_classification's imagenet_methods
RESIZING: Final = (0.5, 0.4, 0.2, 4)  # start, delay, finetune, increment
SMALL: Final = slice(1, 11)  # epochs at 88 px, without the cold first one
WHOLE: Final = slice(-4, None)
POSITIONS: Final = 48  # in an epoch
A100 = "v2.0/MosaicML/8xA100_80GB"
DEMANDS: Final = {
    "8 A100, `baseline`, 224 px": f"{A100}-baseline",
    "8 A100, NVIDIA's entry, 224 px": "v2.0/NVIDIA/dgxa100_ngc22.04_mxnet",
    "8 H100, NVIDIA's entry, 224 px": "v4.0/NVIDIA/eos_ngc24.04_mxnet",
    "8 H200, NVIDIA's entry, 224 px": "v4.0/NVIDIA/h200_ngc24.04_mxnet",
}
LOADERS: Final = {
    "`turbojpeg`, JPEG": ("turbojpeg", "jpeg"),
    "`ffcv`, all JPEG": ("ffcv", "beton_jpeg"),
    "`ffcv`, half raw": ("ffcv", "beton_half"),
    "`raw`, 256 px": ("raw", "raw_256"),
    "`raw`, cropped on the GPU": ("raw_host", "raw_256"),
}
LIMITS: Final = (5_000.0, 8_000.0, 16_000.0, 24_000.0, 65_000.0, math.inf)


def epoch_seconds(epoch: int, loader: float, full: float) -> float:
    """Return the seconds of training in an epoch, from 0, of the methods entry with warm caches."""
    sides = (
        resized(FULL_SIZE, (epoch + (position + 0.5) / POSITIONS) / SCHEDULE, *RESIZING)
        for position in range(POSITIONS)
    )
    return IMAGES * fmean(max(1 / loader, (side / FULL_SIZE) ** 2 / full) for side in sides)


def resizing_check(rates: Sequence[float]) -> Row:
    """Return the predicted against the measured rates of the epochs, and of the time of all but the first."""
    loader, full = fmean(rates[SMALL]), fmean(rates[WHOLE])
    predicted = [IMAGES / epoch_seconds(epoch, loader, full) for epoch in range(len(rates))]
    seconds = [sum(IMAGES / rate for rate in each[1:]) for each in (predicted, rates)]
    errors = [one / other - 1 for one, other in zip(predicted, rates, strict=True)]
    return {
        "loader": loader,
        "full": full,
        "predicted": [round(rate) for rate in predicted],
        "measured": list(rates),
        "time_error": seconds[0] / seconds[1] - 1,
        "largest_rate_error": max(errors[1:], key=abs),
    }


def limited(row: Row, check: Row) -> list[Row]:
    """Return the minutes of the methods entry by the loader's rate; cold as published, and with the store in memory."""
    found = []
    for loader in sorted([*LIMITS, check["loader"]]):
        training = sum(epoch_seconds(epoch, loader, check["full"]) for epoch in range(len(check["measured"])))
        warm = training + row["evaluations"] * row["evaluation_seconds"] + row["startup_seconds"]
        found.append({"loader": loader if loader < math.inf else None, "minutes_warm": warm / 60})
        found[-1]["minutes_cold"] = (warm + row["cold_seconds"]) / 60
    return found


def needs(loaders: Row, demands: dict[str, tuple[float, int]]) -> list[Row]:
    """Return cores, bytes per second and bytes of each loader and store, for images per second at a size of crops."""
    found = []
    for label, (loader, store) in LOADERS.items():
        stored = loaders["facts"]["stores"][store]
        image = stored["bytes"] / stored["images"]
        row: Row = {"loader": label, "bytes_per_image": image, "store_bytes": image * IMAGES}
        for name, (rate, size) in demands.items():
            (measured,) = (
                one for one in loaders["rows"] if (one["loader"], one["store"], one["size"]) == (loader, store, size)
            )
            per_core = measured["images_per_second_per_core"]["median"]
            row[name] = {"per_core": per_core, "cores": rate / per_core, "disk_bytes_per_second": rate * image}
        found.append(row)
    return found


def feeding_tables(result: Row) -> list[str]:
    """Return the tables of the page."""
    demands = result["demands"]
    first = table(["8 GPUs", "images per second"], [[name, f"{rate:,.0f}"] for name, rate in demands.items()])
    second = table(
        ["loader at most, images per second", "minutes, cold caches as published", "minutes, store in memory"],
        [
            [f"{row['loader']:,.0f}" if row["loader"] else "not limiting"]
            + [f"{row[name]:.1f}" for name in ("minutes_cold", "minutes_warm")]
            for row in result["limited"]
        ],
    )
    asked = result["asked"]
    head = ["loader and store", "ImageNet, GB"]
    for name, (rate, _) in asked.items():
        head += [f"cores for {rate:,.0f} at {name}", "GB/s uncached"]
    third = table(
        head,
        [
            [row["loader"], f"{row['store_bytes'] / 1e9:.0f}"]
            + [
                text
                for name in asked
                for text in (f"{row[name]['cores']:.1f}", f"{row[name]['disk_bytes_per_second'] / 1e9:.1f}")
            ]
            for row in result["needs"]
        ],
    )
    return [first, second, third]


def feeding(sets: Sequence[Row], loaders: Row) -> Row:
    """Return all numbers of the page about loaders."""
    rows = {row["name"]: row for row in sets if row["benchmark"] == "resnet"}
    methods = rows[f"{A100}-methods"]
    check = resizing_check(methods["epochs_per_second"])
    demands = {"8 A100, `methods`, 88 px (the loader's limit)": check["loader"]}
    demands |= {"8 A100, `methods`, 176 px": check["full"]}
    demands |= {name: rows[entry]["samples_per_second"] for name, entry in DEMANDS.items()}
    asked = {
        "224 px": (rows[f"{A100}-baseline"]["samples_per_second"], 224),
        "88 px": (check["loader"], 88),
        "224 px, 8 H100": (rows["v4.0/NVIDIA/eos_ngc24.04_mxnet"]["samples_per_second"], 224),
    }
    return {
        "resizing_check": check,
        "demands": demands,
        "limited": limited(methods, check),
        "asked": asked,
        "needs": needs(loaders, asked),
    }
