"""`timedrun prepare gpt`: token stores from text, checks of existing stores, usage errors."""

from dataclasses import replace
from pathlib import Path

import pytest

from judging.ground.errors import DataError, ExitCode, UsageError
from language_model.gpt.configs import shakespeare_baseline
from language_model.gpt.prepare import prepare
from timedrun.cli import main

CONFIG = shakespeare_baseline()


def test_prepare_builds_characters_and_checks_every_byte(text: str, tmp_path: Path) -> None:
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


def test_help_topics_need_no_text_and_have_one_vocabulary_on_every_python(tmp_path: Path) -> None:
    config = replace(CONFIG, dataset="topics")
    found = prepare(config, tmp_path / "store", decode=False, workers=1)
    assert found["vocabulary"] == 128 and found["train_tokens"] > 200_000
    assert prepare(config, tmp_path / "store", decode=True, workers=1) == found


def test_a_missing_folder_and_a_vocabulary_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data-folder"):
        prepare(CONFIG, None, decode=False, workers=1, text=[tmp_path])
    with pytest.raises(UsageError, match="need --text"):
        prepare(CONFIG, tmp_path, decode=False, workers=1, merges=tmp_path)


@pytest.mark.parametrize(
    ("benchmark", "option"), [("language_model.gpt", "--evaluation-text"), ("language_model", "--merges")]
)
def test_options_of_the_other_benchmark_are_refused(
    benchmark: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--data-folder", str(tmp_path), "--text", str(tmp_path)]
    assert main(["prepare", benchmark, "baseline", *folder, option, str(tmp_path)]) == ExitCode.USAGE
    assert option in capsys.readouterr().err
