"""Verdict on several examinations: the mean must reach the target, and one breach rejects the submission."""

import json
import re
from pathlib import Path

import pytest

from tests.timedrun.referee.test_referee_command import command, write_plain
from timedrun import cli
from timedrun.errors import ExitCode
from timedrun.referee.series import Series
from timedrun.referee.verdict import Finding, Verdict

LOSSES = [3.2761, 3.2790, 3.2784, 3.2769, 3.2775]


def verdict(loss: float, seconds: float = 10.0, *, passed: bool = True) -> Verdict:
    findings = [Finding("causality", passed, "answers before changed tokens")]
    return Verdict("0" * 64, True, findings, train_seconds=seconds, loss=loss, standard_error=0.01)


def series(losses: list[float], target: float | None = 3.28) -> Series:
    return Series([verdict(loss, 10 + loss) for loss in losses], target)


def test_a_target_is_reached_by_the_one_sided_t_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    judged = series(LOSSES)
    expected = stats.ttest_1samp(LOSSES, 3.28, alternative="less")
    interval = stats.ttest_1samp(LOSSES, 0).confidence_interval(0.95)
    assert judged.exit_code is ExitCode.OK and judged.as_json()["p_t"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert f"{sum(LOSSES) / 5:.4f} +- {(interval.high - interval.low) / 2:.4f}" in judged.sentence
    assert judged.sentence.startswith("accepted: mean loss") and f"p = {expected.pvalue:.2g}" in judged.sentence


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([3.279, 3.284, 3.276], "about [0-9,]+ runs would show it"),
        ([3.279, 3.284, 3.286], "the mean misses it"),
        ([3.279, 3.279], "2 runs of one quality"),
    ],
)
def test_a_target_that_is_missed_by_chance_or_cannot_be_tested_says_so(losses: list[float], reason: str) -> None:
    judged = series(losses)
    said = judged.as_json()
    assert judged.exit_code is ExitCode.TARGET_NOT_REACHED and not said["accepted"]
    assert (said["p_t"] is None) == (len({*losses}) == 1)
    assert re.fullmatch(f"rejected: target 3.2800, mean loss .*{reason}.*", judged.sentence)


def test_without_a_target_the_interval_is_the_result() -> None:
    assert series(LOSSES, None).exit_code is ExitCode.OK and "target" not in series(LOSSES, None).sentence


def test_one_breach_rejects_the_submission_and_names_its_run() -> None:
    judged = Series([verdict(3.1), verdict(3.0, passed=False)], 3.28)
    assert (judged.exit_code, judged.sentence) == (ExitCode.ERROR, "run 2: rejected: causality")
    assert "FAIL" in "\n".join(judged.lines(None)) and judged.lines(None)[-1] == judged.sentence


@pytest.mark.processes
def test_each_examination_has_a_seed_of_its_own(
    token_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plain(tmp_path)
    more = ("--no-sandbox", "--runs", "2", "--target", "4.1", "--json")
    code = cli.main(command(tmp_path, token_files, *more))
    said = json.loads(capsys.readouterr().out)
    assert len({*said["losses"]}) == 2 and code == (0 if said["accepted"] else 3)
    assert not [found for run in said["runs"] for found in run["findings"] if found["probe"] == "target"]
