"""Sides of a race that are configs."""

import json

import pytest

from judging.ground.errors import UsageError
from timedrun.evidence.config_sides import ConfigSide, ablation, sides_of
from timedrun.runner.benchmark import find
from timedrun.runner.config import dump

IMAGES = find("image_classification")


def named(*texts: str, overrides: str = "") -> list[ConfigSide]:
    return sides_of(IMAGES, texts, "digits", overrides.split())


def test_a_config_against_itself_is_two_sides_with_equal_settings(tmp_path):
    sides = named("methods", "digits_methods")
    assert [side.label for side in sides] == ["digits_methods", "digits_methods (again)"]
    assert [side.config.name for side in sides] == ["digits_methods", "digits_methods_2"]
    assert sides[0].config.methods == sides[1].config.methods
    (file := tmp_path / "mine.json").write_text(json.dumps(dump(sides[0].config)))
    assert [side.label for side in named("methods", f"{file}-blurpool")] == ["digits_methods", "mine.json-blurpool"]
    (tmp_path / "other").mkdir()
    (other := tmp_path / "other/mine.json").write_text(file.read_text())
    assert [side.label for side in named(str(file), str(other))] == [str(file), str(other)]


def test_overrides_are_for_all_sides_or_for_that_of_a_letter():
    sides = named(
        "baseline", "methods-blurpool", overrides="--optimizer.peak-lr 0.3 --b.methods.ema.half-life 4 --a.seed 9"
    )
    assert [side.config.optimizer.peak_lr for side in sides] == [0.3, 0.3]
    assert sides[0].config.seed == 9 and sides[1].config.seed != 9
    assert [method for method in sides[1].config.methods if method.name == "ema"][0].half_life == 4  # type: ignore[attr-defined]
    assert [side.label for side in sides] == ["baseline seed 9", "methods-blurpool methods.ema.half-life 4"]
    with pytest.raises(UsageError, match=r"there is no side c; sides: a \(baseline\), b \(methods\)"):
        named("baseline", "methods", overrides="--c.seed 3")
    many = named(*["methods"] * 27, overrides="--27.seed 5")
    assert [side.config.seed for side in many[-2:]] == [1, 5]


def test_an_ablation_leaves_out_and_adds_each_method():
    (full,) = named("methods")
    names = [method.name for method in full.config.methods]
    sides, comparisons = ablation([full])
    assert [(comparison.row, comparison.slow, comparison.fast) for comparison in comparisons] == [
        ("all methods, left out", "digits_methods_bare", "digits_methods"),
        *((f"{name}, left out", f"digits_methods-{name}", "digits_methods") for name in names),
        *((f"{name}, alone", "digits_methods_bare", f"digits_methods_bare+{name}") for name in names),
    ]
    whole = full.config.methods
    assert {side.config.name: side.config.methods for side in sides} == {
        "digits_methods": whole,
        "digits_methods_bare": (),
        **{f"digits_methods-{name}": tuple(m for m in whole if m.name != name) for name in names},
        **{f"digits_methods_bare+{name}": tuple(m for m in whole if m.name == name) for name in names},
    }


def test_equal_sides_of_an_ablation_run_once_and_a_base_keeps_its_own_methods():
    (full,) = named("baseline+ema(half_life=8)-channels_last")  # two methods: either alone is the other left out
    sides, comparisons = ablation([full])
    assert len(sides) == 4 and len(comparisons) == 5
    _, comparisons = ablation([named("baseline")[0], full])
    assert [comparison.row for comparison in comparisons if comparison.row.endswith("alone")] == ["ema, alone"]
    with pytest.raises(UsageError, match="2 or more methods"):
        ablation(named("methods-blurpool-ema-channels_last"))
