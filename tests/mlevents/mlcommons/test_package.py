"""An organization's folder, asked of MLCommons' package checker and result summarizer on a copy."""

import json
import os
import re
import shutil

import pytest

from mlevents import mlcommons
from tests.mlevents.package_checker.package_mutations import write_good_package


def content(folder):
    """Kind, mode, time and content of everything below `folder`."""
    about = {path: path.lstat() for path in folder.rglob("*")}
    read = {path: path.read_bytes() for path in about if path.is_file()}
    return {path: (kind.st_mode, kind.st_mtime_ns, read.get(path)) for path, kind in about.items()}


@pytest.fixture
def package(tmp_path):
    """An organization's folder with one system and five resnet results."""
    return write_good_package(tmp_path / "Nobody")


def test_a_whole_package_passes(package):
    before = content(package)
    verdict = mlcommons.check_package(package, "2.0.0")
    assert (verdict.verdict, verdict.own_round, verdict.messages) == ("pass", "pass", ())
    assert content(package) == before


def test_a_package_that_lacks_a_run_fails_although_the_tool_exits_0(package):
    (package / "results" / "laptop" / "resnet" / "result_4.txt").unlink()
    broken = package / "results" / "laptop" / "resnet" / "result_2.txt"
    broken.write_text(broken.read_text().replace('"run_stop"', '"run_end"'))
    verdict = mlcommons.check_package(package, "2.0.0")
    assert verdict.verdict == "fail" and verdict.messages == (
        "Incorrect number of files in dir, or wrong file names in directory results/laptop/resnet, found 4, expected 5",
        "results/laptop/resnet/result_2.txt: Required EXACTLY_ONE occurrence of 'run_stop' but found 0",
        "results/laptop/resnet: 1 file does not comply, accepting this under olympic scoring",
    )


@pytest.mark.parametrize(
    ("place", "target"),
    [("results/laptop/resnet/result_4.txt", "../../../../elsewhere.txt"), ("results/circle", "circle")],
)
def test_links_and_pipes_are_not_followed_out_of_a_package(package, tmp_path, place, target):
    results = package / "results" / "laptop" / "resnet"
    (results / "result_4.txt").rename(tmp_path / "elsewhere.txt")
    os.mkfifo(results / "pipe")
    (package / place).symlink_to(target)
    verdict = mlcommons.check_package(package, "2.0.0")
    assert (verdict.verdict, verdict.messages) == ("fail", (f"{place} is a link that leads out of the package",))


def test_a_line_that_is_too_long_for_mlcommons_parser_is_not_given_to_it(package):
    with (package / "results" / "laptop" / "resnet" / "result_3.txt").open("a") as log:
        log.write(f":::MLLOG {'x' * 400_000}\n")
    verdict = mlcommons.check_package(package, "2.0.0")
    assert verdict.verdict == "not run"
    assert re.match(r"results/laptop/resnet/result_3.txt, line [0-9]+ has 400,009 characters", verdict.messages[0])


def test_a_package_without_description_fails_and_a_checker_that_hangs_is_not_run(package, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(mlcommons, "PACKAGE_SECONDS", 0.01)
        verdict = mlcommons.check_package(package, "2.0.0")
    assert verdict.verdict == "not run" and "was stopped" in verdict.messages[0]
    (package / "systems" / "laptop.json").unlink()
    verdict = mlcommons.check_package(package, "2.0.0")
    assert verdict.verdict == "fail"
    assert verdict.messages[0] == (
        "package_checker was aborted: FileNotFoundError: [Errno 2] No such file or directory: 'systems/laptop.json'"
    )
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        mlcommons.check_package(package / "absent", "2.0.0")


def test_a_closed_package_is_told_about_seeds_and_keys(package):
    results = package / "results" / "laptop" / "resnet"
    for path in (package / "systems" / "laptop.json", *results.iterdir()):
        path.write_text(path.read_text().replace('"open"', '"closed"').replace('"value": 64,', '"value": 3264,'))
    (results / "result_1.txt").write_bytes((results / "result_0.txt").read_bytes())
    before = content(package)
    verdict = mlcommons.check_package(package, "2.0.0")
    assert verdict.verdict == "fail"
    folder = "results/laptop/resnet"
    assert f"{folder}: Seed checker failed" in verdict.messages
    assert any("result_1.txt logs seed 1 on train.py:8. However" in message for message in verdict.messages)
    # A rule that quotes 161 weights does not drown the others.
    assert any("failed test: sorted(s['initialized_tensors'])" in message for message in verdict.messages)
    assert max(map(len, verdict.messages)) < 1100
    # Their logs lack the closed division's keys, so that there is no run to score.
    (why,) = [message for message in verdict.messages if "computes no score" in message]
    assert why.startswith("result_summarizer computes no score for resnet of laptop: CRITICAL ERROR: Too many non-con")
    assert content(package) == before


def test_one_system_that_breaks_the_summarizer_off_alone_is_without_a_score(package):
    description = json.loads((package / "systems" / "laptop.json").read_text())
    shutil.copytree(package / "results" / "laptop", package / "results" / "desktop")
    (package / "systems" / "desktop.json").write_text(json.dumps(description | {"number_of_nodes": "1 node"}))
    verdict = mlcommons.check_package(package, "2.0.0")
    assert verdict.verdict == "pass"
    (why,) = verdict.messages
    assert why.startswith(
        "result_summarizer computes no score for resnet of desktop: it was aborted: ValueError: invalid lit"
    )
