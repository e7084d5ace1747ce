"""Files of another kind than their name says: each reader of data names the kind and what to do."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from image_classification import cifar10
from image_classification.loaders.pillow import decode
from image_classification.stores.manifest import ImageManifest
from judging.ground.atomic_file import StoredFile, check_size
from judging.ground.errors import DataError
from judging.ground.file_kind import other_kind
from judging.ground.result_files import read_json
from judging.ground.token_shard import read_shard
from language_model.gpt import token_store
from language_model.gpt.encoding import BytePairs, read_text
from language_model.text.corpus import Corpus
from language_model.text.vocabulary import read_vocabulary
from language_model.weights import load_safetensors
from timedrun.runner.storage import store_files

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 200001024\n"
KINDS = {
    "git lfs pull": POINTER,
    "HTML": b"\xef\xbb\xbf\n<!DOCTYPE html>\n<title>404</title>",
    "XML": b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    "gunzip": gzip.compress(b"words\n" * 800),
    "unzip": b"PK\x03\x04" + bytes(64),
}
READERS: dict[str, Callable[[Path], object]] = {
    "token shard": read_shard,
    "text": lambda path: list(read_text(path)),
    "documents": lambda path: list(Corpus([path])),
    "vocabulary": read_vocabulary,
    "byte pairs": BytePairs,
    "image": lambda path: decode(path.read_bytes(), path.name),
    "CIFAR-10": lambda path: cifar10.require(path.parent),
    "store": lambda path: check_size(path.parent, path.name, StoredFile(bytes=9, sha256="")),
    "weights": load_safetensors,
    "manifest": lambda path: store_files.read_manifest(path, ImageManifest, 1, absent=""),
    "manifest of tokens": lambda path: token_store.read_manifest(path.parent),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_another_kind_is_named_as_what_it_is(tmp_path, reader, kind):
    for name in (*cifar10.FILES, token_store.MANIFEST):
        (tmp_path / name).write_bytes(KINDS[kind])
    path = tmp_path / "data_batch_1.bin"
    if (reader, kind) == ("documents", "gunzip"):
        return  # compressed text is read
    with pytest.raises(DataError, match=kind) as refused:
        READERS[reader](path)
    assert (token_store.MANIFEST if reader == "manifest of tokens" else path.name) in str(refused.value)


def test_text_may_begin_with_the_mark_of_its_encoding(tmp_path):
    (tmp_path / "claims.json").write_text("[1]", encoding="utf-8-sig")
    assert read_json(tmp_path / "claims.json") == [1]


@pytest.mark.parametrize("data", [b"", b"Text <html>", b"BZhang came.", b"\x88\xd84\x01", b"\xff\xd8\xff\xe0"])
def test_text_shards_and_images_are_of_no_other_kind(data):
    assert other_kind(data) == ""
