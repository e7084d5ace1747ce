"""Data sources: exact sharding and counts, CIFAR-10's binary records, ImageNet's layout, and damaged input named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from image_classification import cifar10, digits, image_folder
from image_classification.configs import imagenet_methods, synthetic_smoke
from image_classification.data import DataConfig, ImageData, data_digest, facts, open_source, preflight
from image_classification.prepare import prepare
from timedrun.errors import DataError
from timedrun.ranks import Ranks

CPU = torch.device("cpu")
FOLDER = replace(
    imagenet_methods().data, train_size=16, eval_resize=20, eval_size=16, workers=0, eval_batch=4, drop_last=False
)


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
    expected = data._normalise(next(whole.batches([np.arange(50)], 1))[0])
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
    data = data_of(FOLDER, image_tree, 0, 1, global_batch=5)
    batches = list(data.train(epoch=1))
    assert [len(batch.labels) for batch in batches] == [5, 5, 2]
    assert batches[0].images.shape == (5, 3, 16, 16)
    assert sum(len(batch.labels) for batch in data.evaluation()) == 6
    again = list(data.train(epoch=1))
    assert all(torch.equal(a.images, b.images) for a, b in zip(batches, again, strict=True))


def test_evaluation_crops_are_torchvisions_to_the_pixel(image_tree: Path, torchvision: ModuleType) -> None:
    from torchvision.transforms.v2 import CenterCrop, Compose, Resize

    reference = Compose([Resize(20), CenterCrop(16)])
    for path in sorted((image_tree / "val").rglob("*.*")):
        image = image_folder.decode(path)
        ours = np.asarray(image_folder.centre_crop(image, 20, 16))
        assert np.array_equal(ours, np.asarray(reference(image)))


def test_a_corrupt_image_is_named_by_prepare_and_by_a_run(image_tree: Path) -> None:
    image_folder.write_index(image_folder.make_index(image_tree), image_tree)
    (image_tree / "train" / "bee" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    with pytest.raises(DataError, match=r"1 of 18 images cannot be decoded(.|\n)*bee/3\.png"):
        prepare(replace(imagenet_methods(), data=FOLDER), image_tree, decode=True, workers=1)
    with pytest.raises(DataError, match=r"bee/3\.png: cannot be decoded"):
        list(data_of(FOLDER, image_tree, 0, 1, global_batch=12).train(epoch=1))


def test_a_folder_that_is_not_prepared_or_was_edited_is_refused(image_tree: Path) -> None:
    with pytest.raises(DataError, match="Run: timedrun prepare"):
        facts(FOLDER, image_tree)
    path = image_folder.write_index(image_folder.make_index(image_tree), image_tree)
    path.write_text(path.read_text().replace("bee/1", "bee/9"))
    with pytest.raises(DataError, match="damaged or edited"):
        facts(FOLDER, image_tree)
    (image_tree / "val" / "wasp").mkdir()
    with pytest.raises(DataError, match="class 'wasp' is not among the 2 classes"):
        image_folder.make_index(image_tree)


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
        if path.name != image_folder.INDEX:
            path.unlink()
    found = data_digest(replace(imagenet_methods(), data=FOLDER), image_tree)
    assert found == {"sha256": image_folder.read_index(image_tree).digest, "of": "names and labels"}


def test_the_digest_of_noise_is_of_its_counts_whatever_the_runs_seed() -> None:
    config = synthetic_smoke()
    known = data_digest(config, None)
    assert data_digest(replace(config, seed=9), None) == known
    assert digest(replace(config.data, synthetic_train=513)) != known["sha256"]
