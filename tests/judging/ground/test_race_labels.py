"""The name that a race's table shows is a name that the other verbs take, and show."""

import json
import os
from pathlib import Path

import pytest

from judging.ground.race_labels import labels_in, resolved, side_at
from judging.pages.explorer.explored_sets import explored_sets

LABELS = {"digits_baseline-d0f80677": "baseline+sam", "digits_baseline": "python train/x.py --lr 1", "control": "b"}


@pytest.fixture
def race(tmp_path, monkeypatch, write_set) -> str:
    """A race of two sides and a control, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for place, side in enumerate(LABELS):
        write_set(Path("race") / side, [time - place for time in (10, 11, 12.1, 13, 14)], platform=f"1xCPU-{side}")
    Path("race/race.json").write_text(json.dumps({"race": {"sides": LABELS}}))
    return "race"


@pytest.mark.parametrize(
    ("typed", "folder"),
    [
        ("race/baseline+sam", "race/digits_baseline-d0f80677"),
        ("race/a", "race/digits_baseline-d0f80677"),
        ("race/python train/x.py --lr 1/result_0.txt", "race/digits_baseline/result_0.txt"),
        ("race/b", "race/control"),  # a label counts more than a letter
        ("race/digits_baseline", "race/digits_baseline"),
        ("race/none", "race/none"),
        ("race", "race"),
    ],
)
def test_a_path_may_have_a_label_or_a_letter(race, typed, folder):
    assert resolved(typed) == folder


def test_sides_are_compared_by_label_folder_or_letter_and_shown_by_label(race, printed):
    for sides in (["baseline+sam", "digits_baseline"], ["a", "python train/x.py --lr 1"]):
        said = printed("compare", race, *sides)
        assert "python train/x.py --lr 1 is faster: 1.09x as fast as baseline+sam (" in said
        assert "paired by run number, as sides of one race" in said
    assert "fast as baseline+sam (" in printed("compare", "race/a", "race/digits_baseline")


def test_scores_and_the_explorer_show_labels(race, printed, told):
    assert {score["label"] for score in told("score", race)} == {*LABELS.values()}
    assert "baseline+sam" in printed("score", race)
    assert {one["config"] for one in explored_sets([Path(race)])} == {*LABELS.values()}


def test_a_name_that_is_none_is_answered_with_the_near_one(race, refused):
    said = refused("compare", race, "baseline+san", "a")
    assert "race has no side 'baseline+san'. Did you mean baseline+sam? Sides: a (baseline+sam), b (python" in said
    for verb in (["score"], ["check"], ["compare"], ["explore", "--out", "page.html"]):
        assert "race/baseline-sam does not exist" in (said := refused(*verb, "race/baseline-sam"))
        assert "Did you mean race/baseline+sam?" in said
    assert "a does not exist" in refused("compare", "race/digits_baseline", "a", "b")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text('{"race": {"sides": {"a": ' + "[" * 100_000),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 33 << 20),
        os.mkfifo,
        Path.mkdir,
    ],
)
def test_a_race_file_that_is_none_has_no_labels(tmp_path, make):
    make(tmp_path / "race.json")
    assert labels_in(tmp_path) == {}


def test_the_whole_label_counts_and_a_folders_own_name_most(tmp_path):
    def sides(labels):
        (tmp_path / "race.json").write_text(json.dumps({"race": {"sides": labels}}))
        return tmp_path

    race = sides({"one": "lr", "two": "lr/2"})
    typed = {"lr": "one", "lr/2": "two", "lr/2/result_0.txt": "two/result_0.txt", "lr/3": "one/3"}
    assert {name: resolved(f"{race}/{name}") for name in typed} == {k: f"{race}/{v}" for k, v in typed.items()}
    race = sides({"a": "b", "b": "a", "../..": "up", "/etc": "root", "": "none", "x/y": "deep", ".": "here"})
    assert {name: side_at(race, name).name for name in "ab"} == {"a": "a", "b": "b"}
    assert resolved(f"{race}/a/result_0.txt") == f"{race}/a/result_0.txt"
    assert [*labels_in(race)] == ["a", "b"] and resolved(f"{race}/up") == f"{race}/up"


def test_a_path_that_is_too_long_is_none(race):
    long = f"{race}/{'x' * 5000}"
    assert resolved(long) == long
