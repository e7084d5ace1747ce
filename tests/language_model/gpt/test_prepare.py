"""`timedrun prepare gpt`: token stores from text, checks of existing stores, usage errors; shards from documents with
<|endoftext|> before each and nothing lost, and with a smaller vocabulary by fewer merges."""

from dataclasses import replace
from pathlib import Path

import pytest

from judging.ground.errors import DataError, UsageError
from language_model.gpt import prepare as preparation
from language_model.gpt.configs import GptRunConfig, shakespeare_baseline
from language_model.gpt.encoding import BytePairs
from language_model.gpt.prepare import prepare
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_store import ShardStore
from tests.language_model.gpt.conftest import decoded, whole

CONFIG = shakespeare_baseline()
WIKIPEDIA = '<doc id="{0}" title="Title {0}">\nTitle {0}\n\nthe dog {0} sat\non the mat.\n</doc>\n'


def shards(vocabulary: int = 331) -> GptRunConfig:
    model = replace(CONFIG.model, vocabulary=vocabulary, context=4)
    return replace(CONFIG, dataset="articles", model=model, data=GptDataConfig(format="shards"))


def test_prepare_builds_characters_and_checks_every_byte(text, tmp_path):
    (tmp_path / "text.txt").write_bytes(text.encode())
    store = tmp_path / "store"
    found = prepare(CONFIG, store, decode=False, workers=1, text=[tmp_path / "text.txt"])
    assert found["train_tokens"] == int(0.9 * len(text))
    assert prepare(CONFIG, store, decode=True, workers=1) == found
    content = bytearray((store / "train.tokens").read_bytes())
    content[5] ^= 1
    (store / "train.tokens").write_bytes(content)
    with pytest.raises(DataError, match=r"train\.tokens"):
        prepare(CONFIG, store, decode=True, workers=1)


def test_help_topics_need_no_text_and_have_one_vocabulary_on_every_python(tmp_path):
    config = replace(CONFIG, dataset="topics")
    found = prepare(config, tmp_path / "store", decode=False, workers=1)
    assert found["vocabulary"] == 128 and found["train_tokens"] > 200_000
    assert prepare(config, tmp_path / "store", decode=True, workers=1) == found


@pytest.mark.parametrize(
    ("benchmark", "option"), [("language_model.gpt", "--evaluation-text"), ("language_model", "--images")]
)
def test_options_of_the_other_benchmark_are_refused(benchmark, option, tmp_path, refused):
    folder = ["--data-folder", tmp_path, "--text", tmp_path]
    assert option in refused("prepare", benchmark, "baseline", *folder, option, tmp_path)


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "train.txt").write_text("".join(WIKIPEDIA.format(number) for number in range(30)))
    (tmp_path / "evaluation.txt").write_text("".join(WIKIPEDIA.format(number) for number in range(30, 34)))
    return tmp_path / "train.txt", tmp_path / "evaluation.txt"


def test_documents_become_shards_with_the_token_before_each(texts, byte_pairs_like_gpt2, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "SHARD_TOKENS", 250)
    monkeypatch.setattr(preparation, "DOCUMENTS", 7)
    folder = tmp_path / "out"
    options = {"vocabulary": byte_pairs_like_gpt2, "evaluation_text": texts[1:]}
    found = prepare(shards(), folder, decode=False, workers=1, text=texts[:1], **options)
    store = ShardStore(folder)
    names = [path.name for path in store.files]
    assert names[:2] == ["articles_train_000001.bin", "articles_train_000002.bin"]
    assert names[-1] == "articles_val_000000.bin"
    assert [shard.tokens for shard in store.shards["train"]][:-1] == [250] * (len(names) - 2)
    for split, numbers in (("train", range(30)), ("validation", range(30, 34))):
        tokens = store.tokens(split)
        text = decoded(byte_pairs_like_gpt2, whole(tokens))
        assert text == "".join(f"<|endoftext|>the dog {number} sat\non the mat." for number in numbers)
    assert prepare(shards(), folder, decode=True, workers=1) == found
    assert (found["vocabulary"], found["end_of_text"]) == (331, 330)
    with pytest.raises(UsageError, match=r"already has articles_train_000001\.bin"):
        prepare(shards(), folder, decode=False, workers=1, text=texts[:1], **options)


def test_a_smaller_vocabulary_has_the_first_merges_and_the_same_numbers(texts, byte_pairs_like_gpt2, tmp_path, text):
    prepare(shards(280), tmp_path / "out", decode=False, workers=1, text=texts, vocabulary=byte_pairs_like_gpt2)
    store = ShardStore(tmp_path / "out")
    store.verify()
    assert (store.vocabulary, store.end_of_text) == (280, 279)
    assert min(store.counts.values()) > 0  # a part is held out
    coder = BytePairs(byte_pairs_like_gpt2, 280)
    (tokens,) = coder.encode_batch([text])
    assert tokens.max() == 278  # the last of 23 merges
    assert decoded(byte_pairs_like_gpt2, tokens) == text  # by the whole encoding
    assert len(tokens) > len(BytePairs(byte_pairs_like_gpt2).encode_batch([text])[0])


@pytest.mark.parametrize(
    ("config", "options", "error", "words"),
    [
        (CONFIG, {"text": [Path()], "folder": None}, UsageError, "--data-folder"),
        (CONFIG, {"text": [Path()], "vocabulary": Path()}, UsageError, "needs --text and --data.format shards"),
        (CONFIG, {"text": [Path()], "evaluation_text": [Path()]}, UsageError, "--evaluation-text needs --text and"),
        (shards(331), {"text": [Path()]}, UsageError, r"shards need GPT-2's encoder\.json"),
        (shards(256), {"text": [Path()], "encoded": True}, UsageError, r"shards need GPT-2's encoder\.json"),
        (shards(400), {"text": [Path()], "encoded": True}, DataError, r"<\|endoftext\|> is token 0"),
    ],
)
def test_unusable_options_are_refused_and_nothing_is_written(byte_pairs, tmp_path, config, options, error, words):
    given = {"folder": tmp_path / "out", "decode": False, "workers": 1, **options}
    if given.pop("encoded", False):
        given["vocabulary"] = byte_pairs
    with pytest.raises(error, match=words):
        prepare(config, **given)
    assert not (tmp_path / "out").exists()
