"""Preparation of text: bytes independent of workers and of an interruption, and errors that name their cause."""

import hashlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from judging.ground.errors import DataError, UsageError
from language_model.configs import BertRunConfig, topics_baseline, wikipedia_small_baseline
from language_model.prepare import prepare
from language_model.text import store as text_store
from language_model.text.corpus import Corpora
from language_model.text.settings import TextSettings
from language_model.text.store_builder import WORK, build_store
from language_model.text.vocabulary import read_vocabulary
from tests.language_model.text_samples import Inputs, plain_text, sentence, write_vocabulary

pytest.importorskip("tokenizers", reason="needs the extra 'language'")

SETTINGS = TextSettings(max_length=64, max_predictions=10, part_characters=4_000, evaluation_samples=50)


def build(inputs: Inputs, out: Path, **changes: Any) -> dict[str, Any]:
    train, evaluation, vocabulary = inputs
    settings = changes.pop("settings", SETTINGS)
    corpora = Corpora.of_files(train, evaluation, settings.held_out)
    return build_store(corpora, out, settings, **{"vocabulary": vocabulary, **changes})


def of_data(**changes: Any) -> BertRunConfig:
    config = wikipedia_small_baseline()
    return replace(config, data=replace(config.data, **changes))


def fingerprint(store: Path) -> dict[str, str]:
    """SHA-256 of every file, manifest included."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    return {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_store_holds_the_text_and_its_facts(tmp_path, inputs):
    train, evaluation, vocabulary = inputs
    found = build(inputs, tmp_path / "store")
    manifest = text_store.verify(tmp_path / "store")
    words = read_vocabulary(vocabulary)
    assert found["train_documents"] == 120 and found["evaluation_documents"] == 20
    assert found["evaluation_sequences"] == 50
    assert manifest.vocabulary_sha256 == words.sha256
    assert (tmp_path / "store/vocab.txt").read_bytes() == vocabulary.read_bytes()
    assert not (tmp_path / "store" / WORK).exists()
    for split in text_store.SPLITS:
        store = text_store.RaggedStore(tmp_path / "store", split)
        everything = store.read(np.arange(len(store)))
        assert len(everything.tokens) == found[f"{split}_tokens"]
        assert store.lengths.max() <= 64
        tokens = everything.tokens.copy()
        if isinstance(everything, text_store.MaskedSequences):
            assert len(everything.masked) == found["evaluation_masked_tokens"]
            tokens[everything.masked] = everything.labels
        assert (tokens == words.special.sep).sum() == 2 * len(store)
        assert not {words.special.unk, words.special.mask} & set(tokens)


@pytest.mark.processes
def test_bytes_depend_on_no_number_of_workers_and_a_damaged_or_foreign_finished_part_is_made_again(
    tmp_path, inputs, monkeypatch, capsys, forked_workers
):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(text_store.Manifest, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            build(inputs, tmp_path / "a")
    parts = sorted((tmp_path / "a" / WORK).glob("*.npz"))
    content = bytearray(parts[0].read_bytes())
    content[len(content) // 2] ^= 255
    parts[0].write_bytes(content)
    parts[1].write_bytes(parts[1].read_bytes()[:100])
    parts[2].write_bytes(parts[3].read_bytes())
    capsys.readouterr()
    build(inputs, tmp_path / "a", workers=2)
    assert f", {len(parts) - 3} shards already finished" in capsys.readouterr().err
    build(inputs, tmp_path / "b")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")


def test_preparing_again_has_no_effect_and_other_text_or_settings_are_refused(tmp_path, inputs):
    train, evaluation, vocabulary = inputs

    found = build(inputs, tmp_path / "store")
    before = fingerprint(tmp_path / "store")
    assert build(inputs, tmp_path / "store") | {"seconds": 0} == found | {"seconds": 0}
    for texts, settings, words in [
        (train, replace(SETTINGS, seed=1), "seed, parts_key differ"),
        (train, replace(SETTINGS, evaluation_samples=9), "evaluation_samples differ"),
        (train[:1], SETTINGS, "text differ"),
    ]:
        with pytest.raises(DataError, match=f"with other settings .*{words}"):
            build((texts, evaluation, vocabulary), tmp_path / "store", settings=settings)
    assert fingerprint(tmp_path / "store") == before


def test_a_refused_vocabulary_makes_no_store(tmp_path, inputs):
    vocabulary = write_vocabulary(tmp_path / "other.txt", without=["[MASK]", "[PAD]"])
    with pytest.raises(DataError, match=r"lacks \[PAD\], \[MASK\]"):
        build(inputs, tmp_path / "store", vocabulary=vocabulary)
    assert not (tmp_path / "store").exists()


def test_evaluation_documents_in_the_training_text_are_named_and_refused(tmp_path, inputs):
    train, evaluation, vocabulary = inputs
    copied = evaluation[0].read_text().split("\n\n")[3].upper().replace(" ", "  ")
    train[1].write_text(train[1].read_text() + "\n" + copied + "\n")
    with pytest.raises(DataError, match=r"1 evaluation documents .*\n  evaluation.txt: document 4 \(training: train_1"):
        build(inputs, tmp_path / "store")
    assert not (tmp_path / "store" / text_store.MANIFEST).exists()


def test_empty_documents_are_counted_and_listed(tmp_path, inputs):
    train, evaluation, vocabulary = inputs
    train[0].write_text("...\n\n" + train[0].read_text() + "\n\n- -\n")
    evaluation[0].write_text(evaluation[0].read_text() + "\n***\n")
    found = build(inputs, tmp_path / "store")
    assert (found["train_skipped_documents"], found["evaluation_skipped_documents"]) == (2, 1)
    assert (tmp_path / "store" / text_store.SKIPPED).read_text().splitlines() == [
        "train: train_0.txt: document 1",
        "train: train_0.txt: document 62",
        "evaluation: evaluation.txt: document 21",
    ]


def test_held_out_documents_are_whole_and_copies_stay_on_one_side(tmp_path):
    texts = plain_text(200, 5).strip().split("\n\n")
    Random(1).shuffle(texts)
    (tmp_path / "text").write_text("\n\n".join([*texts, *(text.upper() for text in texts[:60])]))
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    settings = replace(SETTINGS, held_out=0.3)
    found = build(([tmp_path / "text"], [], vocabulary), tmp_path / "store", settings=settings)
    assert found["train_documents"] + found["evaluation_documents"] == 260
    assert 40 <= found["evaluation_documents"] <= 120
    words = read_vocabulary(vocabulary).words
    sides = []
    for split in text_store.SPLITS:
        store = text_store.RaggedStore(tmp_path / "store", split)
        read = store.read(np.arange(len(store)))
        tokens = read.tokens.copy()
        if isinstance(read, text_store.MaskedSequences):
            tokens[read.masked] = read.labels
        sides.append(" ".join(words[token] for token in tokens).replace(" ##", ""))
    lines = {line for text in texts for line in text.lower().replace(".", " .").split("\n")}
    assert not [line for line in lines if line in sides[0] and line in sides[1]]
    assert sum(line in sides[0] for line in lines) > len(lines) / 2
    (tmp_path / "one").write_text("A single document.\n")
    with pytest.raises(DataError, match="no document is left for the"):
        build(([tmp_path / "one"], [], vocabulary), tmp_path / "none")


def test_a_vocabulary_is_trained_on_the_training_text_alone(tmp_path):
    random = Random(2)
    (tmp_path / "train").write_text("\n".join(sentence(random) for _ in range(200)))
    (tmp_path / "evaluation").write_text("Zyzzyva " * 400)
    corpora = Corpora.of_files([tmp_path / "train"], [tmp_path / "evaluation"], 0.0)
    build_store(corpora, tmp_path / "store", TextSettings(), vocabulary=120)
    words = read_vocabulary(tmp_path / "store/vocab.txt").words
    assert len(words) == 120 and "harbour" in words
    assert not [word for word in words if "zy" in word]


def test_prepare_builds_and_checks_a_store_of_the_configs_length(tmp_path, inputs):
    train, evaluation, vocabulary = inputs
    store, config = tmp_path / "store", wikipedia_small_baseline()
    prepare(config, store, decode=False, workers=1, text=train, evaluation_text=evaluation, vocabulary=vocabulary)
    manifest = text_store.read_manifest(store)
    assert manifest.longest <= config.data.longest == manifest.settings["max_length"]
    assert manifest.settings["max_predictions"] == 19
    found = prepare(config, store, decode=True, workers=1)
    assert found["train_sequences"] == manifest.splits["train"].sequences
    content = bytearray((store / "train/tokens.bin").read_bytes())
    content[5] ^= 1
    (store / "train/tokens.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"tokens\.bin: damaged"):
        prepare(config, store, decode=True, workers=1)


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (wikipedia_small_baseline(), {"folder": None, "text": [Path()]}, "--data-folder"),
        (topics_baseline(), {"text": [Path()]}, "cannot use other text"),
        (wikipedia_small_baseline(), {"vocabulary": Path()}, "need --text"),
        (of_data(longest=4), {"text": [Path()]}, "max_length"),
        (of_data(evaluation_samples=0), {"text": [Path()]}, "evaluation_samples"),
    ],
)
def test_options_without_effect_and_settings_without_sense_are_refused(tmp_path, config, options, words):
    with pytest.raises(UsageError, match=words):
        prepare(config, **{"folder": tmp_path, "decode": False, "workers": 1, **options})
