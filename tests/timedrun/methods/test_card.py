"""Cards of the methods: what the code says of them, and how they are printed."""

import json

import pytest

from judging.ground.errors import ExitCode
from timedrun.cli import main
from timedrun.methods import BlurPool, ChannelsLast, SequenceLengthWarmup
from timedrun.methods.card import clashes, places, settings


def test_settings_places_and_clashes_are_those_of_the_code():
    assert settings(BlurPool)[-1] == "min_channels=16"
    assert settings(SequenceLengthWarmup)[0] == "steps (required)"
    assert places(BlurPool) == [] and places(ChannelsLast) == ["batch"]
    assert clashes("mixup").keys() >= {"cutmix"} and clashes("cutmix")["mixup"] == clashes("mixup")["cutmix"]


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        ("list methods", ExitCode.OK, "low-pass filter"),
        ("show method blurpool", ExitCode.OK, "arXiv 1904.11486"),
        ("show method bf16 --json", ExitCode.OK, '"set by": "--precision bf16"'),
        ("show method ema --bogus 3", ExitCode.USAGE, "has no option --bogus"),
        ("show method blurpol", ExitCode.USAGE, "Did you mean blurpool?"),
        ("show methods", ExitCode.USAGE, ""),
    ],
)
def test_cards_are_listed_and_shown_or_the_nearest_name(words, code, printed, capsys):
    assert main(words.split()) == code
    assert printed in "".join(capsys.readouterr())


def test_list_methods_has_stages_in_their_order(capsys):
    assert main(["list", "methods", "--json"]) == ExitCode.OK
    listed = {row["method"]: row["stage"] for row in json.loads(capsys.readouterr().out)}
    assert listed["blurpool"] == "model" and listed["bf16"] == "setting"
    assert list(listed.values()).index("weights") > list(listed.values()).index("targets")


@pytest.mark.parametrize("word", ["methods", "command"])
def test_a_word_of_the_command_line_names_no_benchmark(word, tmp_path, capsys):
    assert main(["new", "benchmark", word, "--out", str(tmp_path)]) == ExitCode.USAGE
    assert f"'{word}' is a word of `timedrun " in capsys.readouterr().err
