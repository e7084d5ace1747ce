"""Reference loader: torchvision's pixels, reproducible batches, and workers that die."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from image_classification.augmentation import train_crops
from image_classification.loaders import pillow
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.pillow import PillowLoader
from judging.ground.errors import DataError
from tests.image_classification.loaders.jpeg_folders import encoded, make_folder, make_shards, photographs, smooth
from tests.image_classification.small_image_data import CPU, FOLDER

RESIZE = 40


@contextmanager
def _open(folder: Path, *, train: bool = True, seed: int = 0, workers: int = 0) -> Iterator[PillowLoader]:
    loader = PillowLoader(replace(FOLDER, workers=workers, eval_resize=RESIZE), folder, CPU, train=train, seed=seed)
    try:
        yield loader
    finally:
        loader.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder"), photographs(30, largest=90))


def _files(folder: Path, split: str) -> list[Path]:
    return sorted((folder / split).rglob("*.jpg"))


def test_training_images_are_torchvisions_resized_crop_of_the_samples_box(
    folder: Path, torchvision: ModuleType
) -> None:
    from torchvision.transforms import functional

    with _open(folder, seed=5) as loader:
        (batch,) = loader.batches([np.arange(30)], 3, 24)
    for sample, path in enumerate(_files(folder, "train")):
        image = Image.open(path)
        boxes, flips = train_crops(5, 3, np.array([sample]), np.array([(image.height, image.width)]), flip="random")
        expected = functional.resized_crop(image, *boxes[0].tolist(), [24, 24])
        expected = functional.hflip(expected) if flips[0] else expected
        assert np.array_equal(batch.images[sample].permute(1, 2, 0).numpy(), np.asarray(expected))


@pytest.mark.parametrize("size", [32, 33, 41, 43, 46, 71])
def test_evaluation_images_are_torchvisions_resize_and_centre_crop_also_padded(
    folder: Path, torchvision: ModuleType, size: int
) -> None:
    from torchvision.transforms import v2

    transform = v2.Compose([v2.Resize(RESIZE), v2.CenterCrop(size)])
    with _open(folder, train=False) as loader:
        (batch,) = loader.batches([np.arange(30)], 0, size)
    for sample, path in enumerate(_files(folder, "val")):
        assert np.array_equal(
            batch.images[sample].permute(1, 2, 0).numpy(), np.asarray(transform(Image.open(path).convert("RGB")))
        )


@pytest.mark.processes
def test_a_batch_is_the_same_for_any_workers_order_of_calls_and_store(folder: Path, tmp_path: Path) -> None:
    parts = [np.array([3, 29, 3]), np.arange(20), np.array([7])]
    with _open(folder) as loader:
        alone = [(batch.images, batch.labels) for batch in loader.batches(parts, 2, 24)]
    shards = make_shards(tmp_path, photographs(30, largest=90))
    for place, workers in ((folder, 2), (shards, 1)):
        with _open(place, workers=workers) as loader:
            list(loader.batches([np.arange(30)], 1, 16))
            again = [(batch.images, batch.labels) for batch in loader.batches(parts[::-1], 2, 24)][::-1]
        for (images, labels), (others, other_labels) in zip(alone, again, strict=True):
            assert torch.equal(images, others)
            assert torch.equal(labels, other_labels)
    with _open(folder) as loader:
        assert not torch.equal(next(iter(loader.batches(parts, 3, 24))).images, alone[0][0])


@pytest.mark.processes
def test_workers_start_with_the_loader_and_end_with_it(folder: Path) -> None:
    process = psutil.Process()
    before = process.children()
    handler = signal.getsignal(signal.SIGCHLD)
    with _open(folder, workers=2) as loader:
        started = [child for child in process.children() if child not in before]
        assert len(started) == 2
        taken: list[LoadedBatch] = []
        thread = threading.Thread(target=lambda: taken.extend(loader.batches([np.arange(8)] * 3, 1, 16)))
        thread.start()
        thread.join(60)
        assert len(taken) == 3
        assert [child for child in process.children() if child not in before] == started
        assert signal.getsignal(signal.SIGCHLD) is handler
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    loader.close()
    with pytest.raises(DataError, match="closed"):
        next(iter(loader.batches([np.arange(2)], 1, 16)))


@pytest.mark.processes
def test_leaving_early_leaves_the_loader_fit(folder: Path) -> None:
    with _open(folder) as loader:
        (expected,) = loader.batches([np.array([4, 2])], 2, 24)
    with _open(folder, workers=2) as loader:
        for _ in loader.batches([np.arange(30)] * 6, 1, 24):
            break
        (batch,) = loader.batches([np.array([4, 2])], 2, 24)
    assert torch.equal(batch.images, expected.images)


def test_the_global_random_generator_is_left_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    with _open(folder) as loader:
        list(loader.batches([np.arange(4)], 1, 16))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [b"", b"GIF89a", encoded(smooth(60, 60))[:700]])
def test_a_corrupt_file_is_an_error_with_its_name_and_no_traceback(tmp_path: Path, data: bytes, workers: int) -> None:
    files = photographs(8, largest=60) | {"train/b/bad.jpg": data}
    with _open(make_folder(tmp_path, files), workers=workers) as loader:
        with pytest.raises(DataError, match=r"train/b/bad.jpg: cannot be decoded") as raised:
            list(loader.batches([np.arange(9)] * 3, 1, 16))
        assert "Traceback" not in str(raised.value)
        assert len(list(loader.batches([np.array([0, 1])] * 2, 1, 16))) == 2


def test_a_corrupt_image_of_a_shard_is_named_with_its_shard(tmp_path: Path) -> None:
    files = photographs(4, largest=60)
    files["train/a/002.jpg"] = files["train/a/002.jpg"][:700]
    folder = make_shards(tmp_path, files)
    with _open(folder) as loader, pytest.raises(DataError, match=r"00000\.\w+: train/a/002.jpg: cannot be decoded"):
        list(loader.batches([np.arange(4)], 1, 16))


@pytest.mark.processes
@pytest.mark.timeout(90)
@pytest.mark.parametrize("consumer", ["main thread", "another thread"])
def test_a_worker_that_is_killed_is_an_error_with_the_name_of_its_image(
    folder: Path, monkeypatch: pytest.MonkeyPatch, consumer: str
) -> None:
    main, decode = os.getpid(), pillow.decode

    def deadly(data: bytes, name: str) -> Image.Image:
        if name.endswith("011.jpg") and os.getpid() != main:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
        return decode(data, name)

    monkeypatch.setattr(pillow, "decode", deadly)  # workers are forked with it
    caught: list[BaseException] = []
    others = psutil.Process().children()  # of tests before this one
    with _open(folder, workers=2) as loader:
        children = [child for child in psutil.Process().children() if child not in others]
        assert len(children) == 2

        def consume() -> None:
            try:
                list(loader.batches([np.arange(begin, begin + 3) for begin in range(0, 30, 3)], 1, 16))
            except BaseException as error:
                caught.append(error)

        if consumer == "main thread":
            consume()
        else:
            thread = threading.Thread(target=consume)
            thread.start()
            end = time.monotonic() + 60
            while thread.is_alive() and time.monotonic() < end:  # nothing is raised here
                time.sleep(0.01)
        (error,) = caught
        assert isinstance(error, DataError)
        assert str(error).count("train/b/011.jpg: the worker process that decoded it died") == 1
        assert "Traceback" not in str(error)
        with pytest.raises(DataError, match="closed"):
            next(iter(loader.batches([np.arange(2)], 1, 16)))
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


@pytest.mark.processes
@pytest.mark.timeout(90)
def test_a_worker_death_before_its_first_image_raises_a_data_error(folder: Path) -> None:
    others = psutil.Process().children()
    with _open(folder, workers=2) as loader:
        for child in psutil.Process().children():
            if child not in others:
                child.kill()
        with pytest.raises(DataError, match="a worker process of loader pillow died before its first image"):
            list(loader.batches([np.arange(3)], 1, 16))


@pytest.mark.processes
def test_insufficient_shared_memory_is_reported_with_a_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    others = psutil.Process().children()  # of tests before this one
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)  # the workers are forked with it
    with _open(folder, workers=1) as loader, pytest.raises(DataError, match="/dev/shm .* --shm-size"):
        list(loader.batches([np.arange(4)], 0, 24))
    assert not [child for child in psutil.Process().children() if child not in others]
