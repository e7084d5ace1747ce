"""`timedrun score`: its JSON, CSV, table and exit codes."""

import csv
import sys
from pathlib import Path

import pytest

from judging.ground import stdio
from judging.pages.score_table import distinct
from tests.judging.conftest import Printed, Told, WriteSet
from timedrun.cli import main


@pytest.fixture
def sets(tmp_path: Path, write_set: WriteSet) -> Path:
    """A set with a score and, below another folder, one without."""
    write_set(tmp_path / "sets" / "good")
    write_set(tmp_path / "sets" / "short", (10.0,))
    return tmp_path / "sets"


def test_json_is_a_list_that_says_unverified(sets: Path, told: Told) -> None:
    good, short = told("score", sets, code=1)
    keys = {"submitter", "system", "benchmark", "division", "ruleset", "runs", "score_minutes", "verified", "notice"}
    assert keys <= good.keys() and good["verified"] is False
    assert good["score_minutes"] == pytest.approx(12) and good["runs"] == pytest.approx([10, 11, 12, 13, 14])
    assert short["score_minutes"] is None and short["folder"] == "short"
    assert told("score", sets / "good")


def test_csv_has_one_row_per_set(sets: Path, tmp_path: Path, printed: Printed, refused: Printed) -> None:
    printed("score", sets, "--csv", tmp_path / "scores.csv", code=1)
    with open(tmp_path / "scores.csv", newline="") as file:
        good, short = csv.DictReader(file)
    assert float(good["score_minutes"]) == pytest.approx(12) and good["verified"] == "False"
    assert good["runs"].split() == ["10.0", "11.0", "12.0", "13.0", "14.0"] and good["slowest"] == "result_4.txt"
    assert short["score_minutes"] == "" and "exactly 5" in short["reason"]
    missing = tmp_path / "missing" / "scores.csv"
    assert "No such file or directory" in refused("score", sets, "--csv", missing, code=1)


def test_the_table_fits_a_terminal(sets: Path, printed: Printed) -> None:
    out = printed("score", sets, code=1)
    assert max(map(len, out.split("\n\n")[0].splitlines())) <= 100
    assert "dropped  result_0.txt (fastest), result_4.txt (slowest)" in out
    assert "score    none: it has 1 run, and" in out
    assert out.rstrip().endswith("Result not verified by MLCommons Association.")


def test_missing_paths_and_rulesets_are_refused(sets: Path, tmp_path: Path, refused: Printed) -> None:
    (tmp_path / "empty").mkdir()
    assert "nowhere" in refused("score", tmp_path / "nowhere")
    assert "no result_*.txt found in" in refused("score", sets, tmp_path / "empty")
    assert "9.9.9" in refused("score", sets, "--ruleset", "9.9.9")


@pytest.mark.parametrize(
    "names",
    [
        [f"HPE-Cray-XD670-Gen11-H100-SXM5-80GB_n{nodes}_pytorch_24.04" for nodes in (1, 2)],
        ["x" * 50 + "1", "x" * 50 + "2", "1" + "x" * 50, "x" * 25 + "3" + "x" * 25, "short", "short"],
        [],
    ],
)
def test_no_two_names_of_a_table_look_alike(names: list[str]) -> None:
    shown = distinct(names)
    assert len(set(shown)) == len(set(names)) and len(shown) == len(names)
    assert max(map(len, shown), default=0) <= max(map(len, names), default=0)
    assert distinct(["a" * 10, "b" * 60]) == ["a" * 10, "b" * 15 + "..." + "b" * 14]


def test_progress_is_shown_on_a_terminal_only_and_never_with_json(
    sets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stdio, "PATIENCE", 0.0)
    for terminal, words in ((True, []), (True, ["--json"]), (False, [])):
        for command in (["score"], ["check", "--no-official"]):
            monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)  # noqa: B023
            main([*command, str(sets), *words])
            assert (" of 2" in capsys.readouterr().err) == (terminal and not words)
