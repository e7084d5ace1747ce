"""Shards from documents: <|endoftext|> before each, nothing lost, a smaller vocabulary by fewer merges."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from judging.ground.errors import DataError, UsageError
from language_model.gpt import prepare as preparation
from language_model.gpt.configs import GptRunConfig, shakespeare_baseline
from language_model.gpt.encoding import BytePairs
from language_model.gpt.prepare import prepare
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_shards import ShardStore
from tests.language_model.gpt import decoding

WIKIPEDIA = '<doc id="{0}" title="Title {0}">\nTitle {0}\n\nthe dog {0} sat\non the mat.\n</doc>\n'


def config(vocabulary: int = 331) -> GptRunConfig:
    base = shakespeare_baseline()
    model = replace(base.model, vocabulary=vocabulary, context=4)
    return replace(base, dataset="articles", model=model, data=GptDataConfig(format="shards"))


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "train.txt").write_text("".join(WIKIPEDIA.format(number) for number in range(30)))
    (tmp_path / "evaluation.txt").write_text("".join(WIKIPEDIA.format(number) for number in range(30, 34)))
    return tmp_path / "train.txt", tmp_path / "evaluation.txt"


def test_documents_become_shards_with_the_token_before_each(
    texts: tuple[Path, Path], byte_pairs_like_gpt2: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "SHARD_TOKENS", 250)
    monkeypatch.setattr(preparation, "DOCUMENTS", 7)
    encoder, merges = byte_pairs_like_gpt2
    folder = tmp_path / "out"
    options = {"vocabulary": encoder, "merges": merges, "evaluation_text": texts[1:]}
    found = prepare(config(), folder, decode=False, workers=1, text=texts[:1], **options)  # type: ignore[arg-type]
    store = ShardStore(folder)
    names = [path.name for path in store.files]
    assert names[:2] == ["articles_train_000001.bin", "articles_train_000002.bin"]
    assert names[-1] == "articles_val_000000.bin"
    assert [shard.tokens for shard in store.shards["train"]][:-1] == [250] * (len(names) - 2)
    for split, numbers in (("train", range(30)), ("validation", range(30, 34))):
        tokens = store.tokens(split)  # type: ignore[arg-type]
        text = decoding.byte_pairs(byte_pairs_like_gpt2, tokens[np.arange(len(tokens))])
        assert text == "".join(f"<|endoftext|>the dog {number} sat\non the mat." for number in numbers)
    assert prepare(config(), folder, decode=True, workers=1) == found
    assert (found["vocabulary"], found["end_of_text"]) == (331, 330)
    with pytest.raises(UsageError, match=r"already has articles_train_000001\.bin"):
        prepare(config(), folder, decode=False, workers=1, text=texts[:1], **options)  # type: ignore[arg-type]


def test_a_smaller_vocabulary_has_the_first_merges_and_the_same_numbers(
    texts: tuple[Path, Path], byte_pairs_like_gpt2: tuple[Path, Path], tmp_path: Path, text: str
) -> None:
    encoder, merges = byte_pairs_like_gpt2
    prepare(config(280), tmp_path / "out", decode=False, workers=1, text=texts, vocabulary=encoder, merges=merges)
    store = ShardStore(tmp_path / "out")
    store.verify()
    assert (store.vocabulary, store.end_of_text) == (280, 279)
    assert min(store.counts.values()) > 0  # a part is held out
    coder = BytePairs(encoder, merges, 280)
    tokens = coder.encode(text)
    assert tokens.max() == 278  # the last of 23 merges
    assert decoding.byte_pairs(byte_pairs_like_gpt2, tokens) == text  # by the whole encoding
    assert len(tokens) > len(BytePairs(encoder, merges).encode(text))


def test_unusable_encodings_and_options_are_refused(
    texts: tuple[Path, Path], byte_pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encoder, merges = byte_pairs
    for size, files in ((331, {}), (256, {"vocabulary": encoder, "merges": merges})):
        with pytest.raises(UsageError, match=r"shards need GPT-2's encoder\.json"):
            prepare(config(size), out, decode=False, workers=1, text=texts, **files)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"<\|endoftext\|> is token 0"):
        prepare(config(400), out, decode=False, workers=1, text=texts, vocabulary=encoder, merges=merges)
    with pytest.raises(UsageError, match="--evaluation-text needs --text and --data.format shards"):
        prepare(shakespeare_baseline(), out, decode=False, workers=1, text=texts, evaluation_text=texts)
    assert not out.exists()
