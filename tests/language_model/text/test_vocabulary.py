"""Vocabularies are read, checked, and trained to the same bytes every time."""

import os
import subprocess
import sys

import pytest

from judging.ground.errors import DataError
from language_model.text.vocabulary import SPECIAL_WORDS, read_vocabulary, train_vocabulary
from tests.language_model.text_samples import topics_vocabulary, write_vocabulary

pytest.importorskip("tokenizers", reason="needs the extra 'language'")


def test_special_ids_are_found_by_name(tmp_path):
    vocabulary = read_vocabulary(write_vocabulary(tmp_path / "vocab.txt"))
    for name, word in SPECIAL_WORDS.items():
        assert vocabulary.words[getattr(vocabulary.special, name)] == word
    assert vocabulary.content == (tmp_path / "vocab.txt").read_bytes()


@pytest.mark.parametrize(("extra", "words"), [(b"\n", "empty"), (b"the\n", "twice"), (b"\xff\n", "not UTF-8")])
def test_an_unsound_vocabulary_is_refused(tmp_path, extra, words):
    path = write_vocabulary(tmp_path / "vocab.txt")
    path.write_bytes(path.read_bytes() + extra)
    with pytest.raises(DataError, match=words):
        read_vocabulary(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_vocabulary(tmp_path / "none.txt")


def test_the_same_text_trains_the_same_vocabulary_in_every_process():
    code = "from tests.language_model.text_samples import topics_vocabulary; print(topics_vocabulary().sha256)"
    environment = {**os.environ, "PYTHONHASHSEED": "5", "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    trained = topics_vocabulary()
    assert printed.stdout.strip() == trained.sha256
    assert len(trained) == 2_000
    assert trained.words[:5] == tuple(SPECIAL_WORDS.values())


def test_a_vocabulary_too_small_for_the_characters_is_refused():
    with pytest.raises(DataError, match="a vocabulary of 9 WordPieces cannot be trained"):
        train_vocabulary(lambda: ["some words"], 9)
