"""Token stores and shards: what was written or what others write is read; errors name the damage."""

import json
import struct
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from judging.ground.errors import DataError, UsageError
from judging.ground.token_shard import read_shard, write_shard
from language_model.gpt import datasets
from language_model.gpt import prepare as module
from language_model.gpt.batches import document_starts, open_batches
from language_model.gpt.encoding import SPLITS, Tokens
from language_model.gpt.prepare import prepare_tokens
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_store import MANIFEST, PreparedStore, ShardStore, open_store
from tests.language_model.gpt.conftest import whole
from tests.one_rank import ALONE


def header(tokens: int = 3, vocabulary: int = 0, *, magic: int = 20240520, version: int = 1) -> bytes:
    return struct.pack("<256i", magic, version, tokens, vocabulary, *[0] * 252)


@pytest.fixture
def drawn() -> Tokens:
    tokens: Tokens = np.random.default_rng(0).integers(0, 50_256, 501).astype("<u2")
    tokens[::37] = 50_256
    return tokens


@pytest.fixture
def folder(tmp_path: Path, drawn: Tokens) -> Path:
    """Shards of 300 and 100 training tokens and 101 validation tokens, as FineWeb's are named."""
    for name, part in (("train_000001", drawn[:300]), ("train_000002", drawn[300:400]), ("val_000000", drawn[400:])):
        (tmp_path / f"fineweb_{name}.bin").write_bytes(header(len(part)) + part.tobytes())
    return tmp_path


def test_shards_of_others_are_read_as_they_are_and_in_order(folder):
    store = ShardStore(folder)
    expected = np.concatenate(
        [np.frombuffer((folder / f"fineweb_train_00000{number}.bin").read_bytes()[1024:], "<u2") for number in (1, 2)]
    )
    tokens = store.tokens("train")
    assert len(tokens) == 400 and store.counts == {"train": 400, "validation": 101}
    places = np.array([[0, 299, 300], [399, 17, 301]])  # on both sides of the boundary
    assert np.array_equal(tokens[places], expected[places])
    assert np.array_equal(tokens[np.arange(400)], expected)
    assert (store.vocabulary, store.end_of_text) == (50_257, 50_256)
    store.verify()


def test_written_shards_have_the_bytes_that_others_read(tmp_path):
    for vocabulary, written in ((50_257, 0), (8192, 8192)):
        write_shard(tmp_path / "x_val_000000.bin", np.array([50_256, 7, 65_535], dtype=np.uint16), vocabulary)
        assert (tmp_path / "x_val_000000.bin").read_bytes() == header(3, written) + b"\x50\xc4\x07\x00\xff\xff"
        assert read_shard(tmp_path / "x_val_000000.bin").vocabulary == vocabulary


def shard(*tokens: int) -> bytes:
    return header(tokens=len(tokens)) + np.array(tokens, "<u2").tobytes()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train_000002", header()[:1000], r"train_000002\.bin: truncated within its header of 1,024 bytes"),
        ("train_000002", b"", "truncated within its header"),
        ("train_000002", header(magic=1) + bytes(6), "begins with 1 and version 1 instead of 20240520 and 1"),
        ("train_000002", header(magic=20240801, version=7) + bytes(12), "Llama 3's tokens of 4 bytes"),
        ("train_000002", header() + bytes(12), "3 tokens take 4 bytes each instead of 2; write them again as uint16"),
        ("train_000002", header() + bytes(5), "truncated, 5 bytes of tokens where its header names 3 tokens"),
        ("train_000002", header() + bytes(7), "too long, 7 bytes"),
        ("train_000002", header(tokens=-3), "names -3 tokens"),
        ("train_000002", header(1, 300) + bytes(2), r"different vocabularies \(.* 50,257, .*02\.bin 300\)"),
        ("val_000000", None, r"no \*_val_\*\.bin, so the validation split is missing"),
        ("val_000000", shard(1, 50_257, 50_256), r"val_000000\.bin has a token outside the vocabulary of 50,257"),
        ("val_000000", shard(1, 2, 3), "the validation split has no token 50256, which begins a document"),
    ],
)
def test_a_shard_that_is_damaged_missing_or_of_another_encoding_is_named_with_its_fault(folder, name, content, words):
    path = folder / f"fineweb_{name}.bin"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=words):
        open_store(folder).verify()


@pytest.mark.parametrize(
    ("name", "tokens", "every", "words"),
    [
        ("val_000001", slice(300, 400), False, "000001.bin of the validation split has the tokens of fineweb_train_"),
        ("val_000001", slice(0, 300), False, "of the validation split has the tokens of fineweb_train_000001"),
        ("val_000001", slice(0, 256), False, "of the validation split has the tokens of fineweb_train_000001"),
        ("val_000001", slice(40, 300), True, "of the validation split has the tokens of fineweb_train_000001"),
        ("val_000001", slice(40, 300), False, []),  # found where all are read
        ("val_000001", slice(0, 60), True, []),  # as long as a licence
        ("train_000003", slice(300, 501), False, []),  # begins as another of 100
        ("train_000003", slice(300, 400), False, ["fineweb_train_000003.bin repeats fineweb_train_000002.bin: each"]),
        ("train_000003", slice(400, 501), False, "val_000000.bin of the validation split has the tokens of fineweb_tr"),
        ("train_000006", slice(0, 0), False, "train_000006.bin has a header and no token"),
    ],
)
def test_shards_that_repeat_others_or_are_empty_are_named(folder, drawn, name, tokens, every, words):
    write_shard(folder / f"fineweb_{name}.bin", drawn[tokens])
    if isinstance(words, str):
        with pytest.raises(DataError, match=words):
            ShardStore(folder).notes(whole=every)
    else:
        notes = ShardStore(folder).notes(whole=every)
        assert [note[: len(start)] for note, start in zip(notes, words, strict=True)] == words


def test_the_identity_covers_every_byte_and_the_digest_before_the_clock_only_headers(folder):
    before = ShardStore(folder)
    path = folder / "fineweb_train_000002.bin"
    content = bytearray(path.read_bytes())
    identity, digest = before.identity(), before.digest
    content[-1] ^= 1
    path.write_bytes(content)
    after = ShardStore(folder)
    assert after.digest == digest and after.identity()["sha256"] != identity["sha256"]
    write_shard(path, np.arange(99, dtype=np.uint16))
    assert ShardStore(folder).digest != digest


def test_an_evaluation_of_more_tokens_than_the_split_predicts_is_refused(folder, small):
    config = small({"vocabulary": 50_257}, data=GptDataConfig(eval_tokens=70))
    assert datasets.preflight(config, folder, 1) == []
    longer = replace(config, data=replace(config.data, eval_tokens=101))
    assert "has 101 tokens, and data.eval_tokens is 101" in datasets.preflight(longer, folder, 1)[0]
    assert replace(config, data=replace(config.data, eval_sequences=2)).problems()


def test_samples_begin_at_the_first_document_of_their_block_and_text_without_documents_is_refused(folder, small, store):
    train = ShardStore(folder).tokens("train")
    tokens = whole(train).tolist()
    blocks = np.arange(24) * 16
    expected = []
    for block in blocks:
        inside = [place for place in range(block, block + 16) if tokens[place] == 50_256 and place + 17 <= 400]
        expected.append(min(inside, default=block))
    assert document_starts(train, blocks, 16, 50_256).tolist() == expected
    assert len(set(expected) - set(blocks.tolist())) > 5  # some moved
    config = small({"vocabulary": 50_257}, data=GptDataConfig(sampling="documents"))
    rows = [row for batch in islice(open_batches(config, folder, ALONE).train(), 6) for row in batch.inputs.tolist()]
    assert sorted(rows) == sorted(tokens[start : start + 16] for start in expected)  # 24 samples: one epoch
    config = small(data=GptDataConfig(sampling="documents"))
    assert "data.sampling documents: no token separates" in datasets.preflight(config, store.folder, 1)[0]


@pytest.fixture
def source(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def prepared(source: Path, tmp_path: Path) -> Path:
    prepare_tokens([source], tmp_path / "store")
    return tmp_path / "store"


def test_texts_follow_one_another_and_the_last_of_their_characters_are_for_validation(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "VALIDATION_FRACTION", 0.2)
    files = {"one": "the cat's dog\n", "another": "sat on the mat."}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    manifest = prepare_tokens([tmp_path / name for name in files], tmp_path / "out")
    assert [source.name for source in manifest.sources] == ["one", "another"]
    assert manifest.alphabet == "".join(sorted({*files["one"], *files["another"]}))
    store = PreparedStore(tmp_path / "out")
    store.verify()
    tokens = [whole(store.tokens(split)) for split in SPLITS]
    texts = ["".join(manifest.alphabet[t] for t in part) for part in tokens]
    assert texts == ["the cat's dog\nsat on th", "e mat."]
    with pytest.raises(UsageError, match=r"already has tokens\.json, train\.tokens, validation\.tokens"):
        prepare_tokens([tmp_path / "one"], tmp_path / "out")
    store.verify()


def change_manifest(folder: Path, **values: object) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "validation.tokens").write_bytes(b""), r"validation\.tokens: truncated"),
        (lambda folder: (folder / "validation.tokens").unlink(), r"validation\.tokens: missing"),
        (lambda folder: (folder / MANIFEST).write_text("{"), r"tokens\.json: damaged or edited"),
        (lambda folder: (folder / MANIFEST).unlink(), r"no tokens\.json"),
        (lambda folder: change_manifest(folder, extra=1), "damaged or edited"),
        (lambda folder: change_manifest(folder, files={}), "damaged or edited"),
        (lambda folder: change_manifest(folder, vocabulary=3), "outside the vocabulary of 3"),
        (lambda folder: change_manifest(folder, version=None), "version None is not supported.*run prepare again"),
    ],
)
def test_a_store_that_is_damaged_or_of_another_version_is_refused_in_words(prepared, change, words):
    change(prepared)
    with pytest.raises(DataError, match=words):
        open_store(prepared).verify()


def test_a_text_that_is_not_utf8_or_too_short_leaves_nothing_behind(tmp_path, source):
    (tmp_path / "bad.txt").write_bytes(b"good so far\xff")
    with pytest.raises(DataError, match=r"bad\.txt is not UTF-8: byte 11"):
        prepare_tokens([source, tmp_path / "bad.txt"], tmp_path / "out")
    with pytest.raises(DataError, match=r"none\.txt cannot be read"):
        prepare_tokens([tmp_path / "none.txt"], tmp_path / "out")
    with pytest.raises(DataError, match=r"two are equal, so one may be validated on"):
        prepare_tokens([source, source], tmp_path / "out")
    (tmp_path / "short.txt").write_text("abcdefgh")
    with pytest.raises(DataError, match="8 characters leave fewer than 2 tokens for a split"):
        prepare_tokens([tmp_path / "short.txt"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
