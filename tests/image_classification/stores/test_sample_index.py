"""Index of a split: round trip of names and numbers, and damage."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from image_classification.stores.sample_index import FILE_ROW, ROW, SampleIndex
from judging.ground.errors import DataError

NAMES = st.text("a/. \té\n漢\U0001f600\udce9", max_size=20)  # the last stands for a byte that is not Unicode
IMAGES = st.lists(st.tuples(NAMES, st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1)), max_size=20)


@pytest.mark.parametrize("kind", [FILE_ROW, ROW])
@settings(max_examples=30)
@given(IMAGES)
@example([])
def test_names_labels_and_bytes_come_back(kind, images):
    names, labels, sizes = ([image[column] for image in images] for column in range(3))
    with TemporaryDirectory() as folder:
        files = SampleIndex.of(names, {"label": labels, "bytes": sizes}, kind).write(Path(folder), "train")
        table = SampleIndex.open(Path(folder), "train", files, kind)
        assert [table.name(place) for place in range(len(table))] == names
        assert not names or table.name(-1) == names[-1]
        assert table.labels.tolist() == labels and table.labels.dtype == np.int64
        assert table.rows["bytes"].tolist() == sizes


def test_a_table_of_another_kind_is_refused(tmp_path):
    files = SampleIndex.of(["a"], {"label": [0]}, FILE_ROW).write(tmp_path, "train")
    with pytest.raises(DataError, match="not an index of images"):
        SampleIndex.open(tmp_path, "train", files, ROW)
    with pytest.raises(DataError, match=r"evaluation\.rows\.npy: not listed"):
        SampleIndex.open(tmp_path, "evaluation", files, FILE_ROW)


def test_images_beyond_the_end_of_their_shard_are_refused():
    table = SampleIndex.of(["a", "b"], {"offset": [0, 5], "bytes": [5, 5], "shard": [0, 1]}, ROW)
    table.check_shards(Path("x"), [5, 10])
    for sizes in ([5, 9], [4, 10], [5]):
        with pytest.raises(DataError, match="x: has images beyond"):
            table.check_shards(Path("x"), sizes)
