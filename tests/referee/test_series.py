"""Verdict on several examinations: the mean must reach the target, and one breach rejects the submission."""

import json
import re
from pathlib import Path

import pytest

from judging.comparison.speedup_ratio import compare
from judging.ground.errors import ExitCode
from referee.retiming import Retiming
from referee.series import Series
from referee.verdict import Finding, Verdict
from tests.referee.test_referee_command import command, write_plain
from timedrun import cli

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


def test_without_a_target_the_interval_is_the_result_and_one_breach_rejects_the_submission() -> None:
    assert series(LOSSES, None).exit_code is ExitCode.OK and "target" not in series(LOSSES, None).sentence
    judged = Series([verdict(3.1), verdict(3.0, passed=False)], 3.28)
    assert (judged.exit_code, judged.sentence) == (ExitCode.ERROR, "run 2: rejected: causality")
    assert "FAIL" in "\n".join(judged.lines(None)) and judged.lines(None)[-1] == judged.sentence


def test_a_record_is_beaten_by_pairs_and_a_breach_of_either_ends_it() -> None:
    fast, slow = [[verdict(3.27, seconds) for seconds in times] for times in ([10.0, 11.0, 9.0], [20.0, 21.0, 19.0])]
    judged = Retiming(Series(fast, None), Series(slow, None))
    expected = compare([20.0, 21.0, 19.0], [10.0, 11.0, 9.0], paired=True)
    said = judged.as_json()["ratio"]
    assert (said["ratio"], said["low"], said["verdict"]) == (expected.value, expected.low, "faster")
    assert judged.exit_code is ExitCode.OK and "the submission is faster" in judged.lines(None)[-2]
    ended = Retiming(Series(fast, None), Series([verdict(3.2, passed=False)], None))
    assert (ended.exit_code, ended.ratio, ended.lines(None)[-1]) == (ExitCode.ERROR, None, Series(fast, None).sentence)


@pytest.mark.processes
@pytest.mark.usefixtures("referee")
def test_a_script_and_a_record_are_examined_in_turns(
    token_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "submission", tmp_path / "record"]
    for path, first in zip(paths, ("", "import time\ntime.sleep(0.01)\n"), strict=True):
        path.mkdir()
        write_plain(path, first)
    line = command(paths[0], token_files, "--against", str(paths[1]), "--json")
    assert cli.main([*line, "--runs", "2"]) == 2
    assert cli.main([*line, "--runs", "3"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [len(said[side]["losses"]) for side in ("submission", "record")] == [3, 3]
    digests = {run["submission_sha256"] for side in ("submission", "record") for run in said[side]["runs"]}
    assert len(digests) == 2 and said["ratio"]["runs_slow"] == 3


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
