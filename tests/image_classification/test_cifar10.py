"""CIFAR-10's binary records: layout, and errors of damaged or wrong files."""

import os
from pathlib import Path

import numpy as np
import pytest

from image_classification import cifar10
from judging.ground.errors import DataError


def test_cifar10_records_are_a_label_and_three_colour_planes(cifar_folder):
    images, labels = cifar10.read(cifar_folder, "evaluation")
    raw = np.fromfile(cifar_folder / "test_batch.bin", dtype=np.uint8)
    assert images.shape == (50, 3, 32, 32)
    assert labels[1] == raw[3073]
    assert images[1, 2, 5, 7] == raw[3073 + 1 + 2 * 1024 + 5 * 32 + 7]
    assert len(cifar10.read(cifar_folder, "train")[0]) == 250


def test_damaged_cifar10_is_named(cifar_folder):
    with pytest.raises(DataError, match="SHA-1"):
        cifar10.verify(cifar_folder)
    path = cifar_folder / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[3073] = 11
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch\.bin: image 1 has label 11"):
        cifar10.read(cifar_folder, "evaluation")
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"test_batch\.bin: not 153,650 bytes"):
        cifar10.require(cifar_folder)
    path.unlink()
    (cifar_folder / "data_batch_1").touch()
    with pytest.raises(DataError, match=r"test_batch\.bin missing.*pickled"):
        cifar10.require(cifar_folder)


def test_real_cifar10_matches_the_published_digests():
    if "TIMEDRUN_TEST_CIFAR10" not in os.environ:
        pytest.skip("TIMEDRUN_TEST_CIFAR10 does not name a folder with CIFAR-10's binary batches")
    folder = Path(os.environ["TIMEDRUN_TEST_CIFAR10"])
    assert cifar10.verify(folder) == cifar10.FILES
    _, labels = cifar10.read(folder, "train")
    assert np.bincount(labels).tolist() == [5000] * 10
