"""Cards of the methods: what the code says of them, and how they are printed."""

import pytest

from timedrun.methods import BlurPool, ChannelsLast, SequenceLengthWarmup
from timedrun.methods.card import clashes, places, settings


def test_settings_places_and_clashes_are_those_of_the_code():
    assert settings(BlurPool)[-1] == "min_channels=16"
    assert settings(SequenceLengthWarmup)[0] == "steps (required)"
    assert places(BlurPool) == [] and places(ChannelsLast) == ["batch"]
    assert clashes("mixup").keys() >= {"cutmix"} and clashes("cutmix")["mixup"] == clashes("mixup")["cutmix"]


def test_list_methods_has_stages_and_settings(told, printed):
    listed = {row["method"]: row["stage"] for row in told("show", "methods")}
    assert listed["blurpool"] == "model" and listed["bf16"] == "setting"
    assert list(listed.values()).index("weights") > list(listed.values()).index("targets")
    assert "low-pass filter" in printed("show", "methods")


def test_show_method_prints_the_card_or_the_nearest_name(told, printed, refused):
    assert "arXiv 1904.11486" in printed("show", "method", "blurpool")
    assert told("show", "method", "bf16")["set by"] == "--precision bf16"
    assert "has no option --bogus" in refused("show", "method", "ema", "--bogus", 3)
    assert "Did you mean blurpool?" in refused("show", "method", "blurpol")
    assert printed("show", "method") == printed("show", "methods")


@pytest.mark.parametrize("word", ["methods", "command"])
def test_a_word_of_the_command_line_names_no_benchmark(word, tmp_path, refused):
    assert f"'{word}' is a word of `timedrun " in refused("new", "benchmark", word, "--out", tmp_path)
