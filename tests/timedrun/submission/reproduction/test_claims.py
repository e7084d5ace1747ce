"""Reading of claims, with the precision of their digits."""

import json
from pathlib import Path
from typing import Any

import pytest

from timedrun.submission.reproduction.claims import ClaimError, decimals, packages, read_claims

CLAIM = {"submitter": "Example", "system": "box", "benchmark": "resnet", "minutes": "23.8"}


def written(folder: Path, values: Any, name: str = "claims.json") -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def test_a_number_keeps_the_digits_it_is_written_with_quoted_or_not(tmp_path: Path) -> None:
    text = '[{"system": "box", "benchmark": "resnet", "minutes": 23.80}, ' + json.dumps(CLAIM) + "]"
    first, second = read_claims(written(tmp_path, text))
    assert (first.minutes, second.minutes) == ("23.80", "23.8")
    assert first.names("anyone", "box", "resnet")
    assert not second.names("anyone", "box", "resnet")
    assert [decimals(figure, "") for figure in ("23.80", "24", "1e3", "0.12345678901234")] == [2, 0, -3, 9]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not a list of claims"),
        ([1], "claim 1 is not an object"),
        ([CLAIM, CLAIM | {"minutes": None}], "claim 2 is not an object of texts and numbers"),
        ([CLAIM | {"hours": "1"}], "claim 1 has unknown fields hours"),
        ([{"minutes": "1"}], "has no system and no benchmark"),
        ([{"system": "box", "benchmark": "resnet"}], "claims nothing"),
        ([CLAIM | {"minutes": "fast"}], "'fast', not a number"),
        ([CLAIM | {"quality": "NaN"}], "'NaN', not a number"),
        ([CLAIM | {"minutes": "1e-9999999999999999999"}], "not a number"),
        ([CLAIM | {"ratio": "4.5"}], "no ratio_to"),
    ],
)
def test_invalid_claims_are_refused(tmp_path: Path, values: Any, words: str) -> None:
    with pytest.raises(ClaimError, match=words.replace("(", r"\(")):
        read_claims(written(tmp_path, values))


def test_packages_are_found_by_their_manifest(tmp_path: Path) -> None:
    for name, values in {
        "store": {"version": 1, "files": {}},
        "broken": "{",
        "org": {"files": {"README.md": "00"}, "scores": [CLAIM | {"score_minutes": 23.75, "quality": None}]},
    }.items():
        (tmp_path / name).mkdir()
        written(tmp_path / name, values, "manifest.json")
    (package,) = packages(tmp_path)
    assert package.folder == tmp_path / "org"
    assert package.files == {"README.md": "00"}
    (claim,) = package.claims
    assert (claim.minutes, claim.quality, claim.scored) == ("23.75", None, True)


@pytest.mark.parametrize("scores", [[1], "none", [{"system": 1}], [CLAIM | {"score_minutes": "fast"}]])
def test_a_manifest_with_invalid_scores_is_refused(tmp_path: Path, scores: Any) -> None:
    written(tmp_path, {"files": {}, "scores": scores}, "manifest.json")
    with pytest.raises(ClaimError, match=r"manifest\.json"):
        packages(tmp_path)
