"""check, score, package and plot over results on disk, as other programs call them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMOKE = ["image_classification", "smoke", "--data", "synthetic", "--threads", "1"]


def timedrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timedrun", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs of the smoke config, with five seeds."""
    folder = tmp_path_factory.mktemp("results") / "smoke"
    for seed in range(5):
        done = timedrun("run", *SMOKE, "--seed", seed, "--results", folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_check_says_per_file_what_both_checkers_found_and_exits_0_only_without_errors(results: Path) -> None:
    done = timedrun("check", results, "--json")
    checked = json.loads(done.stdout)
    files = [one for one in checked if one["path"].endswith(".txt")]
    assert done.returncode == 0
    assert len(files) == 5
    for one in files:
        assert (one["strict"], one["official"], one["ruleset"]) == ("pass", "pass", "2.0.0")
        assert one["checker"].startswith("mlperf-logging 4.1.")
        assert one["demonstration"]
        assert {"level", "rule", "line", "message"} <= set(one["findings"][0])


def test_a_failing_log_gives_exit_code_1_with_the_rule_and_line(results: Path, tmp_path: Path) -> None:
    text = (results / "result_0.txt").read_text().replace('"status": "success"', '"status": "aborted"')
    (tmp_path / "result_0.txt").write_text(text)
    done = timedrun("check", tmp_path / "result_0.txt", "--json")
    (one,) = json.loads(done.stdout)
    assert done.returncode == 1
    assert (one["strict"], one["official"]) == ("fail", "pass")  # MLCommons' checker takes an aborted run
    finding = next(finding for finding in one["findings"] if finding["level"] == "error")
    assert finding["line"] == len(text.splitlines())


def test_a_copied_log_is_found_when_the_set_is_checked(results: Path, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"result_{number}.txt").write_bytes((results / "result_0.txt").read_bytes())
    done = timedrun("check", tmp_path, "--no-official", "--json")
    assert done.returncode == 1
    folder = next(one for one in json.loads(done.stdout) if one["path"] == str(tmp_path))
    assert folder["strict"] == "fail"


def test_a_score_is_unverified_and_a_demonstration(results: Path) -> None:
    done = timedrun("score", results)
    assert done.returncode == 0
    assert "unverified" in done.stdout
    assert "demonstration" in done.stdout
    assert "Result not verified by MLCommons Association." in done.stdout
    (one,) = json.loads(timedrun("score", results, "--json").stdout)
    assert not one["verified"]
    assert len(one["runs"]) == 5
    assert one["score_minutes"] == pytest.approx(sum(sorted(one["runs"])[1:-1]) / 3)


@pytest.mark.processes
def test_a_package_passes_the_official_checker_and_calls_itself_a_demonstration(results: Path, tmp_path: Path) -> None:
    done = timedrun("package", results, "--out", tmp_path / "package")
    assert done.returncode == 0, done.stderr
    readme = next((tmp_path / "package").rglob("README.md")).read_text()
    assert "demonstration" in readme.lower()
    checked = timedrun("check", tmp_path / "package", "--json")
    assert checked.returncode == 0, checked.stdout
    assert any("package_checker" in one["checker"] for one in json.loads(checked.stdout))


def test_quality_over_time_is_drawn(results: Path, tmp_path: Path) -> None:
    done = timedrun("plot", results, "--out", tmp_path / "curves.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
