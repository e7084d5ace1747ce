"""Which loader reads which store, and everything that keeps it from that, told at once and before any image."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from image_classification.configs import imagenet_methods
from image_classification.loaders import crop_kernel, registry
from image_classification.loaders.loader import LoaderName
from image_classification.settings import DataConfig
from image_classification.stores.manifest import MANIFEST, Format, StoreConfig
from timedrun.errors import DataError, UsageError

CPU = torch.device("cpu")
PAIRS: list[tuple[LoaderName, StoreConfig]] = [
    ("pillow", StoreConfig(format="folder")),
    ("pillow", StoreConfig(format="jpeg")),
    ("turbojpeg", StoreConfig(format="folder")),
    ("turbojpeg", StoreConfig(format="jpeg")),
    ("raw", StoreConfig(format="raw", size=24)),
    ("ffcv", StoreConfig(format="beton")),
]


def config_of(loader: LoaderName, store: StoreConfig, **changes: Any) -> DataConfig:
    return replace(
        imagenet_methods().data,
        **{"loader": loader, "store": store, "eval_resize": 20, "eval_size": 16, "workers": 0, **changes},
    )


def test_every_loader_has_a_class_and_formats() -> None:
    names = set(get_args(LoaderName))
    assert set(registry.READS) == set(registry.CLASSES) == names
    assert {name for formats in registry.READS.values() for name in formats} == set(get_args(Format))
    assert set(registry.SETTINGS) == set(get_args(Format))


@pytest.mark.parametrize("loader, store", PAIRS, ids=lambda value: getattr(value, "format", value))
@pytest.mark.parametrize("train", [True, False])
def test_a_loader_opens_the_split_that_the_config_names(
    prepared: dict[Format, Path], loader: LoaderName, store: StoreConfig, train: bool
) -> None:
    if words := registry.unavailable(loader):
        pytest.skip(words)
    config = config_of(loader, store)
    assert registry.problems(config, prepared[store.format]) == []
    opened = registry.open_loader(config, prepared[store.format], train=train, seed=1, device=CPU)
    try:
        assert len(opened) == (29 if train else 6)
        (batch,) = opened.batches([np.array([4, 1])], epoch=1, size=16)
        assert batch.images.dtype == torch.uint8
        assert batch.labels.tolist() == ([0, 0] if train else [1, 0])
        assert batch.images.shape == (2, 3, 16, 16)
    finally:
        opened.close()


def test_a_format_that_the_loader_does_not_read_is_answered_with_those_that_do(prepared: dict[Format, Path]) -> None:
    config = config_of("ffcv", StoreConfig(format="jpeg"))
    (words,) = [found for found in registry.problems(config, prepared["jpeg"]) if "reads" in found]
    assert words == (
        "loader ffcv reads format beton, not jpeg; use --data.loader pillow or turbojpeg or dali, or"
        " --data.store.format beton."
    )
    with pytest.raises(UsageError, match="reads format beton"):
        registry.open_loader(config, prepared["jpeg"], train=True, seed=1, device=CPU)


def test_a_loader_that_is_not_installed_is_told_with_its_extra(
    prepared: dict[Format, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from image_classification.loaders import turbojpeg

    monkeypatch.setattr(turbojpeg, "unavailable", lambda: "pip install 'timedrun[vision]'")
    config = config_of("turbojpeg", StoreConfig(format="jpeg"))
    assert registry.problems(config, prepared["jpeg"]) == ["pip install 'timedrun[vision]'"]
    assert registry.problems(config, None) == ["pip install 'timedrun[vision]'"]


def test_each_setting_that_the_store_was_made_with_otherwise_is_named(prepared: dict[Format, Path]) -> None:
    wanted = StoreConfig(format="raw", size=32, shape="square", jpeg_quality=77)
    size, shape = registry.problems(config_of("raw", wanted), prepared["raw"])
    assert "made with size 24, the config has 32; use --data.store.size 24" in size
    assert "made with shape short_side, the config has square; use --data.store.shape short_side" in shape


def test_a_store_of_another_format_is_told_with_what_it_is(prepared: dict[Format, Path]) -> None:
    (words,) = registry.problems(config_of("pillow", StoreConfig(format="jpeg")), prepared["raw"])
    assert "raw holds raw, short side 24 px; the config wants format jpeg" in words
    assert "--data.store.format raw" in words


def test_a_raw_store_without_the_evaluation_size_is_refused(prepared: dict[Format, Path]) -> None:
    config = config_of("raw", StoreConfig(format="raw", size=24), eval_resize=22)
    (words,) = registry.problems(config, prepared["raw"])
    assert "no evaluation images of short side 22 (data.eval_resize), only of 20" in words
    with pytest.raises(DataError, match="no evaluation images of short side 22"):
        registry.open_loader(config, prepared["raw"], train=True, seed=1, device=CPU)


def test_other_evaluation_sizes_in_a_raw_store_are_no_difference(prepared: dict[Format, Path]) -> None:
    wanted = StoreConfig(format="raw", size=24, evaluation_resizes=(20, 256))
    assert registry.problems(config_of("raw", wanted), prepared["raw"]) == []


def test_an_evaluation_crop_larger_than_the_resized_image_is_refused(prepared: dict[Format, Path]) -> None:
    config = config_of("pillow", StoreConfig(format="jpeg"), eval_size=24)
    assert any("data.eval_resize 20 is less than data.eval_size 24" in w for w in registry.problems(config, None))


@pytest.fixture
def copied(prepared: dict[Format, Path], tmp_path: Path) -> Path:
    """A jpeg store that may be damaged."""
    return shutil.copytree(prepared["jpeg"], tmp_path / "jpeg")


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda folder: (folder / MANIFEST).unlink(), "no whole store of images is there"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "damaged or edited"),
        (lambda folder: (folder / "train/00000.jpegs").unlink(), "00000.jpegs: missing"),
        (lambda folder: (folder / "train/00000.jpegs").write_bytes(b"x"), "00000.jpegs: cut off, 1 bytes instead"),
    ],
)
def test_a_store_that_is_not_whole_is_told_without_reading_it(
    copied: Path, damage: Callable[[Path], object], words: str
) -> None:
    damage(copied)
    config = config_of("pillow", StoreConfig(format="jpeg"))
    (found,) = registry.problems(config, copied)
    assert words in found
    with pytest.raises(DataError, match=words):
        registry.open_loader(config, copied, train=True, seed=1, device=CPU)


def test_all_that_is_wrong_is_told_at_once(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from image_classification.loaders import raw

    monkeypatch.setattr(raw, "unavailable", lambda: "not here")
    values = json.loads((copied / MANIFEST).read_text())
    values["splits"].pop("evaluation")
    (copied / MANIFEST).write_text(json.dumps(values))
    (copied / "train/00000.jpegs").unlink()
    found = registry.problems(config_of("raw", StoreConfig(format="jpeg"), eval_size=30), copied)
    for words in ("not here", "raw reads format raw", "no split evaluation", "missing", "data.eval_resize"):
        assert sum(words in line for line in found) == 1, words


def test_nothing_of_an_image_is_read_for_all_this(copied: Path) -> None:
    shard = copied / "train/00000.jpegs"
    shard.write_bytes(bytes(shard.stat().st_size))
    assert registry.problems(config_of("pillow", StoreConfig(format="jpeg")), copied) == []


def test_stores_are_described_by_format_and_size() -> None:
    assert registry.described(StoreConfig()) == "folder, original size"
    assert registry.described(StoreConfig(format="raw", size=160, shape="square")) == "raw, square 160 px"
    assert registry.described(StoreConfig(format="beton", size=500)) == (
        "beton, longest side 500 px, 50% JPEG of quality 90"
    )


def test_raw_crops_are_compiled_before_the_loader_opens(prepared: dict[Format, Path]) -> None:
    crop_kernel.scripted.cache_clear()
    registry.make_ready("raw")
    compiled = crop_kernel.scripted.cache_info().misses
    assert compiled == 2
    config = config_of("raw", StoreConfig(format="raw", size=24))
    for train in (True, False):
        registry.open_loader(config, prepared["raw"], train=train, seed=1, device=CPU).close()
    assert crop_kernel.scripted.cache_info().misses == compiled
