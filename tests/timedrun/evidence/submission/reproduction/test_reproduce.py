"""Claims, with the precision of their digits, and comparison of recomputed scores with them."""

import json
import os
import re
import shutil
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.ground.result_files import digests
from judging.pages.score_table import NOTICE
from judging.scoring.score import score
from timedrun.evidence.submission.reproduction.claims import Claim, ClaimError, decimals, packages, read_claims
from timedrun.evidence.submission.reproduction.reproduce import agreement, reproduce

CLAIM = {"submitter": "Example", "system": "box", "benchmark": "resnet", "minutes": "23.8"}


def written(folder: Path, values: Any, name: str = "claims.json") -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def test_a_number_keeps_the_digits_it_is_written_with_quoted_or_not(tmp_path):
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
        ([CLAIM, CLAIM | {"minutes": None}], "claim 2 is not an object of texts and numbers"),
        ([CLAIM | {"hours": "1"}], "claim 1 has unknown fields hours"),
        ([{"minutes": "1"}], "has no system and no benchmark"),
        ([{"system": "box", "benchmark": "resnet"}], "claims nothing"),
        ([CLAIM | {"minutes": "fast"}], "'fast', not a number"),
        ([CLAIM | {"minutes": "1e-9999999999999999999"}], "not a number"),
        ([CLAIM | {"ratio": "4.5"}], "no ratio_to"),
    ],
)
def test_invalid_claims_are_refused(tmp_path, values, words):
    with pytest.raises(ClaimError, match=words.replace("(", r"\(")):
        read_claims(written(tmp_path, values))


def test_packages_are_found_by_their_manifest(tmp_path):
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
def test_a_manifest_with_invalid_scores_is_refused(tmp_path, scores):
    written(tmp_path, {"files": {}, "scores": scores}, "manifest.json")
    with pytest.raises(ClaimError, match=r"manifest\.json"):
        packages(tmp_path)


CLAIMS = Path(__file__).parents[5] / "results" / "published" / "mosaicml.json"


@pytest.fixture
def round_folder(tmp_path, write_set) -> Path:
    """Two systems of one submitter in the layout of a round: 12 and 3 minutes."""
    for system, times in {"slow": (10, 11, 12, 13, 14), "fast": (2, 2.9, 3, 3.1, 4)}.items():
        write_set(tmp_path / "Example" / "results" / system / "resnet", times, platform=system)
    (tmp_path / "Example" / "README.md").write_text("as it was packaged")
    return tmp_path


def make_manifest(folder: Path) -> None:
    """What a package says of itself, written for the logs in `folder` as they are."""
    values = {"scores": [asdict(one) for one in score([folder])], "files": digests(folder)}
    written(folder, values, "manifest.json")


@pytest.mark.parametrize(
    ("value", "claim", "verdict"),
    [
        (23.788506, "23.788", "truncated"),
        (23.788506, "11.894", "differs by +11.895"),
        (0.125, "0.13", "reproduced"),
        (1234.5, "1.2e3", "reproduced"),
        (0.055, "0e3", "differs by +0.055"),
        (0.0, "0.0", "reproduced"),
    ],
)
def test_claims_are_compared_to_their_own_digits(value, claim, verdict):
    assert verdict in agreement(value, claim)[1]


@given(value=st.floats(1e-6, 1e9), digits=st.integers(1, 9), off=st.integers(2, 1000))
def test_a_claim_agrees_if_its_last_digit_does(value, digits, off):
    exact = Decimal(repr(value))
    step = Decimal(1).scaleb(max(exact.adjusted() - digits + 1, -9))
    claim = exact.quantize(step)
    assert agreement(value, str(claim))[0] == ("reproduced" if claim else "differs")
    for other in (claim + off * step, claim - off * step):
        assert agreement(value, str(other.quantize(step)))[0] == "differs"


def test_every_claim_and_unclaimed_score_has_a_figure(round_folder):
    claims = [
        Claim(submitter="Example", system="slow", benchmark="resnet", minutes="12.0", source="here", note="a word"),
        Claim(system="fast", benchmark="resnet", quality="0.9", ratio_to="slow", ratio="4.0"),
        Claim(system="gone", benchmark="resnet", minutes="1", round="v2.1"),
    ]
    reproduction = reproduce(round_folder, claims)
    assert {(figure.system, figure.what): figure.verdict for figure in reproduction.figures} == {
        ("slow", "score"): "reproduced",
        ("fast", "score"): "not claimed",
        ("fast", "quality"): "differs",
        ("fast", "ratio to slow"): "reproduced",
        ("gone", "score"): "not here",
    }
    assert not reproduction.reproduced
    for words in ("12.000 min (unverified)", "4.000x (unverified)", "[1] here", "a word", NOTICE):
        assert words in reproduction.text
    assert "false: 2 of 3 claimed values present" in reproduction.text
    assert "Not here: 1 claim of v2.1 (gone resnet)." in reproduction.text
    assert json.loads(json.dumps(reproduction.as_dict()))["verified"] is False
    assert reproduce(round_folder, [claims[0], claims[2]]).reproduced
    nothing = reproduce(round_folder, claims[2:])
    assert not nothing.reproduced and "not shown: no claim is about the logs here." in nothing.text


def test_ratios_of_samples_and_speed_to_another_submitter_are_compared(round_folder, write_set):
    folder = round_folder / "Other" / "results" / "rival" / "resnet"
    # twice the epochs of Example's "fast", in four times its time
    write_set(folder, platform="rival", qualities=(0.1, 0.2, 0.3, 0.4, 0.6, 0.761))
    claims = [
        Claim(system="fast", benchmark="resnet", ratio_to=system, ratio_of=of, ratio=ratio)
        for system, of, ratio in (
            ("Other/rival", "minutes", "4.0"),
            ("Other/rival", "samples", "2.0"),
            ("Other/rival", "samples_per_second", "0.7"),
            ("gone", "minutes", "4.0"),
        )
    ]
    reproduction = reproduce(round_folder, claims)
    assert {figure.what: figure.verdict for figure in reproduction.figures if figure.claimed} == {
        "ratio to Other/rival": "reproduced",
        "ratio of samples to Other/rival": "reproduced",
        "ratio of samples per second to Other/rival": "differs",  # 0.5
        "ratio to gone": "not here",
    }
    assert reproduce(round_folder, [claims[0], claims[3]]).reproduced
    assert {claim.entry for claim in read_claims(CLAIMS)} == {"", "2.1-2095", "2.1-2096"}
    named = reproduce(round_folder, [Claim(system="fast", benchmark="resnet", minutes="3", entry="2.1-7")])
    assert "fast (2.1-7)" in named.text and named.as_dict()["figures"][0]["entry"] == "2.1-7"


def test_a_claim_on_a_set_that_has_no_score_says_why(tmp_path, write_set):
    write_set(tmp_path / "Example" / "results" / "box" / "resnet", (1.0, 2.0), platform="box")
    claim = Claim(system="box", benchmark="resnet", minutes="1.5", ratio_to="other", ratio="2")
    reproduction = reproduce(tmp_path, [claim])
    assert [figure.verdict for figure in reproduction.figures] == ["cannot be scored", "not here"]
    assert "exactly 5" in reproduction.text and not reproduction.reproduced
    make_manifest(tmp_path / "Example")  # claims no score
    reproduction = reproduce(tmp_path)
    (score,) = [figure for figure in reproduction.figures if figure.what == "score"]
    assert score.verdict == "reproduced" and "no score, as claimed" in score.words and reproduction.reproduced


def test_a_packages_claims_agree_with_its_manifest_under_any_name_of_its_folder_but_not_without_logs(round_folder):
    make_manifest(round_folder / "Example")
    for path in (round_folder, round_folder / "Example"):
        reproduction = reproduce(path)
        assert reproduction.reproduced and reproduction.files == ()
        assert {figure.what for figure in reproduction.figures} == {"score", "quality"}
    (round_folder / "Example").rename(round_folder / "copy")
    reproduction = reproduce(round_folder / "copy")
    assert reproduction.reproduced and {figure.verdict for figure in reproduction.figures} == {"reproduced"}
    assert "manifest's submitter is Example, the folder is copy" in reproduction.text
    shutil.rmtree(round_folder / "copy" / "results" / "slow")
    without = reproduce(round_folder / "copy")
    assert not without.reproduced
    assert {figure.verdict for figure in without.figures if figure.system == "slow"} == {"not found"}


def test_forged_times_of_a_package_are_detected(round_folder):
    folder = round_folder / "Example"
    make_manifest(folder)
    logs = sorted((folder / "results" / "slow" / "resnet").glob("result_*.txt"))
    for log in logs:  # as a forger makes it: every time half as far from the first
        times = [int(time) for time in re.findall(r'(?<="time_ms": )\d+', log.read_text())]
        halved = (str(times[0] + (time - times[0]) // 2) for time in times)
        log.write_text(re.sub(r'(?<="time_ms": )\d+', lambda _, halved=halved: next(halved), log.read_text()))
    (folder / "README.md").unlink()
    (folder / "extra.txt").write_text("new")
    reproduction = reproduce(round_folder)
    assert not reproduction.reproduced
    (slow,) = [figure for figure in reproduction.figures if (figure.system, figure.what) == ("slow", "score")]
    assert slow.verdict == "differs" and slow.recomputed == pytest.approx(6, rel=0.05)
    changes = {(file.change, Path(file.file).name) for file in reproduction.files}
    assert changes == {("changed", log.name) for log in logs} | {("missing", "README.md"), ("added", "extra.txt")}
    assert "Example: files that differ from manifest.json" in reproduction.text
    assert "7 files differ from the package's manifest." in reproduction.text


def test_hostile_names_are_shown_and_cannot_write_to_a_terminal(round_folder):
    make_manifest(round_folder / "Example")
    for name in (b"a\nb.txt", b"\x1b[2J.txt", b"\xff.txt"):
        with open(os.path.join(os.fsencode(round_folder / "Example"), name), "w"):
            pass
    claims = [Claim(system="slow", benchmark="resnet", minutes="12", source="\x1b[31mred")]
    reproduction = reproduce(round_folder, claims)
    assert len(reproduction.files) == 3 and "\x1b" not in reproduction.text
    assert "added: a\\nb.txt" in reproduction.text
    reproduction.text.encode()
    json.dumps(reproduction.as_dict()).encode()


def test_the_published_results_and_ratios_are_reproduced(published):
    reproduction = reproduce(published, read_claims(CLAIMS))
    assert reproduction.reproduced, reproduction.text
    for words in ("110.513 min (unverified)", "4.646x (unverified)", "2.707x (unverified)", NOTICE):
        assert words in reproduction.text


def test_results_without_claims_are_scored_and_a_race_once_though_its_package_holds_the_same_logs(round_folder):
    reproduction = reproduce(round_folder)
    assert [figure.verdict for figure in reproduction.figures] == ["not claimed", "not claimed"]
    assert "not shown: no claims were made" in reproduction.text and reproduction.reproduced
    shutil.copytree(round_folder / "Example", round_folder / "package" / "Example")
    assert len(score([round_folder])) == 4  # not a race
    (round_folder / "race.json").touch()
    assert len(score([round_folder])) == len(score([round_folder / "package"])) == 2
