"""Digest of the data: pixels and labels in memory, or the manifest or index of stored images."""

from dataclasses import replace
from pathlib import Path

import pytest

from image_classification import digits, image_folder
from image_classification.configs import imagenet_methods, synthetic_smoke
from image_classification.datasets import data_digest
from image_classification.settings import DataConfig
from image_classification.stores.manifest import Format, StoreConfig, read_manifest
from tests.image_classification.small_image_data import FOLDER


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
    image_folder.write_index(image_folder.make_index(image_tree, []), image_tree)
    for path in image_tree.rglob("*.*"):
        if path.is_file() and path.parent != image_tree:
            path.unlink()
    found = data_digest(replace(imagenet_methods(), data=FOLDER), image_tree)
    assert found == {"sha256": image_folder.read_index(image_tree).digest, "of": "names, labels and sizes"}


def test_the_digest_of_a_store_is_that_of_its_manifest(prepared: dict[Format, Path]) -> None:
    config = replace(imagenet_methods(), data=replace(FOLDER, store=StoreConfig(format="jpeg")))
    found = data_digest(config, prepared["jpeg"])
    assert found["sha256"] == read_manifest(prepared["jpeg"]).digest
    assert found["of"] == "the manifest, with the SHA-256 of every file"


def test_the_digest_of_noise_depends_on_its_counts_and_not_on_the_seed() -> None:
    config = synthetic_smoke()
    known = data_digest(config, None)
    assert data_digest(replace(config, seed=9), None) == known
    assert digest(replace(config.data, synthetic_train=513)) != known["sha256"]
