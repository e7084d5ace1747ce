"""Loader registry: the stores that each loader reads, and all problems reported at once before an image is read."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from image_classification.loaders import crop_kernel
from image_classification.loaders.loader import Loader, LoaderName
from image_classification.loaders.registry import LOADERS
from image_classification.stores.manifest import FORMAT_SETTINGS, MANIFEST, Format, StoreConfig, describe_store
from judging.ground.errors import DataError, UsageError
from tests.image_classification.small_image_data import CPU, FOLDER
from tests.image_classification.small_image_data import LOADERS as LOADER_STORES

JPEG, RAW = StoreConfig(format="jpeg"), StoreConfig(format="raw", size=24)
PAIRS = [*LOADER_STORES.items(), *((name, StoreConfig()) for name in ("pillow", "turbojpeg"))]


def problems(
    loader: LoaderName, store: StoreConfig, folder: Path | None, *, eval_resize: int = 20, eval_size: int = 16
) -> list[str]:
    return LOADERS[loader].problems(replace(FOLDER, store=store, eval_resize=eval_resize, eval_size=eval_size), folder)


def opened(
    loader: LoaderName, store: StoreConfig, folder: Path, *, train: bool = True, eval_resize: int = 20
) -> Loader:
    return LOADERS[loader].open(replace(FOLDER, store=store, eval_resize=eval_resize), folder, CPU, train=train, seed=1)


def test_every_loader_name_and_every_format_is_registered() -> None:
    assert set(LOADERS) == set(get_args(LoaderName))
    assert {name for loader in LOADERS.values() for name in loader.formats} == set(get_args(Format))
    assert set(FORMAT_SETTINGS) == set(get_args(Format))


@pytest.mark.parametrize("name, store", PAIRS, ids=lambda value: getattr(value, "format", value))
@pytest.mark.parametrize("train", [True, False])
def test_a_loader_opens_the_requested_split(
    prepared: dict[Format, Path], name: LoaderName, store: StoreConfig, train: bool
) -> None:
    if reason := LOADERS[name].unavailable():
        pytest.skip(reason)
    assert problems(name, store, prepared[store.format]) == []
    loader = opened(name, store, prepared[store.format], train=train)
    try:
        assert len(loader) == (29 if train else 6)
        (batch,) = loader.batches([np.array([4, 1])], epoch=1, size=16)
        assert batch.images.dtype == torch.uint8
        assert batch.labels.tolist() == ([0, 0] if train else [1, 0])
        assert batch.images.shape == (2, 3, 16, 16)
    finally:
        loader.close()


def test_an_unsupported_format_is_refused_with_the_loaders_that_read_it(prepared: dict[Format, Path]) -> None:
    (found,) = [problem for problem in problems("ffcv", JPEG, prepared["jpeg"]) if "reads" in problem]
    assert found == (
        "loader ffcv reads format beton, not jpeg; use --data.loader pillow or turbojpeg, or --data.store.format beton."
    )
    with pytest.raises(UsageError, match="reads format beton"):
        opened("ffcv", JPEG, prepared["jpeg"])


@pytest.mark.parametrize("name", ["pillow", "turbojpeg", "ffcv"])
def test_a_missing_package_is_reported_with_its_extra(
    prepared: dict[Format, Path], name: LoaderName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (found,) = problems(name, StoreConfig(format=LOADERS[name].formats[-1]), None)
    assert f"loader {name} needs" in found
    assert "pip install 'timedrun[" in found
    with pytest.raises(DataError, match=f"loader {name} needs"):
        LOADERS[name].compile_ahead()


def test_additional_evaluation_sizes_are_ignored(prepared: dict[Format, Path]) -> None:
    wanted = StoreConfig(format="raw", size=24, evaluation_resizes=(20, 256))
    assert problems("raw", wanted, prepared["raw"]) == []


@pytest.fixture
def copied(prepared: dict[Format, Path], tmp_path: Path) -> Path:
    """A jpeg store that may be damaged."""
    return shutil.copytree(prepared["jpeg"], tmp_path / "jpeg")


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / MANIFEST).unlink(), "not a complete image store"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "damaged or edited"),
        (lambda folder: (folder / "train/00000.jpegs").unlink(), "00000.jpegs: missing"),
        (lambda folder: (folder / "train/00000.jpegs").write_bytes(b"x"), "00000.jpegs: truncated, 1 bytes instead"),
    ],
)
def test_an_incomplete_store_is_refused(copied: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copied)
    (found,) = problems("pillow", JPEG, copied)
    assert message in found
    with pytest.raises(DataError, match=message):
        opened("pillow", JPEG, copied)


def test_all_problems_are_reported_at_once(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    values = json.loads((copied / MANIFEST).read_text())
    values["splits"].pop("evaluation")
    (copied / MANIFEST).write_text(json.dumps(values))
    (copied / "train/00000.jpegs").unlink()
    found = problems("ffcv", JPEG, copied, eval_size=30)
    for message in ("needs ffcv", "ffcv reads format beton", "no split evaluation", "missing", "data.eval_resize"):
        assert sum(message in problem for problem in found) == 1, message


def test_stores_are_described_by_format_and_size() -> None:
    assert describe_store(StoreConfig()) == "folder, original size"
    assert describe_store(StoreConfig(format="raw", size=160, shape="square")) == "raw, square 160 px"
    assert describe_store(StoreConfig(format="beton", size=500)) == (
        "beton, longest side 500 px, 50% JPEG of quality 90"
    )


def test_raw_crops_are_compiled_before_the_loader_opens(prepared: dict[Format, Path]) -> None:
    crop_kernel.scripted.cache_clear()
    LOADERS["raw"].compile_ahead()
    compiled = crop_kernel.scripted.cache_info().misses
    assert compiled == 2
    for train in (True, False):
        opened("raw", RAW, prepared["raw"], train=train).close()
    assert crop_kernel.scripted.cache_info().misses == compiled
