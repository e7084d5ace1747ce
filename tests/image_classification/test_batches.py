"""Batches of one rank: exact counts, prefetching across epochs, and no thread left after closing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from image_classification import batches
from image_classification.augmentation import Flip, flips
from image_classification.batches import ImageBatches, open_source
from image_classification.configs import digits_baseline, synthetic_smoke
from image_classification.loaders import registry
from image_classification.loaders.loader import LoadedBatch
from image_classification.settings import DataConfig
from judging.ground.errors import UsageError
from tests.image_classification.small_image_data import CPU, FOLDER, LOADERS, data_of, eventually, same, threads
from timedrun.methods import ProgressiveResizing, Stack, stack
from timedrun.training import sampling


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_sample_is_trained_and_evaluated_once_over_all_ranks(world_size):
    config = replace(synthetic_smoke().data, synthetic_train=50, synthetic_eval=31, drop_last=False, eval_batch=7)
    whole = open_source(config, None, CPU, train=True, seed=1)
    seen, evaluated, counted = [], 0, 0
    for rank in range(world_size):
        data = data_of(config, rank=rank, world_size=world_size, global_batch=12)
        for batch in data.train(epoch=1):
            seen.append(batch.images)
            counted += batch.global_samples if rank == 0 else 0
        evaluated += sum(len(batch.labels) for batch in data.evaluation())
    images = torch.cat(seen)
    expected = data._normalize(next(whole.batches([np.arange(50)], 1, 16)).images)
    assert torch.equal(images.flatten(1).sort(0).values, expected.flatten(1).sort(0).values)
    assert (len(images), counted, evaluated) == (50, 50, 31)


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


def test_the_next_epoch_is_prefetched_at_its_size_before_it_begins(recorded):
    loader, resizing = recorded[True], ProgressiveResizing(start=0.5, delay=0, finetune=0, increment=4, where="loader")
    with recorded_data(3, stack(resizing)) as opened:
        assert loader.asked == []
        assert [batch.images.shape[-1] for batch in opened.train(1)] == [8] * 4
        eventually(lambda: loader.made == [1] * 4 + [2] * 2)
        assert sum(len(batch.labels) for batch in opened.evaluation()) == 20
        assert [batch.images.shape[-1] for batch in opened.train(2)] == [12] * 4
        eventually(lambda: loader.made == [1] * 4 + [2] * 4 + [3] * 2)
    assert loader.asked == [(1, 8), (2, 12), (3, 16)]  # nothing was loaded twice
    assert recorded[False].asked == [(0, 16)]
    assert (loader.closed, recorded[False].closed) == (1, 1)
    assert threads() == []


def test_no_epoch_after_the_last_is_prefetched(recorded):
    with recorded_data(2) as opened:
        for epoch in (1, 2):
            list(opened.train(epoch))
        eventually(lambda: threads() == [])
        assert recorded[True].asked == [(1, 16), (2, 16)]
        assert len(list(opened.train(3))) == 4  # unless it is asked for


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


def test_images_in_memory_need_no_thread_and_have_one_size():
    with data_of(replace(synthetic_smoke().data, synthetic_train=128), global_batch=64) as opened:
        for _ in opened.train(1):
            assert threads() == []
    smaller = stack(ProgressiveResizing(start=0.5, where="loader"))
    with (
        data_of(digits_baseline().data, global_batch=64, epochs=2, methods=smaller) as opened,
        pytest.raises(UsageError, match="have 8 px per side and cannot be loaded at 4"),
    ):
        list(opened.train(1))


@pytest.mark.parametrize("mode", ["black", "reflect"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_images_in_memory_are_the_windows_that_seed_epoch_and_sample_draw(mode, world_size):
    config = replace(
        synthetic_smoke().data, synthetic_train=20, padding=2, flip="random", padding_mode=mode, drop_last=False
    )
    stored = next(open_source(config, None, CPU, train=True, seed=1).batches([np.arange(20)], 1, 16))
    kept = "constant" if mode == "black" else "reflect"
    padded = np.pad(stored.images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode=kept)
    for rank in range(world_size):
        data = data_of(config, rank=rank, world_size=world_size, global_batch=9)  # the last step has 2 samples
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


@pytest.fixture(params=LOADERS)
def stored(request: pytest.FixtureRequest) -> DataConfig:
    """The data of a store that each loader reads; skips the test without the loader's package."""
    if words := registry.LOADERS[request.param].unavailable():
        pytest.skip(words)
    return replace(FOLDER, loader=request.param, store=LOADERS[request.param], workers=1)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stored_epoch_is_entered_at_any_step(prepared, stored, prefetch):
    config, folder = replace(stored, prefetch=prefetch), prepared[stored.store.format]

    def opened() -> ImageBatches:
        return data_of(config, folder, global_batch=6, epochs=3)

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


def test_every_loader_mirrors_the_images_that_alternate(prepared, stored):
    def images(flip: Flip, epoch: int) -> torch.Tensor:
        with data_of(replace(stored, flip=flip), prepared[stored.store.format], global_batch=29) as data:
            return next(data.train(epoch)).images

    for epoch in (1, 2):
        plain, alternating = images("none", epoch), images("alternating", epoch)
        near = [(alternating - side).abs().amax((1, 2, 3)).numpy() for side in (plain, plain.flip(3))]
        (samples,) = sampling.steps(29, 1, epoch, 29)
        mirrored = flips("alternating", 1, epoch, samples, np.zeros(29))
        assert np.where(mirrored, near[1], near[0]).max() < 0.05  # rounding of 8 bits, normalized
        assert np.where(mirrored, near[0], near[1]).min() > 0.2
