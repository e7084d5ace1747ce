"""What was written is what is read, in any order; a store that is not whole is refused by the name of the file."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from judging.ground.errors import DataError
from language_model.text import store as text_store
from language_model.text.store import PartContent
from language_model.text.synthetic_store import write_parts


def drawn(count: int, vocabulary: int, split: str) -> PartContent:
    """Random sequences of 5 to 59 tokens; in the evaluation split with 1 to 4 masked places."""
    random, kind = np.random.default_rng(count), text_store.token_type(vocabulary)
    lengths, counts = random.integers(5, 60, count), random.integers(1, 5, count)
    places = [np.sort(random.permutation(length)[:n]) for length, n in zip(lengths, counts, strict=True)]
    columns, masked = [lengths, random.integers(2, lengths)], np.empty(0)
    if split == "evaluation":
        columns, masked = [*columns, counts], np.concatenate(places)
    tokens, labels = (random.integers(0, vocabulary, size).astype(kind) for size in (lengths.sum(), len(masked)))
    return PartContent(np.stack(columns, 1).astype("<u2"), tokens, masked.astype("<u2"), labels, 0, 1)


def write_store(folder: Path, vocabulary: int = 9000) -> dict[str, PartContent]:
    """Write 40 training and 30 evaluation sequences in two parts each, and return them."""
    contents = {split: drawn(count, vocabulary, split) for split, count in (("train", 40), ("evaluation", 30))}
    halves = {
        split: [content.select(half) for half in np.array_split(np.arange(len(content.index)), 2)]
        for split, content in contents.items()
    }
    manifest = write_parts(folder, halves, longest=64, vocabulary=vocabulary)
    assert text_store.verify(folder) == text_store.read_manifest(folder) == manifest
    return contents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("vocabulary", [9000, 1 << 16, (1 << 16) + 1])
def test_reading_gives_back_what_was_written_in_the_order_asked(tmp_path, vocabulary):
    for split, content in write_store(tmp_path / "store", vocabulary).items():
        store = text_store.RaggedStore(tmp_path / "store", split)
        assert store.lengths.tolist() == content.index[:, 0].tolist() and len(store) == len(content.index)
        wanted = np.array([7, 0, 29, 7, 12], dtype=np.int64)
        record = store.read(wanted)
        assert record.tokens.dtype == record.first.dtype == record.lengths.dtype == np.int64
        assert np.array_equal(np.stack([record.lengths, record.first], 1), content.index[wanted, :2])
        tokens = np.split(content.tokens, np.cumsum(content.index[:, 0])[:-1])
        assert record.tokens.tolist() == np.concatenate([tokens[number] for number in wanted]).tolist()
        assert isinstance(record, text_store.MaskedSequences) == (split == "evaluation")
        if isinstance(record, text_store.MaskedSequences):
            ends = np.cumsum(content.index[:, 2])[:-1]
            places, labels = np.split(content.masked, ends), np.split(content.labels, ends)
            starts = np.cumsum(record.lengths) - record.lengths
            expected = [start + places[number] for start, number in zip(starts, wanted, strict=True)]
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
