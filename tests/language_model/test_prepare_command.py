"""`timedrun prepare language_model`: stores of the config's length, checks of existing stores, usage errors."""

from pathlib import Path

import pytest

from judging.ground.errors import DataError, UsageError
from language_model.configs import topics_baseline, wikipedia_small_baseline
from language_model.prepare import prepare
from language_model.text.store import read_manifest
from tests.language_model.text_samples import Inputs

pytest.importorskip("tokenizers", reason="needs the extra 'language'")


def test_prepare_builds_and_checks_a_store_of_the_configs_length(tmp_path: Path, inputs: Inputs) -> None:
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
    with pytest.raises(DataError, match=r"tokens\.bin: damaged"):
        prepare(config, store, decode=True, workers=1)


def test_text_without_a_folder_or_for_a_source_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data-folder"):
        prepare(wikipedia_small_baseline(), None, decode=False, workers=1, text=[tmp_path])
    with pytest.raises(UsageError, match="cannot use other text"):
        prepare(topics_baseline(), tmp_path, decode=False, workers=1, text=[tmp_path])


def test_a_vocabulary_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="need --text"):
        prepare(wikipedia_small_baseline(), tmp_path, decode=False, workers=1, vocabulary=tmp_path)
