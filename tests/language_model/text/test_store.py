"""What was written is what is read, in any order; a store that is not whole is refused by the name of the file."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from judging.ground.atomic_file import StoredFile, write_file
from judging.ground.errors import DataError
from language_model.text import store as text_store
from language_model.text.store import PartContent, write_split
from language_model.text.vocabulary import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
Rows = list[tuple[list[int], int, list[int], list[int]]]


def rows(count: int, vocabulary: int, seed: int) -> Rows:
    """Sequences with the length of their first segment, masked places and labels."""
    random = np.random.default_rng(seed)
    items: Rows = []
    for _ in range(count):
        length = int(random.integers(5, 60))
        places = sorted(random.choice(length, size=int(random.integers(1, 5)), replace=False).tolist())
        tokens, labels = random.integers(0, vocabulary, length), random.integers(0, vocabulary, len(places))
        items.append((tokens.tolist(), int(random.integers(2, length)), places, labels.tolist()))
    return items


def part(content: Rows, split: str, vocabulary: int) -> PartContent:
    evaluation = split == "evaluation"
    index = [(len(tokens), first, len(places))[: 3 if evaluation else 2] for tokens, first, places, _ in content]

    def joined(column: int, kind: str | np.dtype[np.generic]) -> NDArray[np.generic]:
        return np.array([value for row in content for value in row[column]], dtype=kind)

    kind = text_store.token_type(vocabulary)
    masked = joined(2 if evaluation else 0, "<u2") if evaluation else np.empty(0, "<u2")
    labels = joined(3, kind) if evaluation else np.empty(0, kind)
    return PartContent(np.array(index, dtype="<u2"), joined(0, kind), masked, labels, 0, 1)


def write_store(folder, train, evaluation, vocabulary, max_length=64):
    files: dict[str, StoredFile] = {}
    facts: dict[str, text_store.SplitFacts] = {}
    for split, content in (("train", train), ("evaluation", evaluation)):
        middle = len(content) // 2
        parts = [part(piece, split, vocabulary) for piece in (content[:middle], content[middle:])]
        written, facts[split] = write_split(folder, split, parts, np.arange(len(content)))
        files |= written
    files["vocab.txt"] = write_file(folder / "vocab.txt", b"words\n")
    manifest = text_store.Manifest(
        version=1,
        vocabulary_size=vocabulary,
        vocabulary_sha256="0",
        special=SPECIAL,
        seed=1,
        settings={"max_length": max_length},
        input_sha256="0",
        splits=facts,
        files=files,
    )
    manifest.write(folder)
    return manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", rows(21, 9000, 1), rows(13, 9000, 2), 9000)
    return tmp_path / "store"


@pytest.mark.parametrize("vocabulary", [9000, 1 << 16, (1 << 16) + 1])
def test_reading_gives_back_what_was_written_in_the_order_asked(tmp_path, vocabulary):
    train, evaluation = rows(40, vocabulary, 3), rows(30, vocabulary, 4)
    written = write_store(tmp_path / "store", train, evaluation, vocabulary)
    assert text_store.verify(tmp_path / "store") == text_store.read_manifest(tmp_path / "store") == written
    for split, content in (("train", train), ("evaluation", evaluation)):
        store = text_store.RaggedStore(tmp_path / "store", split)
        assert len(store) == len(content)
        assert store.lengths.tolist() == [len(row[0]) for row in content]
        wanted = np.array([7, 0, 29, 7, 12], dtype=np.int64)
        record = store.read(wanted)
        assert record.tokens.dtype == record.first.dtype == record.lengths.dtype == np.int64
        assert record.tokens.tolist() == [token for number in wanted for token in content[number][0]]
        assert record.lengths.tolist() == [len(content[number][0]) for number in wanted]
        assert record.first.tolist() == [content[number][1] for number in wanted]
        assert isinstance(record, text_store.MaskedSequences) == (split == "evaluation")
        if isinstance(record, text_store.MaskedSequences):
            starts = np.cumsum(record.lengths) - record.lengths
            places = [start + place for start, n in zip(starts, wanted, strict=True) for place in content[n][2]]
            assert record.masked.tolist() == places
            assert record.labels.tolist() == [label for number in wanted for label in content[number][3]]


@pytest.mark.parametrize("name", ["train/tokens.bin", "vocab.txt"])
def test_a_cut_off_an_overlong_and_a_missing_file_are_refused_by_name(folder, name):
    path = folder / name
    whole = path.read_bytes()
    for content, words in ((whole[:-1], "truncated"), (whole + b"\0", "too long"), (None, "missing")):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        for refused in (lambda: text_store.RaggedStore(folder, "train"), lambda: text_store.verify(folder)):
            with pytest.raises(DataError, match=f"{name}: {words}"):
                refused()


def test_a_folder_without_or_with_another_or_a_broken_manifest_is_refused(folder):
    path = folder / text_store.MANIFEST
    values = json.loads(path.read_bytes())
    for changed, words in [
        ({**values, "version": 2}, "version 2 is not supported, only 1"),
        ({name: value for name, value in values.items() if name != "splits"}, "damaged or edited"),
        ({**values, "files": {}}, "incomplete"),
        ([], "damaged or edited"),
    ]:
        path.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=words):
            text_store.read_manifest(folder)
    path.write_text("{")
    with pytest.raises(DataError, match="damaged or edited"):
        text_store.read_manifest(folder)
    path.unlink()
    with pytest.raises(DataError, match="contains no prepared text"):
        text_store.RaggedStore(folder, "train")


def test_an_index_that_contradicts_the_tokens_or_the_longest_sequence_is_refused(tmp_path, folder):
    path = folder / "train/index.npy"
    index = np.load(path)
    index[0, 0] += 1
    np.save(path, index)
    with pytest.raises(DataError, match=r"index\.npy contradicts"):
        text_store.RaggedStore(folder, "train")
    write_store(tmp_path, rows(20, 900, 1), rows(5, 900, 2), 900, max_length=20)
    with pytest.raises(DataError, match=r"train/index\.npy has a sequence of \d+ tokens, longer than 20"):
        text_store.RaggedStore(tmp_path, "train")


@pytest.mark.parametrize(
    ("split", "name", "fault"),
    [
        ("train", "tokens.bin", "token id 65535"),
        ("evaluation", "labels.bin", "token id 65535"),
        ("evaluation", "masked.bin", "a position beyond its sequence"),
    ],
)
def test_an_impossible_value_is_refused_when_it_is_read(folder, split, name, fault):
    path = folder / split / name
    content = bytearray(path.read_bytes())
    content[:2] = b"\xff\xff"
    path.write_bytes(content)
    store = text_store.RaggedStore(folder, split)
    with pytest.raises(DataError, match=rf"{split}/{name} is damaged: it has {fault}"):
        store.read(np.arange(len(store)))
