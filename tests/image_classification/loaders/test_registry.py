"""Loader registry: the stores that each loader reads, and all problems reported at once before an image is read."""

import importlib.util
import json
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from image_classification.loaders import crop_kernel, ffcv_loader
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.registry import LOADERS
from image_classification.settings import LoaderName
from image_classification.stores.manifest import FORMAT_SETTINGS, MANIFEST, Format, StoreConfig
from judging.ground.errors import DataError, UsageError
from tests.image_classification.small_image_data import CPU, FOLDER
from tests.image_classification.small_image_data import LOADERS as LOADER_STORES
from timedrun.training.sampling import Indices

JPEG, RAW = StoreConfig(format="jpeg"), StoreConfig(format="raw", size=24)
PAIRS = [*LOADER_STORES.items(), *((name, StoreConfig()) for name in ("pillow", "turbojpeg"))]


def problems(loader: LoaderName, store: StoreConfig, folder: Path | None, *, eval_size: int = 16) -> list[str]:
    return LOADERS[loader].problems(replace(FOLDER, store=store, eval_size=eval_size), folder)


def opened(loader, store, folder, *, train=True, seed=1, workers=0):
    config = replace(FOLDER, store=store, workers=workers)
    return LOADERS[loader].open(config, folder, CPU, train=train, seed=seed)


def test_every_loader_name_and_every_format_is_registered():
    assert set(LOADERS) == set(get_args(LoaderName))
    assert {name for loader in LOADERS.values() for name in loader.formats} == set(get_args(Format))
    assert set(FORMAT_SETTINGS) == set(get_args(Format))


@pytest.mark.parametrize("name, store", PAIRS, ids=lambda value: getattr(value, "format", value))
@pytest.mark.parametrize("train", [True, False])
def test_a_loader_opens_splits(prepared, name, store, train):
    if reason := LOADERS[name].unavailable():
        pytest.skip(reason)
    assert problems(name, store, prepared[store.format]) == []
    with closing(opened(name, store, prepared[store.format], train=train)) as loader:
        assert len(loader) == (29 if train else 6)
        (batch,) = loader.batches([np.array([4, 1])], epoch=1, size=16)
        assert (batch.images.dtype, batch.labels.dtype) == (torch.uint8, torch.int64)
        assert batch.labels.tolist() == ([0, 0] if train else [1, 0])
        assert batch.images.shape == (2, 3, 16, 16)


@pytest.mark.processes
@pytest.mark.parametrize("name", LOADER_STORES)
def test_a_batch_depends_on_seed_epoch_and_samples_alone(prepared, name):
    if reason := LOADERS[name].unavailable():
        pytest.skip(reason)

    def loaded(parts: list[Indices], *, epoch: int = 2, **options: int) -> list[LoadedBatch]:
        with closing(opened(name, store, prepared[store.format], **options)) as loader:
            list(loader.batches([np.arange(29)], 1, 16))
            return list(loader.batches(parts, epoch, 24))

    store, parts = LOADER_STORES[name], [np.array([3, 28, 3]), np.arange(20), np.array([7])]
    before = torch.get_rng_state()
    batches = loaded(parts)
    for batch, same in zip(batches, reversed(loaded(parts[::-1], workers=2)), strict=True):
        assert torch.equal(batch.images, same.images) and torch.equal(batch.labels, same.labels)
    for change in ({"seed": 2}, {"epoch": 3}):
        assert not torch.equal(loaded(parts, **change)[0].images, batches[0].images)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unsupported_format_is_refused_with_the_loaders_that_read_it(prepared):
    (found,) = [problem for problem in problems("ffcv", JPEG, prepared["jpeg"]) if "reads" in problem]
    assert found == (
        "loader ffcv reads format beton, not jpeg; use --data.loader pillow or turbojpeg, or --data.store.format beton."
    )
    with pytest.raises(UsageError, match="reads format beton"):
        opened("ffcv", JPEG, prepared["jpeg"])


@pytest.mark.parametrize("name", ["pillow", "turbojpeg", "ffcv"])
def test_a_missing_package_is_reported_with_its_extra(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (found,) = problems(name, StoreConfig(format=LOADERS[name].formats[-1]), None)
    assert f"loader {name} needs" in found
    assert "pip install 'timedrun[" in found
    with pytest.raises(DataError, match=f"loader {name} needs"):
        LOADERS[name].compile_ahead()


def test_additional_evaluation_sizes_are_ignored(prepared):
    wanted = StoreConfig(format="raw", size=24, evaluation_resizes=(20, 256))
    assert problems("raw", wanted, prepared["raw"]) == []


@pytest.fixture
def copied(prepared: dict[Format, Path], tmp_path: Path) -> Path:
    """A jpeg store that may be damaged."""
    return shutil.copytree(prepared["jpeg"], tmp_path / "jpeg")


def test_an_incomplete_store_is_refused(copied):
    (copied / "train/00000.jpegs").write_bytes(b"x")
    (problem,) = problems("pillow", JPEG, copied)
    assert "00000.jpegs: truncated, 1 bytes instead" in problem
    with pytest.raises(DataError, match="00000.jpegs: truncated, 1 bytes instead"):
        opened("pillow", JPEG, copied)
    (copied / MANIFEST).unlink()
    (problem,) = problems("pillow", JPEG, copied)
    assert "not a complete image store" in problem


def test_all_problems_are_reported_at_once(copied, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    values = json.loads((copied / MANIFEST).read_text())
    values["splits"].pop("evaluation")
    (copied / MANIFEST).write_text(json.dumps(values))
    (copied / "train/00000.jpegs").unlink()
    found = problems("ffcv", JPEG, copied, eval_size=30)
    for message in ("needs ffcv", "ffcv reads format beton", "no split evaluation", "missing", "data.eval_resize"):
        assert sum(message in problem for problem in found) == 1, message


def test_raw_crops_are_compiled_before_the_loader_opens(prepared):
    crop_kernel.scripted.cache_clear()
    LOADERS["raw"].compile_ahead()
    compiled = crop_kernel.scripted.cache_info().misses
    assert compiled == 2
    for train in (True, False):
        opened("raw", RAW, prepared["raw"], train=train).close()
    assert crop_kernel.scripted.cache_info().misses == compiled


def test_an_ffcv_import_error_is_reported_with_its_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "image_classification.loaders.ffcv_pipeline", None)
    monkeypatch.delattr("image_classification.loaders.ffcv_pipeline", raising=False)
    with pytest.raises(DataError, match="ffcv does not load"):
        ffcv_loader.compile_ahead()
