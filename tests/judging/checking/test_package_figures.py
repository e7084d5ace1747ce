"""A package whose README or manifest states other figures than but its logs yield fails the strict checks."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.checking.verdicts import check_paths
from tests.judging.conftest import write_source
from timedrun.evidence.submission.packaging.package import package

SYSTEM = "1xCPU-baseline"
RESULT = f"results/{SYSTEM}/resnet/result_2.txt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_set) -> Path:
    """A package of five runs of 10 to 14 minutes, whose score is 12; tests change copies."""
    place = tmp_path_factory.mktemp("whole")
    results, source = make_set(place / "set", config_digest="a" * 64), write_source(place / "source")
    return package([results], place / "out", submitter="Example", source=source, check=False).folder


@pytest.fixture
def made(whole, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "out" / "Example"))


def messages(folder: Path, rule: str = "figures", level: str = "error") -> list[str]:
    (package_result,) = [path for path in check_paths([folder], None, run_official=False) if path.kind == "package"]
    findings = package_result.findings
    return [finding.message for finding in findings if (finding.rule, finding.level) == (rule, level)]


def resealed(folder: Path, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> None:
    """Apply `change` to the manifest, and write the digests of all files into it as they are now."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for place in manifest["files"]:
        manifest["files"][place] = hashlib.sha256((folder / place).read_bytes()).hexdigest()
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_log_that_was_copied_over_another_is_one_error_of_its_package(made):
    shutil.copy(made / RESULT, made / RESULT.replace("2.txt", "3.txt"))
    results = check_paths([made], None, run_official=False)
    rules = [finding.rule for result in results for finding in result.findings if finding.level == "error"]
    assert rules.count("copied-log") == 1 and results[-1].failed
    assert not {"figures", "manifest", "repeated-seed"}.intersection(rules)


def test_a_package_as_it_was_made_states_what_its_logs_give(made):
    assert messages(made) == messages(made, "manifest") == []
    assert messages(made.rename(made.with_name("Renamed"))) == []


@pytest.mark.parametrize("place", ["README.md", f"benchmarks/resnet/implementations/{SYSTEM}/README.md"])
def test_an_edited_score_in_a_readme_is_found_though_the_manifest_was_sealed_again(made, place):
    assert "12.000 min" in (made / place).read_text()
    (made / place).write_text((made / place).read_text().replace("12.000 min", "11.000 min"))
    assert messages(made, "manifest"), "its digest differs"
    resealed(made)
    assert messages(made, "manifest") == []
    (message,) = messages(made)
    stated, _, found = message.partition("but the logs yield")
    assert "11.000" in stated and "12.000" in found and "11.000" not in found


def test_scores_of_two_systems_that_were_exchanged_in_a_readme_are_found(tmp_path, make_set):
    sets = [
        make_set(tmp_path / name, config_digest="a" * 64, platform=f"1xCPU-{name}", times=[least] * 5)
        for name, least in (("fast", 10.0), ("slow", 20.0))
    ]
    source = write_source(tmp_path / "source")
    folder = package(sets, tmp_path / "out", submitter="Example", source=source, check=False).folder
    assert messages(folder) == []
    text = (folder / "README.md").read_text()
    other = {"1xCPU-fast": "1xCPU-slow", "1xCPU-slow": "1xCPU-fast"}
    (folder / "README.md").write_text(re.sub("1xCPU-(fast|slow)", lambda match: other[match[0]], text))
    (message,) = messages(folder)
    assert "has 1xCPU-fast resnet 5 5 20.000" in message and "yield 1xCPU-fast resnet 5 5 10.000" in message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m["scores"][0].update(score_minutes=11.0), "score_minutes .* is 11.0, but its logs yield 12"),
        (lambda m: m["scores"][0]["runs"].__setitem__(2, 11.5), "runs of .* but its logs yield"),
        (lambda m: m["scores"][0].pop("quality"), "quality .* is missing, but its logs yield 0.761"),
        (lambda m: m["scores"][0].update(demonstration=1), "demonstration .* but its logs yield False"),
        (lambda m: m["scores"][0].update(runs_needed=True), "runs_needed .* but its logs yield 5"),
        (lambda m: m["scores"].insert(0, {**m["scores"][0], "mean": 3.2}), "mean .* is 3.2, but its logs yield 12"),
        (lambda m: m["runs"].insert(0, {**m["runs"][0], "results": []}), "results of .* but its logs yield"),
        (lambda m: m["scores"].clear(), "score_minutes .* is missing"),
        (lambda m: m["scores"].append({"system": "faster", "benchmark": "resnet"}), "not in results.*faster"),
        (lambda m: m["runs"][0].update(config_digest="b" * 64), "config_digest .* but its logs yield .aaa"),
        (lambda m: m["runs"][0]["results"].pop(), "results of .* but its logs yield"),
    ],
)
def test_an_edited_manifest_is_found(made, change, text):
    resealed(made, change)
    assert any(re.search(text, message) for message in messages(made)), messages(made)


@pytest.mark.parametrize("scores", [None, "", [None], [{"system": []}], {"a": 1}])
def test_a_malformed_manifest_is_an_error_and_no_crash(made, scores):
    resealed(made, lambda manifest: manifest.update(scores=scores, ruleset=["2.0.0"]))
    assert any("score_minutes" in message for message in messages(made))


def test_hostile_figures_and_empty_sets_are_findings_and_no_crash(made):
    hostile = [10**400, -(10**400), float("nan"), float("inf"), {"a": 1}]
    deep = json.loads("[" * 500 + "]" * 500)
    resealed(made, lambda m: m["scores"][0].update(mean=10**400, runs=hostile, median=deep, quality=float("nan")))
    (made / "results" / SYSTEM / "bert").mkdir()
    (made / "results" / "other" / "no_benchmark").mkdir(parents=True)
    starts = {message.split()[0] for message in messages(made)}
    assert {"mean", "runs", "median", "quality"} <= starts


def test_figures_that_follow_from_one_changed_log_are_one_finding(made):
    def slower(manifest):
        manifest["scores"][0]["runs"][2] += 1
        manifest["scores"][0].update(mean=1.0, median=2.0)

    resealed(made, slower)
    (message,) = [text for text in messages(made) if "runs of" in text]
    assert message.startswith("3 figures follow from result_2.txt") and message.endswith("mean, median differ with it")
    assert not any(text.startswith(("mean of", "median of")) for text in messages(made))


def test_a_changed_digest_and_a_replaced_log_are_found(made, write_run):
    resealed(made, lambda manifest: manifest["files"].update({RESULT: "0" * 64}))
    assert "was changed after packaging" in messages(made, "manifest")[0]
    shutil.copy(write_run(made.parent / "faster", 2, minutes=9.0, config_digest="a" * 64), made / RESULT)
    assert messages(made, "manifest")
    resealed(made)
    assert messages(made, "manifest") == [] and any("score_minutes" in message for message in messages(made))


def test_a_package_without_its_manifest_is_an_error_and_one_made_by_hand_a_warning(made):
    resealed(made, lambda manifest: manifest.pop("scores"))
    assert "no manifest.json with scores" in messages(made, "manifest")[0]
    (made / "manifest.json").unlink()
    assert "no manifest.json" in messages(made, "manifest")[0]
    for source in made.glob("benchmarks/*/implementations/timedrun"):
        source.rename(source.with_name("code"))
    assert not messages(made, "manifest") and "no manifest.json" in messages(made, "manifest", "warning")[0]
