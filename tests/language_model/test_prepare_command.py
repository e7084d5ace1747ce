"""`timedrun prepare` for text: a store of the config's own length, checked where it is, options that fit together."""

from pathlib import Path

import pytest

from language_model.configs import gpt_shakespeare_baseline, topics_baseline, wikipedia_small_baseline
from language_model.prepare import prepare
from language_model.text.store import read_manifest
from tests.language_model.text_samples import plain_text
from timedrun.errors import DataError, UsageError

pytest.importorskip("tokenizers", reason="needs the extra 'language'")


def test_the_command_makes_a_store_of_the_configs_length_and_checks_it(
    tmp_path: Path, inputs: tuple[list[Path], list[Path], Path]
) -> None:
    train, evaluation, vocabulary = inputs
    store, config = tmp_path / "store", wikipedia_small_baseline()
    prepare(config, store, decode=False, workers=1, text=train, evaluation_text=evaluation, vocabulary=vocabulary)
    manifest = read_manifest(store)
    assert manifest.longest <= config.data.longest == manifest.settings["max_length"]
    assert manifest.settings["max_predictions"] == 19
    found = prepare(config, store, decode=True, workers=1)
    assert found["train_sequences"] == manifest.splits["train"].sequences
    content = bytearray((store / "train/tokens.bin").read_bytes())
    content[5] ^= 1
    (store / "train/tokens.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"tokens\.bin is damaged"):
        prepare(config, store, decode=True, workers=1)


def test_the_command_makes_characters_of_text_for_a_gpt(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(plain_text(40, 3))
    found = prepare(gpt_shakespeare_baseline(), tmp_path / "store", decode=False, workers=1, text=[text])
    assert found["train_tokens"] == int(0.9 * len(text.read_text()))


def test_text_without_a_folder_or_for_a_source_of_its_own_is_refused(tmp_path: Path) -> None:
    for config in (wikipedia_small_baseline(), gpt_shakespeare_baseline()):
        with pytest.raises(UsageError, match="--data-folder"):
            prepare(config, None, decode=False, workers=1, text=[tmp_path])
    with pytest.raises(UsageError, match="no use for other text"):
        prepare(topics_baseline(), tmp_path, decode=False, workers=1, text=[tmp_path])


def test_options_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    gpt, bert = gpt_shakespeare_baseline(), wikipedia_small_baseline()
    for config, options, words in (
        (gpt, {"text": [tmp_path], "evaluation_text": [tmp_path]}, "--evaluation-text is not for GPT"),
        (gpt, {"merges": tmp_path}, "go with --text"),
        (bert, {"text": [tmp_path], "merges": tmp_path}, "--merges is for GPT"),
        (bert, {"vocabulary": tmp_path}, "go with --text"),
    ):
        with pytest.raises(UsageError, match=words):
            prepare(config, tmp_path, decode=False, workers=1, **options)  # type: ignore[arg-type]


def test_a_damaged_token_store_is_found_when_every_byte_is_read(tmp_path: Path) -> None:
    text, store = tmp_path / "text.txt", tmp_path / "store"
    text.write_text(plain_text(40, 3))
    prepare(gpt_shakespeare_baseline(), store, decode=False, workers=1, text=[text])
    prepare(gpt_shakespeare_baseline(), store, decode=True, workers=1)
    content = bytearray((store / "train.tokens").read_bytes())
    content[5] ^= 1
    (store / "train.tokens").write_bytes(content)
    with pytest.raises(DataError, match=r"train\.tokens"):
        prepare(gpt_shakespeare_baseline(), store, decode=True, workers=1)
