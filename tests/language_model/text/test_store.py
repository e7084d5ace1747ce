"""What the files hold is what is read, in any order; a store that is not whole is refused by the name of the file;
the synthetic store is a whole one with the lengths of MLPerf BERT's training set."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from judging.ground.errors import DataError
from language_model.text import store as text_store
from language_model.text.synthetic_store import SPECIAL, WORDS_FROM, sampled_lengths, write_synthetic_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of 40 training and 8 evaluation sequences."""
    write_synthetic_store(tmp_path / "store", 40, longest=64, vocabulary=9000)
    return tmp_path / "store"


def pieces(path: Path, kind: str, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The numbers in the file, so many for each sequence."""
    return np.split(np.fromfile(path, kind).astype(np.int64), np.cumsum(counts)[:-1])


@pytest.mark.parametrize(("vocabulary", "kind"), [(0, "<u2"), (1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_reading_gives_what_the_files_hold_in_the_order_asked(tmp_path, tiny_store, vocabulary, kind):
    folder = tmp_path if vocabulary else tiny_store  # of text, whose sequences have several masks
    if vocabulary:
        write_synthetic_store(folder, 40, longest=64, vocabulary=vocabulary)
    wanted = np.array([7, 0, 5, 7, 2], dtype=np.int64)
    for split in text_store.SPLITS:
        store, index = text_store.RaggedStore(folder, split), np.load(folder / split / "index.npy").astype(int)
        assert store.lengths.tolist() == index[:, 0].tolist() and len(store) == len(index)
        record = store.read(wanted)
        assert record.tokens.dtype == record.first.dtype == record.lengths.dtype == np.int64
        assert np.array_equal(np.stack([record.lengths, record.first], 1), index[wanted, :2])
        tokens = pieces(folder / split / "tokens.bin", kind, index[:, 0])
        assert record.tokens.tolist() == np.concatenate([tokens[number] for number in wanted]).tolist()
        assert isinstance(record, text_store.MaskedSequences) == (split == "evaluation")
        if isinstance(record, text_store.MaskedSequences):
            masked = pieces(folder / split / "masked.bin", "<u2", index[:, 2])
            labels = pieces(folder / split / "labels.bin", kind, index[:, 2])
            starts = np.cumsum(record.lengths) - record.lengths
            expected = [start + masked[number] for start, number in zip(starts, wanted, strict=True)]
            assert record.masked.tolist() == np.concatenate(expected).tolist()
            assert record.labels.tolist() == np.concatenate([labels[number] for number in wanted]).tolist()


def edited(**changes: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), **changes}).encode()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("train/tokens.bin", lambda content: content[:-1], r"train/tokens\.bin: truncated"),
        ("train/tokens.bin", lambda content: content + b"\0", r"train/tokens\.bin: too long"),
        ("train/tokens.bin", None, r"train/tokens\.bin: missing"),
        ("manifest.json", None, "contains no prepared text"),
        ("manifest.json", edited(version=2), "version 2 is not supported, only 1; .*run prepare again"),
        ("manifest.json", edited(splits=None), "damaged or edited"),
        ("manifest.json", edited(files={}), "incomplete"),
        ("manifest.json", edited(settings={"max_length": 20}), r"index\.npy contradicts"),
        ("manifest.json", lambda content: b"{", "damaged or edited"),
        ("train/index.npy", lambda content: content[:-4] + b"\1\0\0\0", r"index\.npy contradicts"),
        ("train/tokens.bin", lambda content: b"\xff\xff" + content[2:], "damaged: it has token id 65535"),
        ("evaluation/labels.bin", lambda content: b"\xff\xff" + content[2:], "damaged: it has token id 65535"),
        ("evaluation/masked.bin", lambda content: b"\xff\xff" + content[2:], "a position beyond its sequence"),
    ],
)
def test_a_store_that_is_not_whole_or_of_another_version_is_refused_by_name(folder, name, change, words):
    path = folder / name
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=words):
        for split in text_store.SPLITS:
            store = text_store.RaggedStore(folder, split)
            store.read(np.arange(len(store)))


def test_synthetic_lengths_have_the_mean_and_the_mean_square_of_mlperfs_training_set():
    lengths = sampled_lengths(20_000, 512, seed=1).astype(float)
    assert lengths.mean() == pytest.approx(254.5, rel=0.005)
    assert np.square(lengths).mean() == pytest.approx(95_000, rel=0.01)
    assert lengths.max() == 512


def test_the_synthetic_store_is_whole_and_the_same_each_time_and_its_sequences_have_two_segments_of_words(tmp_path):
    manifest = write_synthetic_store(tmp_path / "store", 50)
    assert write_synthetic_store(tmp_path / "again", 50) == manifest
    assert write_synthetic_store(tmp_path / "shorter", 20, longest=128).longest <= 128
    store = text_store.RaggedStore(tmp_path / "store", "train")
    assert text_store.verify(tmp_path / "store").splits["train"].sequences == len(store) == 50
    read = store.read(np.arange(50))
    starts = np.cumsum(read.lengths) - read.lengths
    assert (read.tokens[starts] == SPECIAL.cls).all()
    ends = np.concatenate([starts + read.first - 1, starts + read.lengths - 1])
    assert (read.tokens[ends] == SPECIAL.sep).all()
    words = np.delete(read.tokens, np.concatenate([starts, ends]))
    assert words.min() >= WORDS_FROM and words.max() < 30_522
