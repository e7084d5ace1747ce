"""Batches of one rank: exact counts, prefetching across epochs, and no thread left after closing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from image_classification import batches
from image_classification.batches import ImageBatches, open_source
from image_classification.configs import digits_baseline, synthetic_smoke
from image_classification.loaders import registry
from image_classification.loaders.loader import LoadedBatch
from image_classification.settings import DataConfig
from tests.image_classification.small_image_data import CPU, FOLDER, LOADERS, data_of, threads
from tests.timedrun.runner.distributed.launched_ranks import until
from timedrun.methods import ProgressiveResizing, Stack, stack
from timedrun.methods.training import sampling


class Recorded:
    """Loader of images with one value per sample that records its calls."""

    def __init__(self) -> None:
        self.asked, self.made, self.closed = list[tuple[int, int]](), list[int](), 0

    def __len__(self) -> int:
        return 20

    def batches(self, parts: Sequence[sampling.Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        self.asked.append((epoch, size))
        for part in parts:
            self.made.append(epoch)
            values = torch.from_numpy(part).to(torch.uint8)
            yield LoadedBatch(values.view(-1, 1, 1, 1).expand(-1, 3, size, size).clone(), torch.from_numpy(part))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[bool, Recorded]:
    """The loaders of training (True) and evaluation that every ImageBatches of the test opens."""
    loaders = {True: Recorded(), False: Recorded()}
    monkeypatch.setattr(batches, "open_source", lambda *given, train, seed: loaders[train])
    return loaders


def recorded_data(epochs: int = 9, methods: Stack | None = None) -> ImageBatches:
    return data_of(replace(FOLDER, prefetch=2), global_batch=5, epochs=epochs, methods=methods)


def test_the_next_epoch_is_prefetched_at_its_size_before_it_begins_and_none_after_the_last(recorded):
    loader, resizing = recorded[True], ProgressiveResizing(start=0.5, delay=0, finetune=0, increment=4, where="loader")
    with recorded_data(3, stack(resizing)) as opened:
        assert loader.asked == []
        assert [batch.images.shape[-1] for batch in opened.train(1)] == [8] * 4
        until(lambda: loader.made == [1] * 4 + [2] * 2)
        assert sum(len(batch.labels) for batch in opened.evaluation()) == 20
        assert [batch.images.shape[-1] for batch in opened.train(2)] == [12] * 4
        until(lambda: loader.made == [1] * 4 + [2] * 4 + [3] * 2)
        assert [batch.images.shape[-1] for batch in opened.train(3)] == [16] * 4
        until(lambda: threads() == [])  # no epoch after the last is prefetched
    assert loader.asked == [(1, 8), (2, 12), (3, 16)]  # nothing was loaded twice
    assert recorded[False].asked == [(0, 16)]
    assert (loader.closed, recorded[False].closed) == (1, 1)
    assert threads() == []


def test_closing_ends_the_threads_of_unfinished_epochs_and_evaluations(recorded):
    opened = recorded_data()
    held = [opened.train(1), opened.evaluation()]
    for passes in held:
        next(passes)
    assert len(threads()) == 2
    opened.close()
    assert threads() == []


@pytest.mark.parametrize("prefetch", [0, 2])
def test_methods_change_training_images_once_their_loader_has_finished_them(recorded, monkeypatch, prefetch):
    """A loader may finish its crops on the training device: what it reads ahead are not yet images."""
    seen: list[tuple[int, tuple[int, ...]]] = []

    def augment(images: torch.Tensor, samples: sampling.Indices, epoch: int) -> torch.Tensor:
        assert (images[:, 0, 0, 0].numpy() == samples + 100).all()
        seen.append((epoch, tuple(images.shape)))
        return images + 50

    made = Recorded.batches

    def unfinished(loader: Recorded, *arguments: Any) -> Iterator[LoadedBatch]:
        for batch in made(loader, *arguments):
            yield replace(batch, finish=lambda images: images[:, :, 1:, 1:] + 100)

    monkeypatch.setattr(Recorded, "batches", unfinished)
    methods = stack()
    monkeypatch.setattr(methods, "augment", augment)
    with data_of(replace(FOLDER, prefetch=prefetch), global_batch=5, methods=methods) as data:
        for batch in data.train(3):
            values = (batch.labels + 150).to(torch.uint8).view(-1, 1, 1, 1)
            assert torch.equal(batch.images, data._normalize(values.expand(-1, 3, 15, 15)))
        assert seen == [(3, (5, 3, 15, 15))] * 4
        next(data.evaluation())
    assert len(seen) == 4


def test_images_in_memory_are_repeated_with_crops_of_their_own():
    with data_of(replace(digits_baseline().data, padding=1, repeats=2), global_batch=64) as opened:
        batch = next(opened.train(1))
    assert torch.equal(batch.labels[:32], batch.labels[32:])
    assert 20 < (batch.images[:32] != batch.images[32:]).flatten(1).any(1).sum() < 32  # 8 of 9 have another place


@pytest.mark.parametrize("mode", ["black", "reflect"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_images_in_memory_are_the_windows_that_seed_epoch_and_sample_draw(mode, world_size):
    config = replace(synthetic_smoke().data, synthetic_train=20, padding=2, flip="random", padding_mode=mode)
    stored = next(open_source(config, None, CPU, train=True, seed=1).batches([np.arange(20)], 1, 16))
    kept = "constant" if mode == "black" else "reflect"
    padded = np.pad(stored.images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode=kept)
    for rank in range(world_size):
        data = data_of(config, rank=rank, world_size=world_size, global_batch=9)
        for epoch, first in ((1, 0), (2, 1)):
            order = sampling.epoch_order(20, 1, epoch)
            for step, batch in enumerate(data.train(epoch, first), first):
                part = sampling.rank_part(order[9 * step : 9 * step + 9], rank, world_size)
                wanted = []
                for sample in part:
                    draws = sampling.random_uniform(1, epoch, np.array([sample]), stream="crop_flip", count=3)[0]
                    top, left = int(draws[0] * 5), int(draws[1] * 5)
                    window = padded[sample, :, top : top + 16, left : left + 16]
                    wanted.append(window[:, :, ::-1] if draws[2] < 0.5 else window)
                images = torch.from_numpy(np.array(wanted, dtype=np.uint8).reshape(-1, 3, 16, 16))
                assert torch.equal(batch.images, data._normalize(images))
                assert torch.equal(batch.labels, stored.labels[torch.from_numpy(part)])


def test_normalized_images_equal_the_formula_and_keep_their_memory_format():
    with data_of(synthetic_smoke().data, global_batch=64) as opened:
        images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8).to(memory_format=torch.channels_last)
        normalised = opened._normalize(images)
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(normalised, (images / 255 - 0.5) / 0.25, atol=1e-5, rtol=1e-5)


@pytest.fixture(params=[*LOADERS, "memory"])
def source(request: pytest.FixtureRequest, prepared: dict[str, Path]) -> tuple[DataConfig, Path | None]:
    """30 training and 6 evaluation images in memory, or in the store that each loader reads, and its folder; skips the
    test without the loader's package."""
    if request.param == "memory":
        noise = synthetic_smoke().data
        return replace(noise, synthetic_train=30, synthetic_eval=6, eval_batch=4), None
    if words := registry.LOADERS[request.param].unavailable():
        pytest.skip(words)
    store = LOADERS[request.param]
    return replace(FOLDER, loader=request.param, store=store, workers=1), prepared[store.format]


def test_a_sample_has_one_crop_in_an_epoch_whatever_loads_it_with_others(source):
    """Ranks, workers, prefetching, and the step at which an epoch is entered."""
    config, folder = replace(source[0], flip="random"), source[1]

    def passes(order: list[tuple[int, int]], ranks: int = 1, seed: int = 1, **changes: int) -> dict[Any, torch.Tensor]:
        """Return pixels and label of each image over all ranks, by epoch and step; enter epochs at the given steps."""
        parts: dict[Any, list[torch.Tensor]] = {}
        options = {"world_size": ranks, "global_batch": 6, "epochs": 3, "seed": seed}
        for rank in range(ranks):
            with data_of(replace(config, **changes), folder, rank=rank, **options) as data:
                steps = [((e, at), batch) for e, first in order for at, batch in enumerate(data.train(e, first), first)]
                for place, batch in [*steps, *(("evaluation", batch) for batch in data.evaluation())]:
                    parts.setdefault(place, []).append(torch.column_stack([batch.images.flatten(1), batch.labels]))
            assert [batch.global_samples for (_, step), batch in steps if step > 2] == [6, 6] * len(order)
        assert threads() == []
        return {place: torch.cat(of_ranks) for place, of_ranks in parts.items()}

    def of_samples(seen: dict[Any, torch.Tensor], epoch: int, seed: int = 1) -> torch.Tensor:
        whole = torch.cat([seen[epoch, step] for step in range(5)])
        return whole[np.argsort(sampling.epoch_order(30, seed, epoch))]

    random = torch.get_rng_state()
    whole = passes([(1, 0), (2, 0), (3, 0)], prefetch=0)
    assert len(whole["evaluation"]) == 6
    for ranks, changes in ((1, {"prefetch": 2}), (3, {"workers": 2})):
        for place, seen in passes([(2, 1), (3, 0), (1, 3)], ranks, **changes).items():
            assert torch.equal(seen, whole[place]), (place, ranks)
    assert torch.equal(torch.get_rng_state(), random)
    one, other = of_samples(whole, 1), of_samples(whole, 2)
    assert torch.equal(one[:, -1], other[:, -1])  # labels
    for different in (other, of_samples(passes([(1, 0)], seed=2), 1, seed=2)):
        assert (one != different).any(1).sum() > 5
