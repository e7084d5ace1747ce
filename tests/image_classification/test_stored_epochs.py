"""Epochs of stored images with each loader: resumed at any step, divided over ranks, damaged files named."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from image_classification.augmentation import Flip, flips
from image_classification.batches import ImageBatches
from image_classification.loaders import registry
from image_classification.loaders.loader import LoaderName
from image_classification.stores.manifest import Format
from judging.ground.errors import DataError
from tests.image_classification.small_image_data import ALONE, FOLDER, LOADERS, data_of, same, threads
from timedrun.training import sampling


def test_a_store_that_loses_a_file_is_an_error_by_the_next_epoch(prepared: dict[Format, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(prepared["jpeg"], tmp_path / "store")
    config = replace(FOLDER, loader="pillow", store=LOADERS["pillow"], prefetch=0, workers=0)
    with ImageBatches(config, folder, ALONE, global_batch=6, seed=1, last_epoch=3) as data:
        assert len(list(data.train(1))) == 5
        (shard,) = (folder / "train").glob("*.jpegs")
        shard.unlink()
        with pytest.raises(DataError, match=shard.name):
            list(data.train(2))


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stored_epoch_can_be_entered_at_any_step_with_any_loader(
    prepared: dict[Format, Path], name: LoaderName, prefetch: int
) -> None:
    if words := registry.LOADERS[name].unavailable():
        pytest.skip(words)
    store = LOADERS[name]
    config = replace(FOLDER, loader=name, store=store, prefetch=prefetch, workers=1 if name != "pillow" else 0)
    folder = prepared[store.format]

    def opened() -> ImageBatches:
        return ImageBatches(config, folder, ALONE, global_batch=6, seed=1, last_epoch=3)

    with opened() as continuous:
        epochs = {epoch: list(continuous.train(epoch)) for epoch in (1, 2, 3)}
        assert sum(len(batch.labels) for batch in continuous.evaluation()) == 6
    assert [len(batch.labels) for batch in epochs[2]] == [6, 6, 6, 6, 5]
    with opened() as resumed:
        for first_step in (3, 1, 5):
            assert same(list(resumed.train(2, first_step)), epochs[2][first_step:])
        assert same(list(resumed.train(3)), epochs[3])
        assert same(list(resumed.train(1)), epochs[1])
    assert threads() == []


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_mirrors_the_images_that_alternate(prepared: dict[Format, Path], name: LoaderName) -> None:
    if words := registry.LOADERS[name].unavailable():
        pytest.skip(words)
    store = LOADERS[name]
    config = replace(FOLDER, loader=name, store=store, workers=1 if name != "pillow" else 0)

    def images(flip: Flip, epoch: int) -> torch.Tensor:
        with data_of(replace(config, flip=flip), prepared[store.format], 0, 1, global_batch=29) as data:
            return next(data.train(epoch)).images

    for epoch in (1, 2):
        plain, alternating = images("none", epoch), images("alternating", epoch)
        near = [(alternating - side).abs().amax((1, 2, 3)).numpy() for side in (plain, plain.flip(3))]
        (samples,) = sampling.steps(29, 1, epoch, 29)
        mirrored = flips("alternating", 1, epoch, samples, np.zeros(29))
        assert np.where(mirrored, near[1], near[0]).max() < 0.05  # rounding of 8 bits, normalized
        assert np.where(mirrored, near[0], near[1]).min() > 0.2


@pytest.mark.parametrize("name", LOADERS)
def test_ranks_divide_a_stored_epoch_exactly(prepared: dict[Format, Path], name: LoaderName) -> None:
    if words := registry.LOADERS[name].unavailable():
        pytest.skip(words)
    store = LOADERS[name]
    config = replace(FOLDER, loader=name, store=store, order="quasi_random", order_block=3, order_window=2)
    with data_of(config, prepared[store.format], 0, 1, global_batch=6) as alone:
        whole = list(alone.train(epoch=2))
    shares = []
    for rank in range(3):
        with data_of(config, prepared[store.format], rank, 3, global_batch=6) as opened:
            shares.append(list(opened.train(epoch=2)))
    for step, batch in enumerate(whole):
        assert torch.equal(torch.cat([share[step].images for share in shares]), batch.images)
        assert [share[step].global_samples for share in shares] == [batch.global_samples] * 3


@pytest.mark.parametrize("loader", ["pillow", "turbojpeg", "raw"])
def test_an_evaluation_does_not_depend_on_prefetching(loader: LoaderName, prepared: dict[Format, Path]) -> None:
    store = LOADERS[loader]

    def images(prefetch: int) -> torch.Tensor:
        config = replace(FOLDER, loader=loader, store=store, prefetch=prefetch)
        with torch.inference_mode(), data_of(config, prepared[store.format], 0, 1, 6) as opened:
            return torch.cat([batch.images for batch in opened.evaluation()])

    assert torch.equal(images(0), images(2))
