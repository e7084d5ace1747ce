"""Index of a split: round trip of names and numbers, and damage."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from image_classification.stores.sample_index import SampleIndex
from judging.ground.atomic_file import StoredFile
from judging.ground.errors import DataError

NAMES = st.text("a/. \té\n漢\U0001f600\udce9", max_size=20)  # the last stands for a byte that is not Unicode
IMAGES = st.lists(st.tuples(NAMES, st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1)), max_size=20)


@settings(max_examples=30)
@given(IMAGES)
@example([])
def test_names_labels_and_bytes_come_back(images):
    names, labels, sizes = ([image[column] for image in images] for column in range(3))
    with TemporaryDirectory() as folder:
        files = SampleIndex.of(names, {"label": labels, "bytes": sizes}).write(Path(folder), "train")
        table = SampleIndex.open(Path(folder), "train", files)
        assert [table.name(place) for place in range(len(table))] == names
        assert not names or table.name(-1) == names[-1]
        assert table.labels.tolist() == labels and table.labels.dtype == np.int64
        assert table.rows["bytes"].tolist() == sizes


def test_other_columns_and_a_split_that_is_not_there_are_refused(tmp_path):
    files = SampleIndex.of(["a"], {"label": [0]}).write(tmp_path, "train")
    path = tmp_path / "train.rows.npy"
    np.save(path, np.zeros(3))
    files[path.name] = StoredFile(bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(DataError, match="not an index of images"):
        SampleIndex.open(tmp_path, "train", files)
    with pytest.raises(DataError, match=r"evaluation\.rows\.npy: not listed"):
        SampleIndex.open(tmp_path, "evaluation", files)


def test_images_beyond_the_end_of_their_shard_are_refused():
    table = SampleIndex.of(["a", "b"], {"offset": [0, 5], "bytes": [5, 5], "shard": [0, 1]})
    table.check_shards(Path("x"), [5, 10])
    for sizes in ([5, 9], [4, 10], [5]):
        with pytest.raises(DataError, match="x: has images beyond"):
            table.check_shards(Path("x"), sizes)
