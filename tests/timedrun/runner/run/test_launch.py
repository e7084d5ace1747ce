"""Verdict on a run from its log, and from its ranks where the log does not tell; restarts after a lost rank."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.runlog import RunLog
from timedrun.runner.benchmark import find
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.process.launch_env import LaunchEnv
from timedrun.runner.process.status_files import End
from timedrun.runner.process.stop_signals import ABORTED
from timedrun.runner.process.verdict import Verdict, verdict_of
from timedrun.runner.run import launch
from timedrun.runner.run.worker import LaunchOptions

KILLED = End(lost="rank 0 was killed by SIGKILL", begun=True)
EXITED = End((0, 0), begun=True)
SECOND = End(signal=signal.SIGINT, at_once=True, begun=True)
RESUME = "resume from step 10 with the same command and --resume"


def result(folder: Path, log: str | None = None, ranks: tuple[int, ...] = (), number: int = 0) -> ResultPaths:
    """Paths of a result. log: None: there is none; "": without run_stop; else success or the reason in run_stop. ranks:
    those with a checkpoint of step 10."""
    paths = ResultPaths(folder, number)
    if log is not None:
        writer = RunLog(paths.log)
        writer.start(keys.RUN_START)
        if log == keys.SUCCESS:
            writer.end(keys.RUN_STOP, status=log)
        elif log:
            writer.close(reason=log)
    for rank in ranks:
        (paths.checkpoints / f"rank_{rank}").mkdir(parents=True)
        (paths.checkpoints / f"rank_{rank}" / "step_00000010.pt").touch()
    return paths


ELSEWHERE = "the ranks of this node exited{}; see the log on node 0 for the outcome."
ON_NODE_1 = {"first_node": False}


@pytest.mark.parametrize(
    ("log", "end", "step", "of", "code", "words"),
    [
        (keys.SUCCESS, KILLED, None, {}, ExitCode.OK, ["target reached in"]),
        ("", EXITED, None, {}, ExitCode.ERROR, ["no run_stop"]),
        (None, EXITED, None, {}, ExitCode.ERROR, ["the log of the run was removed"]),
        ("target not reached", KILLED, None, {}, ExitCode.TARGET_NOT_REACHED, ["target not reached"]),
        ("budget spent", KILLED, None, {}, ExitCode.TARGET_NOT_REACHED, ["budget spent"]),
        ("stopped by signal", KILLED, None, {}, ExitCode.STOPPED_RESUMABLE, ["stopped by signal", "--resume"]),
        ("DataError: gone", KILLED, None, {}, ExitCode.RANK_LOST, [KILLED.lost, "the log has: DataError: gone"]),
        (KILLED.lost, KILLED, 10, {}, ExitCode.RANK_LOST, [f"run aborted: {KILLED.lost}; {RESUME}"]),
        ("no heartbeat from rank 0 (last step 12); run aborted", KILLED, 10, {},
         ExitCode.RANK_LOST, [f"{KILLED.lost}; the log has: no heartbeat from rank 0 (last step 12); {RESUME}"]),
        ("", KILLED, 10, {}, ExitCode.RANK_LOST, [KILLED.lost, "no run_stop", RESUME]),
        ("", SECOND, None, {}, ExitCode.INTERRUPTED, ["a signal", "no run_stop"]),
        (ABORTED, SECOND, 10, {}, ExitCode.INTERRUPTED, [f"run aborted: {ABORTED}; {RESUME}"]),
        (Outcome.STOPPED_CLOSED.value, EXITED, None, {}, ExitCode.ERROR, ["closed division", "start it again"]),
        # Of a node without rank 0 it is that of its ranks.
        (None, EXITED, 10, ON_NODE_1, ExitCode.OK, [ELSEWHERE.format("")]),
        (None, End(begun=True), 10, ON_NODE_1, ExitCode.ERROR, [ELSEWHERE.format("")]),
        (None, KILLED, 10, ON_NODE_1, ExitCode.RANK_LOST, [ELSEWHERE.format(f": {KILLED.lost}; {RESUME}")]),
        # Ranks that never begin do not judge an old log.
        *((log, end, 10, {}, code, [f"{words} before the run began; {log_is}"])
          for log, log_is in ((keys.SUCCESS, "the existing log was not changed"), (None, "no log was written"))
          for end, code, words in (
              (End(lost="rank 0 was killed by SIGABRT"), ExitCode.RANK_LOST, "rank 0 was killed by SIGABRT"),
              (End(signal=signal.SIGTERM, at_once=True), ExitCode.TERMINATED, "stopped"),
              (End(), ExitCode.ERROR, "the ranks exited"),
          )),
    ],
)  # fmt: skip
def test_the_verdict_is_the_logs_whatever_became_of_the_ranks_unless_it_has_none(
    log, end, step, of, code, words, tmp_path
):
    verdict = verdict_of(result(tmp_path, log, ranks=(0,)), end, step, **of)
    assert verdict.code == code and (verdict.run is None) == (log is None or not end.begun)
    assert all(text in verdict.words for text in words)
    assert ("--resume" in verdict.words) == any("--resume" in text for text in words)


def test_the_common_step_is_one_of_which_every_rank_has_a_checkpoint(tmp_path):
    for name in ("0/step_10.pt", "0/step_20.pt", "0/step_30.pt", "1/step_20.pt", "1/step_30.pt.draft"):
        path = tmp_path / f"rank_{name}"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert [launch.common_step(tmp_path, range(ranks)) for ranks in (1, 2, 3)] == [30, 20, None]


@pytest.mark.parametrize("log", [None, keys.SUCCESS, "", "stopped by signal"])
@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([(ExitCode.ERROR, "it reached its target. Nothing was changed.")], TimedrunError),
        ([(ExitCode.USAGE, "no such device")], UsageError),
        ([(ExitCode.USAGE, "no such device"), (ExitCode.ERROR, "no such file")], TimedrunError),
    ],
)
def test_a_refusal_is_the_verdict_whatever_the_log_of_another_launch_says(tmp_path, log, errors, kind):
    with pytest.raises(TimedrunError) as raised:
        verdict_of(result(tmp_path, log, ranks=(0,)), End(errors=tuple(errors)))
    assert (type(raised.value), str(raised.value)) == (kind, "\n".join(message for _, message in errors))


def launched(
    paths: ResultPaths, *ends: End, restarts: int = 3, division: str = keys.OPEN, first_rank: int = 0
) -> tuple[Verdict, list[LaunchOptions]]:
    """Launch two of four ranks, which end as given, one end an attempt; return the options of each attempt too."""
    left, jobs = list(ends), list[LaunchOptions]()

    def agent(command: object, env: object, *, job: Any, restart: Any, **options: object) -> MagicMock:
        jobs.append(job)
        end = left.pop(0)
        while len(jobs) <= restarts and (again := restart(end)) is not None:
            jobs.append(again)
            end = left.pop(0)
        return MagicMock(**{"run.return_value": end})

    benchmark = find("image_classification")
    config = benchmark.config("smoke", "synthetic")
    config = replace(config, submission=replace(config.submission, division=division))
    env = LaunchEnv("node", first_rank, 4, 0, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "NodeAgent", agent)
        patch.setattr(launch.rank, "dump_job", lambda benchmark, config, options: options)
        verdict = launch.launch(benchmark, config, LaunchOptions(paths=paths, restarts=restarts), env)
    assert left == []
    return verdict, jobs


def test_after_a_lost_rank_all_resume_as_often_as_asked(tmp_path, capsys):
    ends = (KILLED, replace(KILLED, begun=False), KILLED)  # the second is lost at its start
    verdict, attempts = launched(result(tmp_path, "", (0, 1)), *ends, restarts=2)
    assert verdict.code == ExitCode.RANK_LOST
    assert [job.resume for job in attempts] == [False, True, True]
    printed = capsys.readouterr().err
    assert "restart 1 of 2: all ranks resume from step 10" in printed
    assert "restart 2 of 2" in printed and "restart 3" not in printed


@pytest.mark.parametrize(
    ("end", "ranks", "division", "code", "why"),
    [
        (KILLED, (0,), keys.OPEN, ExitCode.RANK_LOST, "no restart: not every rank has a checkpoint"),
        (KILLED, (0, 1), keys.CLOSED, ExitCode.RANK_LOST, "no restart"),
        (replace(KILLED, signal=signal.SIGTERM), (0, 1), keys.OPEN, ExitCode.RANK_LOST, RESUME),
        (replace(KILLED, begun=False), (0, 1), keys.OPEN, ExitCode.RANK_LOST, "No restart: the log had not been"),
        (End(begun=True), (0, 1), keys.OPEN, ExitCode.ERROR, "no run_stop"),
        (KILLED, (2, 3), keys.OPEN, ExitCode.RANK_LOST, "no restart: its ranks could not report the result's number"),
    ],
)
def test_no_restart_without_a_checkpoint_in_closed_or_after_a_signal(tmp_path, end, ranks, division, code, why):
    first_rank = min(ranks, default=0)  # on another node the number of the result is this node's own count
    verdict, _ = launched(result(tmp_path, "", ranks), end, division=division, first_rank=first_rank)
    assert (verdict.code, why in verdict.words) == (code, True)


def test_what_the_verdict_does_not_say_is_printed(tmp_path, capsys):
    errors = ((ExitCode.ERROR, "DataError: gone"), (ExitCode.ERROR, "the digest is missing"))
    verdict, _ = launched(result(tmp_path, "DataError: gone"), End(begun=True, errors=errors))
    assert "DataError: gone" in verdict.words
    printed = capsys.readouterr().err
    assert "the digest is missing" in printed and "gone" not in printed
    end = replace(EXITED, lost="rank 3 did not exit")
    verdict, _ = launched(result(tmp_path, number=1), end, first_rank=2)  # on a node without the log
    assert verdict[:2] == (ExitCode.OK, ELSEWHERE.format(""))
    assert "warning: rank 3 did not exit; the result is valid as logged." in capsys.readouterr().err


@pytest.mark.parametrize("first_rank", [0, 2])
def test_a_restart_that_a_signal_stops_before_it_resumes_can_be_resumed(tmp_path, first_rank):
    paths = result(tmp_path, "rank 1 died", (first_rank, first_rank + 1))
    stopped = End(signal=signal.SIGTERM, at_once=True)
    verdict, _ = launched(paths, replace(KILLED, number=0), stopped, first_rank=first_rank)
    assert verdict.code == ExitCode.STOPPED_RESUMABLE
    assert f"stopped before the run was resumed; its log was not changed; {RESUME}" in verdict.words
    verdict = verdict_of(paths, stopped, None, begun_before=True)
    assert (verdict.code, "not every rank has a checkpoint" in verdict.words) == (ExitCode.TERMINATED, True)
