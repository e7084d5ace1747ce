"""Data sources: exact sharding and counts, batches made ready ahead, CIFAR-10's records, and what cannot be run."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from image_classification import cifar10, digits, image_data, image_folder
from image_classification.configs import digits_methods, imagenet_baseline, imagenet_methods, synthetic_smoke
from image_classification.data import DataConfig, data_digest, facts, logged, open_source, preflight
from image_classification.data_files import data_files
from image_classification.idle_settings import idle_settings
from image_classification.image_data import Batch, ImageData
from image_classification.loaders import choose, stored_crops
from image_classification.loaders.loader import LoadedBatch, LoaderName
from image_classification.prepare import prepare
from image_classification.stores.manifest import Format, StoreConfig, read_manifest
from mlevents import keys
from timedrun import order
from timedrun.errors import DataError, UsageError
from timedrun.methods import ProgressiveResizing
from timedrun.ranks.group import Ranks

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, 0, CPU)
PATIENCE = 10.0  # seconds
FOLDER = replace(
    imagenet_methods().data,
    train_size=16,
    eval_resize=20,
    eval_size=16,
    workers=0,
    eval_batch=4,
    drop_last=False,
    loader="pillow",
    store=StoreConfig(),
)
LOADERS: dict[LoaderName, StoreConfig] = {
    "pillow": StoreConfig(format="jpeg"),
    "turbojpeg": StoreConfig(format="jpeg"),
    "raw": StoreConfig(format="raw", size=24),
    "ffcv": StoreConfig(format="beton"),
}


def data_of(config: DataConfig, folder: Path | None, rank: int, world: int, global_batch: int) -> ImageData:
    return ImageData(config, folder, Ranks(rank, world, rank, CPU), global_batch=global_batch, seed=1)


@pytest.fixture
def image_tree(tmp_path: Path) -> Path:
    """Twelve training and six evaluation images of two classes, of several sizes, modes and formats."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for label in ("ant", "bee"):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (30 + 3 * number, 40 - number, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).convert(["RGB", "P", "L"][number % 3])
                image.save(folder / f"{number}.{'jpg' if image.mode == 'L' else 'png'}")
    return tmp_path


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    """Files in CIFAR-10's binary format with random pixels."""
    generator = np.random.default_rng(0)
    for name in cifar10.FILES:
        records = generator.integers(0, 256, (cifar10.PER_FILE, cifar10.RECORD), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path


def test_digits_are_split_the_same_way_every_time_and_without_overlap() -> None:
    (train, train_labels), (held_out, labels) = digits.read("train"), digits.read("evaluation")
    assert len(train) + len(held_out) == digits.TOTAL
    assert len(held_out) == digits.EVALUATION == len(labels)
    assert train.dtype == torch.uint8
    assert (int(train.min()), int(train.max())) == (0, 255)
    assert np.bincount(labels).min() > 0.7 * len(labels) / 10
    from sklearn.datasets import load_digits

    together = torch.cat([train, held_out]).flatten(1).sort(0).values
    original = torch.from_numpy(np.rint(load_digits().data * 255 / 16).astype(np.uint8)).sort(0).values
    assert torch.equal(together, original)
    assert torch.equal(digits.read("train")[1], train_labels)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_sample_is_trained_and_evaluated_once_over_all_ranks(world: int) -> None:
    config = replace(synthetic_smoke().data, synthetic_train=50, synthetic_eval=31, drop_last=False, eval_batch=7)
    whole = open_source(config, None, CPU, train=True, seed=1)
    seen, evaluated, counted = [], 0, 0
    for rank in range(world):
        data = data_of(config, None, rank, world, global_batch=12)
        for batch in data.train(epoch=1):
            seen.append(batch.images)
            counted += batch.global_samples if rank == 0 else 0
        evaluated += sum(len(batch.labels) for batch in data.evaluation())
    images = torch.cat(seen)
    expected = data._normalise(next(whole.batches([np.arange(50)], 1, 16)).images)
    assert torch.equal(images.flatten(1).sort(0).values, expected.flatten(1).sort(0).values)
    assert (len(images), counted, evaluated) == (50, 50, 31)


def test_an_epoch_can_be_entered_at_any_step() -> None:
    data = data_of(synthetic_smoke().data, None, 0, 1, global_batch=64)
    whole = list(data.train(epoch=3))
    rest = list(data.train(epoch=3, first_step=5))
    assert len(whole) == 8
    assert len(rest) == 3
    assert all(torch.equal(a.images, b.images) for a, b in zip(whole[5:], rest, strict=True))


def test_cifar10_records_are_a_label_and_three_colour_planes(cifar_folder: Path) -> None:
    images, labels = cifar10.read(cifar_folder, "evaluation")
    raw = np.fromfile(cifar_folder / "test_batch.bin", dtype=np.uint8)
    assert images.shape == (10_000, 3, 32, 32)
    assert labels[1] == raw[3073]
    assert images[1, 2, 5, 7] == raw[3073 + 1 + 2 * 1024 + 5 * 32 + 7]
    assert len(cifar10.read(cifar_folder, "train")[0]) == 50_000


def test_damaged_cifar10_is_named(cifar_folder: Path) -> None:
    with pytest.raises(DataError, match="SHA-1"):
        cifar10.verify(cifar_folder)
    path = cifar_folder / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[3073] = 11
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch\.bin: image 1 has label 11"):
        cifar10.read(cifar_folder, "evaluation")
    path.write_bytes(content[:-1])
    assert "test_batch.bin: not" in cifar10.problems(cifar_folder)[0]
    path.unlink()
    (cifar_folder / "data_batch_1").touch()
    assert "test_batch.bin missing" in cifar10.problems(cifar_folder)[0]
    assert "pickled" in cifar10.problems(cifar_folder)[0]


def test_real_cifar10_matches_the_published_digests(shared_cifar10: Path) -> None:
    assert cifar10.verify(shared_cifar10) == cifar10.FILES
    _, labels = cifar10.read(shared_cifar10, "train")
    assert np.bincount(labels).tolist() == [5000] * 10


def test_an_image_folder_is_indexed_decoded_and_counted(image_tree: Path) -> None:
    config = replace(imagenet_methods(), data=FOLDER)
    found = prepare(config, image_tree, decode=True, workers=1)
    assert (found["classes"], found["train"], found["evaluation"]) == (2, 12, 6)
    known = facts(FOLDER, image_tree)
    assert (known.train_samples, known.eval_samples, known.classes) == (12, 6, 2)
    with data_of(FOLDER, image_tree, 0, 1, global_batch=5) as opened:
        batches = list(opened.train(epoch=1))
        assert [len(batch.labels) for batch in batches] == [5, 5, 2]
        assert batches[0].images.shape == (5, 3, 16, 16)
        assert sum(len(batch.labels) for batch in opened.evaluation()) == 6
        assert same(batches, list(opened.train(epoch=1)))


def test_a_folder_that_is_not_prepared_or_was_edited_is_refused(image_tree: Path) -> None:
    with pytest.raises(DataError, match="Run: timedrun prepare"):
        facts(FOLDER, image_tree)
    path = image_folder.write_index(image_folder.make_index(image_tree), image_tree)
    path.write_text(path.read_text().replace("bee", "fly"))
    with pytest.raises(DataError, match="damaged or edited"):
        facts(FOLDER, image_tree)
    (image_tree / "val" / "wasp").mkdir()
    with pytest.raises(DataError, match="class 'wasp' is not among the 2 classes"):
        image_folder.make_index(image_tree)


def test_a_corrupt_image_is_named_by_a_run(image_tree: Path) -> None:
    image_folder.write_index(image_folder.make_index(image_tree), image_tree)
    path = image_tree / "train" / "bee" / "3.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\nnot an image".ljust(path.stat().st_size, b"."))
    with (
        data_of(FOLDER, image_tree, 0, 1, global_batch=12) as opened,
        pytest.raises(DataError, match=r"bee/3\.png: cannot be decoded"),
    ):
        list(opened.train(epoch=1))
    assert threads() == []


@pytest.mark.parametrize("store", [*LOADERS.values(), StoreConfig()], ids=lambda store: store.format)
def test_facts_of_a_store_come_from_its_manifest(prepared: dict[Format, Path], store: StoreConfig) -> None:
    known = facts(replace(FOLDER, store=store), prepared[store.format])
    assert (known.train_samples, known.eval_samples, known.classes, known.channels) == (29, 6, 2, 3)


@pytest.mark.parametrize("store", LOADERS.values(), ids=lambda store: store.format)
def test_a_store_of_another_format_is_told_with_what_reads_it(prepared: dict[Format, Path], store: StoreConfig) -> None:
    other: Format = "raw" if store.format != "raw" else "jpeg"
    with pytest.raises(DataError, match=rf"holds {other}.*the config wants format {store.format}"):
        facts(replace(FOLDER, store=store), prepared[other])


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_store_that_loses_a_file_while_it_is_read_is_an_error_by_the_next_epoch(
    prepared: dict[Format, Path], tmp_path: Path, damage: str
) -> None:
    folder = shutil.copytree(prepared["jpeg"], tmp_path / "store")
    config = replace(FOLDER, loader="pillow", store=LOADERS["pillow"], prefetch=0, workers=0)
    with ImageData(config, folder, ALONE, global_batch=6, seed=1, last_epoch=3) as data:
        assert len(list(data.train(1))) == 5
        (shard,) = (folder / "train").glob("*.jpegs")
        if damage == "gone":
            shard.unlink()
        else:
            os.truncate(shard, 100)
        with pytest.raises(DataError, match=shard.name):
            list(data.train(2))


def same(first: Sequence[Batch], second: Sequence[Batch]) -> bool:
    """Whether both hold the same images, labels and counts."""
    return len(first) == len(second) and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and a.global_samples == b.global_samples
        for a, b in zip(first, second, strict=True)
    )


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stored_epoch_can_be_entered_at_any_step_with_any_loader(
    prepared: dict[Format, Path], name: LoaderName, prefetch: int
) -> None:
    if words := choose.unavailable(name):
        pytest.skip(words)
    store = LOADERS[name]
    config = replace(FOLDER, loader=name, store=store, prefetch=prefetch, workers=1 if name != "pillow" else 0)
    folder = prepared[store.format]

    def opened() -> ImageData:
        return ImageData(config, folder, ALONE, global_batch=6, seed=1, last_epoch=3)

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
def test_the_ranks_of_a_stored_epoch_share_it_exactly(prepared: dict[Format, Path], name: LoaderName) -> None:
    if words := choose.unavailable(name):
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


class Recorded:
    """A loader that makes images of one value a sample, and tells what was asked of it."""

    def __init__(self, count: int = 20) -> None:
        self.count, self.asked, self.made, self.closed = count, list[tuple[int, int]](), list[int](), 0
        self.fail_in = -1

    def __len__(self) -> int:
        return self.count

    def batches(self, parts: Sequence[order.Indices], epoch: int, size: int) -> Iterator[LoadedBatch]:
        self.asked.append((epoch, size))
        for part in parts:
            if epoch == self.fail_in:
                raise DataError(f"epoch {epoch}: cannot be read")
            self.made.append(epoch)
            values = torch.from_numpy(part).to(torch.uint8)
            yield LoadedBatch(values.view(-1, 1, 1, 1).expand(-1, 3, size, size).clone(), torch.from_numpy(part))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[bool, Recorded]:
    """The loaders of training (True) and evaluation that every ImageData of the test opens."""
    loaders = {True: Recorded(), False: Recorded()}
    monkeypatch.setattr(image_data, "open_source", lambda *given, train, seed: loaders[train])
    return loaders


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.001)


def recorded_data(prefetch: int = 2, last_epoch: int = 9, sizes: Callable[[int], int] | None = None) -> ImageData:
    config = replace(FOLDER, prefetch=prefetch)
    return ImageData(config, None, ALONE, global_batch=5, seed=1, size_at=sizes, last_epoch=last_epoch)


def test_the_first_batches_of_the_next_epoch_are_ready_at_its_size_before_it_begins(
    recorded: dict[bool, Recorded],
) -> None:
    loader = recorded[True]
    with recorded_data(sizes=lambda epoch: 8 + 4 * epoch) as opened:
        assert loader.asked == []
        assert [batch.images.shape[-1] for batch in opened.train(1)] == [12] * 4
        eventually(lambda: loader.made == [1] * 4 + [2] * 2)
        assert sum(len(batch.labels) for batch in opened.evaluation()) == 20  # meanwhile
        assert [batch.images.shape[-1] for batch in opened.train(2)] == [16] * 4
        eventually(lambda: loader.made == [1] * 4 + [2] * 4 + [3] * 2)
    assert loader.asked == [(1, 12), (2, 16), (3, 20)]  # nothing was loaded twice
    assert recorded[False].asked == [(0, 16)]
    assert (loader.closed, recorded[False].closed) == (1, 1)
    assert threads() == []


def test_nothing_is_loaded_beyond_the_last_epoch(recorded: dict[bool, Recorded]) -> None:
    with recorded_data(last_epoch=2) as opened:
        for epoch in (1, 2):
            list(opened.train(epoch))
        eventually(lambda: threads() == [])
        assert recorded[True].asked == [(1, 16), (2, 16)]


def test_without_a_last_epoch_each_is_loaded_for_itself(recorded: dict[bool, Recorded]) -> None:
    with recorded_data(last_epoch=0) as opened:
        for epoch in (1, 2, 5):
            assert len(list(opened.train(epoch))) == 4
    assert recorded[True].asked == [(1, 16), (2, 16), (5, 16)]


def test_another_epoch_or_step_than_the_next_drops_what_was_made_ready(recorded: dict[bool, Recorded]) -> None:
    with recorded_data() as opened:
        first = list(opened.train(1))
        assert same(list(opened.train(1, first_step=2)), first[2:])
        fourth = list(opened.train(4))
        assert not same(fourth, first)
        assert len(threads()) == 1
    assert [epoch for epoch, _ in recorded[True].asked if epoch in (1, 4)] == [1, 1, 4]


def test_an_epoch_that_was_left_goes_on_where_it_was_left(recorded: dict[bool, Recorded]) -> None:
    with recorded_data() as opened:
        whole = list(opened.train(1))
    with recorded_data() as opened:
        for begun, batch in zip(opened.train(1), whole, strict=False):
            assert same([begun], [batch])
            break
        assert same(list(opened.train(1, first_step=1)), whole[1:])
        assert list(opened.train(1, first_step=4)) == []


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_that_was_met_ahead_is_told_in_its_own_epoch(recorded: dict[bool, Recorded], prefetch: int) -> None:
    recorded[True].fail_in = 2
    with recorded_data(prefetch) as opened:
        assert len(list(opened.train(1))) == 4
        for _ in range(2):  # and again, for one who asks again
            with pytest.raises(DataError, match="epoch 2: cannot be read"):
                list(opened.train(2))
        assert len(list(opened.train(3))) == 4
    assert threads() == []


def test_a_run_that_breaks_off_leaves_no_thread_and_closes_both_splits(recorded: dict[bool, Recorded]) -> None:
    with pytest.raises(KeyError), recorded_data() as opened:
        for _ in opened.train(1):
            raise KeyError("in the step")
    assert threads() == []
    assert (recorded[True].closed, recorded[False].closed) == (1, 1)
    with pytest.raises(KeyError), recorded_data() as opened:
        for _ in opened.evaluation():
            raise KeyError("in the evaluation")
    assert threads() == []


def test_closing_ends_the_threads_of_epochs_and_evaluations_that_are_still_held(recorded: dict[bool, Recorded]) -> None:
    opened = recorded_data()
    held = [opened.train(1), opened.evaluation()]
    for batches in held:
        next(batches)
    assert len(threads()) == 2
    opened.close()
    assert threads() == []


def test_a_loader_that_gives_too_few_batches_is_an_error(
    recorded: dict[bool, Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Recorded.batches
    monkeypatch.setattr(Recorded, "batches", lambda self, parts, epoch, size: original(self, parts[1:], epoch, size))
    with recorded_data() as opened, pytest.raises(ValueError, match="shorter"):
        list(opened.train(1))


def test_the_training_split_is_closed_where_the_evaluation_split_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Recorded()

    def opened(*given: Any, train: bool, seed: int) -> Recorded:
        if not train:
            raise DataError("no evaluation")
        return training

    monkeypatch.setattr(image_data, "open_source", opened)
    with pytest.raises(DataError, match="no evaluation"):
        recorded_data()
    assert training.closed == 1


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 40), share=st.integers(1, 4), world=st.integers(1, 8), drop_last=st.booleans(),
    quasi=st.booleans(),
)  # fmt: skip
def test_every_sample_of_an_epoch_goes_to_one_rank_with_either_order(
    count: int, share: int, world: int, drop_last: bool, quasi: bool
) -> None:
    config = replace(
        synthetic_smoke().data, synthetic_train=count, synthetic_eval=1, train_size=1, eval_size=1, drop_last=drop_last
    )
    if quasi:
        config = replace(config, order="quasi_random", order_block=3, order_window=2)
    if drop_last and count < share * world:
        return
    seen: list[int] = []
    for rank in range(world):
        opened = data_of(config, None, rank, world, global_batch=share * world)
        opened.train_source.labels = torch.arange(count)  # type: ignore[attr-defined]
        seen += [int(label) for batch in opened.train(epoch=2) for label in batch.labels]
    assert len(seen) == len(set(seen)) == (count // (share * world) * share * world if drop_last else count)


def test_images_in_memory_need_no_thread_and_have_one_size() -> None:
    with data_of(replace(synthetic_smoke().data, synthetic_train=128), None, 0, 1, global_batch=64) as opened:
        for _ in opened.train(1):
            assert threads() == []
    with (
        ImageData(synthetic_smoke().data, None, ALONE, global_batch=64, seed=1, size_at=lambda epoch: 8) as opened,
        pytest.raises(UsageError, match="are 16 px a side and are not loaded at 8"),
    ):
        list(opened.train(1))


def test_normalised_images_are_those_of_the_textbook_and_keep_their_memory_format() -> None:
    with data_of(synthetic_smoke().data, None, 0, 1, global_batch=64) as opened:
        images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8).to(memory_format=torch.channels_last)
        normalised = opened._normalise(images)
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(normalised, (images / 255 - 0.5) / 0.25, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("config", [imagenet_baseline, imagenet_methods, digits_methods, synthetic_smoke])
def test_no_config_sets_what_does_nothing(config: Callable[[], Any]) -> None:
    assert idle_settings(config().data) == []


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (digits_methods, {"read_ahead": True}, "without effect for digits and order random: data.read_ahead"),
        (digits_methods, {"loader": "ffcv", "prefetch": 9}, "data.loader (leave it at 'pillow'), data.prefetch (leave"),
        (
            digits_methods,
            {"store": StoreConfig(format="raw", size=9)},
            "data.store.format (leave it at 'folder'), data",
        ),
        (digits_methods, {"synthetic_train": 4}, "data.synthetic_train (leave it at 0)"),
        (digits_methods, {"train_size": 16}, "digits has images of 8 px"),
        (imagenet_methods, {"padding": 4, "flip": True}, "data.padding (leave it at 0), data.flip"),
        (imagenet_methods, {"order_block": 8}, "order random: data.order_block (leave it at 256)"),
        (
            imagenet_methods,
            {"store": StoreConfig(format="jpeg", size=9)},
            "format jpeg and order random: data.store.size",
        ),
        (imagenet_methods, {"store": StoreConfig(format="raw", size=9, jpeg_quality=3)}, "data.store.jpeg_quality"),
        (imagenet_methods, {"order": "quasi_random", "order_window": 0}, "count from 1"),
        (imagenet_methods, {"prefetch": -1}, "count from 0"),
    ],
)
def test_settings_that_do_nothing_are_told(config: Callable[[], Any], changes: dict[str, Any], words: str) -> None:
    chosen = config()
    found = preflight(replace(chosen, data=replace(chosen.data, **changes)), None, 1)
    assert sum(words in line for line in found) == 1, found


def test_loading_at_the_size_of_the_epoch_is_refused_for_images_in_memory() -> None:
    method = ProgressiveResizing(where="loader")
    found = preflight(replace(synthetic_smoke(), methods=(method,)), None, 1)
    assert [line for line in found if "--methods.progressive-resizing.where batch" in line]
    assert preflight(replace(synthetic_smoke(), methods=(ProgressiveResizing(),)), None, 1) == []


def test_preflight_of_stored_images_tells_all_at_once_and_nothing_twice(prepared: dict[Format, Path]) -> None:
    config = imagenet_methods()
    small = replace(config, global_batch=8, model=replace(config.model, classes=2), data=FOLDER)
    assert preflight(small, prepared["folder"], 1) == []
    assert preflight(replace(small, data=replace(FOLDER, store=StoreConfig(format="jpeg"))), prepared["jpeg"], 1) == []
    wrong = replace(config, data=replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=32), padding=3))
    found = preflight(wrong, prepared["raw"], 1)
    for words in ("data.padding", "made with size 24, the config has 32", "2 classes, the model 1000", "global batch"):
        assert sum(words in line for line in found) == 1, words
    missing = replace(wrong, data=replace(wrong.data, eval_resize=22))
    found = preflight(missing, prepared["raw"], 1)
    assert sum("no evaluation images of short side 22" in line for line in found) == 1
    assert len([line for line in preflight(wrong, prepared["folder"], 1) if "no whole store" in line]) == 1
    assert any("needs a folder" in line for line in preflight(wrong, None, 1))


def test_the_log_says_what_loads() -> None:
    assert logged(imagenet_baseline().data) == {
        keys.DATA_LOADER: "turbojpeg",
        keys.DATA_STORE: "jpeg, original size",
        keys.DATA_ORDER: "random",
        keys.DATA_WORKERS: 4,
        keys.DATA_PREFETCH: 3,
    }
    quasi = replace(digits_methods().data, order="quasi_random")
    assert logged(quasi) == {
        keys.DATA_LOADER: "memory",
        keys.DATA_ORDER: "quasi_random, 64 blocks of 256 samples",
    }


def test_the_log_says_where_raw_crops_are_not_scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=24))
    monkeypatch.setattr(stored_crops, "SCRIPTED", True)
    assert logged(config)[keys.DATA_LOADER] == "raw"
    monkeypatch.setattr(stored_crops, "SCRIPTED", False)
    assert logged(config)[keys.DATA_LOADER] == "raw, not scripted"


@pytest.mark.parametrize("loader", ["pillow", "turbojpeg", "raw"])
def test_an_evaluation_with_nothing_made_ready_ahead_is_that_with_it(
    loader: LoaderName, prepared: dict[Format, Path]
) -> None:
    store = LOADERS[loader]

    def images(prefetch: int) -> torch.Tensor:
        config = replace(FOLDER, loader=loader, store=store, prefetch=prefetch)
        with torch.inference_mode(), data_of(config, prepared[store.format], 0, 1, 6) as opened:
            return torch.cat([batch.images for batch in opened.evaluation()])

    assert torch.equal(images(0), images(2))


def test_the_files_of_a_store_are_those_that_a_run_reads(prepared: dict[Format, Path]) -> None:
    found = data_files(replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=24)), prepared["raw"])
    assert found is not None
    names = [path.relative_to(prepared["raw"]).as_posix() for path in found.paths()]
    assert names[0].startswith("train") and names[-1].startswith("evaluation_20")
    assert set(names) == set(read_manifest(prepared["raw"]).files)
    assert found.bytes == sum(path.stat().st_size for path in found.paths())
    assert found.sample() == list(found.paths())
    folder = data_files(FOLDER, prepared["folder"])
    assert folder is not None
    paths = list(folder.paths())
    assert (len(folder), len(paths)) == (35, 35)
    assert folder.bytes == sum(path.stat().st_size for path in paths)
    assert folder.sample() == paths
    assert data_files(digits_methods().data, None) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: replace(c, model=replace(c.model, classes=3)), "10 classes, the model 3"),
        (lambda c: replace(c, model=replace(c.model, channels=1)), "3 channels, the model 1"),
        (lambda c: replace(c, global_batch=1024), "more than the 512 training samples"),
        (lambda c: replace(c, data=replace(c.data, source="cifar10")), "needs a folder"),
    ],
)
def test_what_cannot_fit_is_found_before_the_run(change: Callable[..., object], words: str) -> None:
    assert any(words in failure for failure in preflight(change(synthetic_smoke()), None, 1))  # type: ignore[arg-type]


def digest(config: DataConfig, folder: Path | None = None) -> str:
    return data_digest(replace(synthetic_smoke(), data=config), folder)["sha256"]


def test_the_digest_of_data_held_in_memory_is_that_of_every_pixel_and_label(
    cifar_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = digest(replace(FOLDER, source="cifar10"), cifar_folder)
    assert digest(replace(FOLDER, source="cifar10", train_size=8), cifar_folder) == known
    with open(cifar_folder / "test_batch.bin", "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert digest(replace(FOLDER, source="cifar10"), cifar_folder) != known
    digits_digest = digest(replace(FOLDER, source="digits"))
    read = digits.read
    monkeypatch.setattr(digits, "read", lambda split: (read(split)[0] + (split == "evaluation"), read(split)[1]))
    assert digest(replace(FOLDER, source="digits")) != digits_digest


def test_the_digest_of_an_image_folder_is_of_its_index_and_reads_no_image(image_tree: Path) -> None:
    image_folder.write_index(image_folder.make_index(image_tree), image_tree)
    for path in image_tree.rglob("*.*"):
        if path.is_file() and path.parent != image_tree:
            path.unlink()
    found = data_digest(replace(imagenet_methods(), data=FOLDER), image_tree)
    assert found == {"sha256": image_folder.read_index(image_tree).digest, "of": "names, labels and sizes"}


def test_the_digest_of_a_store_is_its_manifests(prepared: dict[Format, Path]) -> None:
    config = replace(imagenet_methods(), data=replace(FOLDER, store=StoreConfig(format="jpeg")))
    found = data_digest(config, prepared["jpeg"])
    assert found["sha256"] == read_manifest(prepared["jpeg"]).digest
    assert found["of"] == "the manifest, with the SHA-256 of every file"


def test_the_digest_of_noise_is_of_its_counts_whatever_the_runs_seed() -> None:
    config = synthetic_smoke()
    known = data_digest(config, None)
    assert data_digest(replace(config, seed=9), None) == known
    assert digest(replace(config.data, synthetic_train=513)) != known["sha256"]
