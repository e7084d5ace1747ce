"""Token shards: bytes as others write them, several as one sequence, and errors that name the damage."""

import struct
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from judging.ground.errors import DataError
from judging.ground.token_shard import read_shard, write_shard
from language_model.gpt import datasets
from language_model.gpt.batches import document_starts, open_batches
from language_model.gpt.encoding import Tokens
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_shards import ShardStore
from timedrun.distributed.process_group import ProcessGroup

ALONE = ProcessGroup(0, 1, 0, torch.device("cpu"))


def header(magic: int = 20240520, version: int = 1, tokens: int = 3) -> bytes:
    return struct.pack("<256i", magic, version, tokens, *[0] * 253)


@pytest.fixture
def drawn() -> Tokens:
    tokens: Tokens = np.random.default_rng(0).integers(0, 50_256, 501).astype("<u2")
    tokens[::37] = 50_256
    return tokens


@pytest.fixture
def folder(tmp_path: Path, drawn: Tokens) -> Path:
    """Shards of 300 and 100 training tokens and 101 validation tokens, as FineWeb's are named."""
    for name, part in (("train_000001", drawn[:300]), ("train_000002", drawn[300:400]), ("val_000000", drawn[400:])):
        (tmp_path / f"fineweb_{name}.bin").write_bytes(header(tokens=len(part)) + part.tobytes())
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
    write_shard(tmp_path / "x_val_000000.bin", np.array([50_256, 7, 65_535], dtype=np.uint16))
    assert (tmp_path / "x_val_000000.bin").read_bytes() == header() + b"\x50\xc4\x07\x00\xff\xff"
    write_shard(tmp_path / "y_val_000000.bin", np.array([1], dtype=np.uint16), 8192)
    assert struct.unpack("<4i", (tmp_path / "y_val_000000.bin").read_bytes()[:16]) == (20240520, 1, 1, 8192)
    assert read_shard(tmp_path / "y_val_000000.bin").vocabulary == 8192


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header()[:1000], r"truncated within its header of 1,024 bytes"),
        (b"", "truncated within its header"),
        (header(magic=1) + bytes(6), "begins with 1 and version 1 instead of 20240520 and 1"),
        (header(magic=20240801, version=7) + bytes(12), "Llama 3's tokens of 4 bytes"),
        (header() + bytes(12), "3 tokens take 4 bytes each instead of 2; write them again as uint16"),
        (header() + bytes(5), "truncated, 5 bytes of tokens where its header names 3 tokens"),
        (header() + bytes(7), "too long, 7 bytes"),
        (header(tokens=-3), "names -3 tokens"),
    ],
)
def test_a_damaged_shard_is_named_with_its_fault(folder, content, words):
    path = folder / "fineweb_train_000002.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"fineweb_train_000002\.bin.*{words}"):
        ShardStore(folder)


def test_a_missing_split_and_shards_of_two_encodings_are_refused(folder):
    write_shard(folder / "small_train_000001.bin", np.arange(9, dtype=np.uint16), 300)
    with pytest.raises(DataError, match=r"different vocabularies \(.* 50,257, small_train_000001\.bin 300\)"):
        ShardStore(folder)
    (folder / "small_train_000001.bin").unlink()
    (folder / "fineweb_val_000000.bin").unlink()
    with pytest.raises(DataError, match=r"no \*_val_\*\.bin, so the validation split is missing"):
        datasets.open_store(folder)


def test_a_check_of_every_token_finds_another_encoding(folder):
    path = folder / "fineweb_val_000000.bin"
    write_shard(path, np.array([1, 50_257, 50_256], dtype=np.uint16))
    with pytest.raises(DataError, match=r"val_000000\.bin has a token outside the vocabulary of 50,257"):
        ShardStore(folder).verify()
    write_shard(path, np.array([1, 2, 3], dtype=np.uint16))
    with pytest.raises(DataError, match="the validation split has no token 50256, which begins a document"):
        ShardStore(folder).verify()


@pytest.mark.parametrize(
    ("name", "tokens", "whole", "words"),
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
        ("train_000006", slice(1, 9), False, ["fineweb_train_*.bin: shards between 2 and 6 are missing"]),
        ("val_000002", slice(1, 9), False, ["fineweb_val_*.bin: shards between 0 and 2 are missing;"]),
    ],
)
def test_shards_that_repeat_others_or_are_missing_or_empty_are_named(folder, drawn, name, tokens, whole, words):
    write_shard(folder / f"fineweb_{name}.bin", drawn[tokens])
    if isinstance(words, str):
        with pytest.raises(DataError, match=words):
            ShardStore(folder).notes(whole=whole)
    else:
        notes = ShardStore(folder).notes(whole=whole)
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


def test_evaluation_predicts_the_prefix_of_a_longer_split(folder, small):
    config = small({"vocabulary": 50_257}, data=GptDataConfig(eval_tokens=70, eval_batch=2))
    tokens = ShardStore(folder).tokens("validation")[np.arange(101)].tolist()
    batches = list(open_batches(config, folder, ALONE).evaluation())
    assert sum((batch.inputs.flatten().tolist() for batch in batches), []) == tokens[:70]
    assert sum((batch.targets.flatten().tolist() for batch in batches), []) == tokens[1:71]
    known = datasets.facts(folder, 16, config.data)
    assert (known.eval_tokens, known.eval_samples) == (70, sum(len(batch.inputs) for batch in batches))
    assert datasets.preflight(config, folder, 1) == []
    longer = replace(config, data=replace(config.data, eval_tokens=101))
    assert "has 101 tokens, and data.eval_tokens is 101" in datasets.preflight(longer, folder, 1)[0]
    assert replace(config, data=replace(config.data, eval_sequences=2)).problems()


def test_samples_begin_at_the_first_document_of_their_block_and_text_without_documents_is_refused(folder, small, store):
    train = ShardStore(folder).tokens("train")
    whole = train[np.arange(400)].tolist()
    blocks = np.arange(24) * 16
    expected = []
    for block in blocks:
        inside = [place for place in range(block, block + 16) if whole[place] == 50_256 and place + 17 <= 400]
        expected.append(min(inside, default=block))
    assert document_starts(train, blocks, 16, 50_256).tolist() == expected
    assert len(set(expected) - set(blocks.tolist())) > 5  # some moved
    config = small({"vocabulary": 50_257}, data=GptDataConfig(sampling="documents"))
    rows = [row for batch in islice(open_batches(config, folder, ALONE).train(), 6) for row in batch.inputs.tolist()]
    assert sorted(rows) == sorted(whole[start : start + 16] for start in expected)  # 24 samples: one epoch
    config = small(data=GptDataConfig(sampling="documents"))
    assert "data.sampling documents: no token separates" in datasets.preflight(config, store.folder, 1)[0]
