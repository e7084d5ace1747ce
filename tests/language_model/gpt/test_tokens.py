"""Token stores: content, atomic preparation, errors that name the damage."""

import json
from pathlib import Path

import pytest

from judging.ground.errors import DataError, UsageError
from language_model.gpt import tokens as module
from language_model.gpt.tokens import MANIFEST, SPLITS, TokenStore, prepare_tokens
from tests.language_model.gpt import decoding


@pytest.fixture
def source(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    prepare_tokens([source], tmp_path / "store")
    return tmp_path / "store"


def test_the_first_nine_tenths_are_for_training_and_nothing_is_lost(folder, text):
    store = TokenStore(folder)
    alphabet = store.manifest.alphabet
    cut = int(len(text) * 0.9)
    assert decoding.characters(alphabet, store.tokens("train")) == text[:cut]
    assert decoding.characters(alphabet, store.tokens("validation")) == text[cut:]
    assert store.manifest.alphabet == "".join(sorted(set(text)))
    store.verify()


def test_several_files_follow_one_another_in_the_order_given(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "VALIDATION_FRACTION", 0.5)
    for name, content in (("b", "bbbb"), ("a", "aaaa"), ("c", "cc")):
        (tmp_path / name).write_text(content)
    manifest = prepare_tokens([tmp_path / name for name in "bac"], tmp_path / "out")
    store = TokenStore(tmp_path / "out")
    texts = [decoding.characters(manifest.alphabet, store.tokens(split)) for split in SPLITS]
    assert texts == ["bbbba", "aaacc"]
    assert [source.name for source in manifest.sources] == ["b", "a", "c"]


def test_byte_pair_documents_end_with_the_token_for_it(tmp_path, byte_pairs, monkeypatch):
    monkeypatch.setattr(module, "VALIDATION_FRACTION", 0.2)
    (tmp_path / "one").write_text("the cat's dog\n")
    (tmp_path / "two").write_text("sat on the mat.")
    encoder, merges = byte_pairs
    prepare_tokens([tmp_path / "one", tmp_path / "two"], tmp_path / "out", encoder=encoder, merges=merges)
    store = TokenStore(tmp_path / "out")
    texts = [decoding.byte_pairs(byte_pairs, store.tokens(split)) for split in SPLITS]
    assert texts == ["the cat's dog\n<|endoftext|>sat on th", "e mat.<|endoftext|>"]
    for files in ({"encoder": encoder}, {"merges": merges}):
        with pytest.raises(UsageError, match=r"encoder\.json \(--vocabulary\) and vocab\.bpe"):
            prepare_tokens([tmp_path / "one"], tmp_path / "other", **files)


def test_a_missing_or_resized_file_is_named(folder):
    path = folder / "validation.tokens"
    whole = path.read_bytes()
    for content, words in ((whole[:-1], "truncated"), (whole + b"\0\0", "too long")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"validation\.tokens: {words}"):
            TokenStore(folder)
    path.unlink()
    with pytest.raises(DataError, match=r"validation\.tokens: missing"):
        TokenStore(folder)


@pytest.mark.parametrize("change", [{"vocabulary": 3}, {"train": None}, {"extra": 1}, {"format": "other"}, None])
def test_an_edited_manifest_is_refused_and_a_missing_one_named(folder, change):
    path = folder / MANIFEST
    path.write_text("{" if change is None else json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=r"tokens\.json: damaged or edited"):
        TokenStore(folder)
    path.unlink()
    with pytest.raises(DataError, match=r"no tokens\.json"):
        TokenStore(folder)


def test_a_text_that_is_not_utf8_or_too_short_leaves_nothing_behind(tmp_path, source):
    (tmp_path / "bad.txt").write_bytes(b"good so far\xff")
    with pytest.raises(DataError, match=r"bad\.txt: byte 11 is not UTF-8"):
        prepare_tokens([source, tmp_path / "bad.txt"], tmp_path / "out")
    with pytest.raises(DataError, match=r"none\.txt cannot be read"):
        prepare_tokens([tmp_path / "none.txt"], tmp_path / "out")
    with pytest.raises(DataError, match=r"two are equal, so one may be validated on"):
        prepare_tokens([source, source], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "short.txt").write_text("abcdefgh")
    with pytest.raises(DataError, match="8 characters leave fewer than 2 tokens for validation"):
        prepare_tokens([tmp_path / "short.txt"], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_existing_store_is_never_overwritten(tmp_path, source, folder):
    before = (folder / "train.tokens").read_bytes()
    with pytest.raises(UsageError, match=r"already has tokens\.json, train\.tokens, validation\.tokens"):
        prepare_tokens([source], folder)
    assert (folder / "train.tokens").read_bytes() == before


def test_a_failed_preparation_leaves_no_store(tmp_path, source, monkeypatch):
    def fail(*arguments: object) -> object:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(module, "encode_pieces", fail)
        prepare_tokens([source], tmp_path / "out")
    with pytest.raises(DataError, match="not a token store"):
        TokenStore(tmp_path / "out")
    prepare_tokens([source], tmp_path / "out")  # what was left is no obstacle
    TokenStore(tmp_path / "out").verify()
