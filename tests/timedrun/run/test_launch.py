"""Verdict on a run from its log, and from its ranks where the log does not tell; restarts after a lost rank."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from mlevents import keys
from mlevents.runlog import RunLog
from timedrun.benchmark import find
from timedrun.distributed import fault_injection
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
from timedrun.distributed.launcher import End
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.run import launch
from timedrun.run.worker import LaunchOptions
from timedrun.storage.result_files import ResultPaths

KILLED = End((-9, 4), lost="rank 0 was killed by SIGKILL (last step 12)", begun=True)


def paths_of(
    folder: Path, *, status: str | None = None, reason: str | None = None, ranks: tuple[int, ...] = ()
) -> ResultPaths:
    """Paths of a result whose log ends in run_stop with this status and reason, or without run_stop; `ranks` have a
    checkpoint of step 10."""
    log = RunLog(folder / "result_0.txt")
    log.start(keys.RUN_START)
    if status == keys.SUCCESS:
        log.end(keys.RUN_STOP, status=status)
    elif status:
        log.close(status, reason)
    with_checkpoints(paths := ResultPaths(folder, 0), ranks)
    return paths


def with_checkpoints(paths: ResultPaths, ranks: tuple[int, ...]) -> None:
    for rank in ranks:
        (paths.checkpoints / f"rank_{rank}").mkdir(parents=True)
        (paths.checkpoints / f"rank_{rank}" / "step_00000010.pt").touch()


def test_a_success_in_the_log_is_one_whatever_became_of_the_ranks(tmp_path: Path) -> None:
    code, words, _ = launch.verdict(paths_of(tmp_path, status=keys.SUCCESS), KILLED)
    assert code == ExitCode.OK
    assert words.startswith("target reached in")


def test_ranks_that_exit_0_without_a_finished_log_are_an_error(tmp_path: Path) -> None:
    code, words, _ = launch.verdict(paths_of(tmp_path), End((0, 0), begun=True))
    assert code == ExitCode.ERROR
    assert "no run_stop" in words
    assert launch.verdict(ResultPaths(tmp_path, 1), End((0, 0), begun=True))[0] == ExitCode.ERROR


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("target not reached", 3), ("budget spent", 3), ("stopped by signal", 75), ("DataError: gone", 4)],
)
def test_a_lost_rank_is_the_verdict_unless_the_log_tells_how_the_run_ended(
    tmp_path: Path, reason: str, expected: int
) -> None:
    paths = paths_of(tmp_path, status=keys.ABORTED, reason=reason, ranks=(0,))
    code, words, _ = launch.verdict(paths, KILLED)
    assert code == expected
    assert reason in words


def test_the_verdict_on_a_killed_rank_0_tells_how_to_resume(tmp_path: Path) -> None:
    code, words, _ = launch.verdict(paths_of(tmp_path), KILLED, 10)
    assert code == ExitCode.RANK_LOST
    assert KILLED.lost in words and "no run_stop" in words
    assert "resume from step 10 with the same command and --resume" in words
    assert "--resume" not in launch.verdict(ResultPaths(tmp_path, 0), KILLED)[1]


def test_a_run_that_a_signal_ended_at_once_exits_with_its_number(tmp_path: Path) -> None:
    end = End((-15, -9), signal=signal.SIGINT, at_once=True, begun=True)
    code, words, _ = launch.verdict(ResultPaths(tmp_path, 0), replace(end, begun=False))
    assert code == ExitCode.INTERRUPTED
    assert "stopped before the run had begun; no log was written" in words
    assert launch.verdict(paths_of(tmp_path), end)[0] == ExitCode.INTERRUPTED


def test_the_verdict_of_a_node_without_rank_0_is_that_of_its_ranks(tmp_path: Path) -> None:
    code, words, _ = launch.verdict(ResultPaths(tmp_path, 0), End((0, 0), begun=True), first_node=False)
    assert (code, "see the log on node 0" in words) == (ExitCode.OK, True)
    code, words, _ = launch.verdict(ResultPaths(tmp_path, 0), KILLED, 8, first_node=False)
    assert code == ExitCode.RANK_LOST
    assert KILLED.lost in words and "step 8" in words


def test_the_common_step_is_one_of_which_every_rank_has_a_checkpoint(tmp_path: Path) -> None:
    assert launch.common_step(tmp_path, range(2)) is None
    for rank, steps in ((0, (10, 20, 30)), (1, (10, 20))):
        (tmp_path / f"rank_{rank}").mkdir()
        for step in steps:
            (tmp_path / f"rank_{rank}" / f"step_{step:08d}.pt").touch()
    (tmp_path / "rank_1" / "step_00000030.pt.draft").touch()
    assert launch.common_step(tmp_path, range(2)) == 20
    assert launch.common_step(tmp_path, range(1)) == 30
    assert launch.common_step(tmp_path, range(3)) is None


def refused(*errors: tuple[ExitCode, str]) -> End:
    """End of ranks that refused a run with these errors before its log was open."""
    return End(tuple(int(code) for code, _ in errors), errors=errors)


@pytest.mark.parametrize(
    ("status", "reason"), [(keys.SUCCESS, None), (None, None), (keys.ABORTED, "stopped by signal")]
)
def test_a_refusal_is_the_verdict_whatever_the_log_of_another_launch_says(
    tmp_path: Path, status: str | None, reason: str | None
) -> None:
    paths = paths_of(tmp_path, status=status, reason=reason, ranks=(0,))
    with pytest.raises(TimedrunError) as raised:
        launch.verdict(paths, refused((ExitCode.ERROR, "it reached its target. Nothing was changed.")))
    assert str(raised.value) == "it reached its target. Nothing was changed."
    assert raised.value.exit_code == ExitCode.ERROR


def test_a_refusal_for_usage_alone_exits_2_and_different_ones_are_listed(tmp_path: Path) -> None:
    usage, other = (ExitCode.USAGE, "no such device"), (ExitCode.ERROR, "no such file")
    with pytest.raises(UsageError, match="no such device"):
        launch.verdict(ResultPaths(tmp_path, 0), refused(usage))
    with pytest.raises(TimedrunError, match="no such device\nno such file") as raised:
        launch.verdict(ResultPaths(tmp_path, 0), refused(usage, other))
    assert raised.value.exit_code == ExitCode.ERROR


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        (End((-6, 1), lost="rank 0 was killed by SIGABRT"), ExitCode.RANK_LOST, "SIGABRT before the run had begun"),
        (End((-15, -9), signal=signal.SIGTERM, at_once=True), ExitCode.TERMINATED, "stopped before the run had begun"),
        (End((1, 1)), ExitCode.ERROR, "exited before the run had begun"),
    ],
)
def test_ranks_that_end_before_they_begin_do_not_judge_an_existing_log(
    tmp_path: Path, end: End, code: ExitCode, message: str
) -> None:
    got, words, run = launch.verdict(paths_of(tmp_path, status=keys.SUCCESS), end, 10)
    assert (got, run) == (code, None)
    assert f"{message}; the existing log was not changed" in words and "--resume" not in words
    assert "no log was written" in launch.verdict(ResultPaths(tmp_path, 7), end)[1]


class PlayedLauncher:
    """Launcher whose ranks end as given, one end an attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: End) -> None:
        self.ends = list(ends)
        self.jobs: list[LaunchOptions] = []
        self.environments: list[dict[str, str]] = []
        monkeypatch.setattr(launch, "Launcher", self._make)
        monkeypatch.setattr(launch.rank, "dump_job", lambda benchmark, config, options: options)
        monkeypatch.setenv(fault_injection.VARIABLE, "1:5:kill")

    def _make(
        self, command: list[str], env: LaunchEnv, *, job: LaunchOptions, environment: dict[str, str], finished: object
    ) -> "PlayedLauncher":
        self.jobs.append(job)
        self.environments.append(dict(environment))
        return self

    def run(self) -> End:
        return self.ends.pop(0)


def launched(
    paths: ResultPaths, restarts: int, *, division: str = keys.OPEN, first_rank: int = 0, world_size: int = 2
) -> launch.Verdict:
    benchmark = find("image_classification")
    config = benchmark.config("smoke", "synthetic")
    config = replace(config, submission=replace(config.submission, division=division))
    env = LaunchEnv("options", first_rank, world_size, 0, 2, "127.0.0.1", 1)
    return launch.launch(benchmark, config, LaunchOptions(paths=paths, restarts=restarts), env)


def test_after_a_lost_rank_all_ranks_resume_at_most_as_often_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = PlayedLauncher(monkeypatch, KILLED, KILLED, KILLED)
    assert launched(paths_of(tmp_path, ranks=(0, 1)), 2).code == ExitCode.RANK_LOST
    assert [job.resume for job in played.jobs] == [False, True, True]
    assert [fault_injection.VARIABLE in environment for environment in played.environments] == [True, False, False]
    assert [environment[ATTEMPT] for environment in played.environments] == ["1", "2", "3"]
    printed = capsys.readouterr().err
    assert "restart 1 of 2: all ranks resume from step 10" in printed
    assert "restart 2 of 2" in printed and "restart 3" not in printed


@pytest.mark.parametrize(
    ("end", "ranks", "division", "code"),
    [
        (KILLED, (), keys.OPEN, ExitCode.RANK_LOST),
        (KILLED, (0, 1), keys.CLOSED, ExitCode.RANK_LOST),
        (replace(KILLED, signal=signal.SIGTERM), (0, 1), keys.OPEN, ExitCode.RANK_LOST),
        (End((1, 1), begun=True), (0, 1), keys.OPEN, ExitCode.ERROR),
    ],
)
def test_no_restart_without_a_checkpoint_in_the_closed_division_after_a_signal_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: End, ranks: tuple[int, ...], division: str, code: ExitCode
) -> None:
    played = PlayedLauncher(monkeypatch, end)
    got, words, _ = launched(paths_of(tmp_path, ranks=ranks), 3, division=division)
    assert (got, len(played.jobs)) == (code, 1)
    assert ("no restart" in words) == (code == ExitCode.RANK_LOST and end.signal is None)


def test_no_restart_from_checkpoints_of_a_run_that_this_launch_did_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_of(tmp_path, ranks=(0, 1))
    not_begun = replace(KILLED, begun=False)
    played = PlayedLauncher(monkeypatch, not_begun)
    code, words, _ = launched(paths, 5)
    assert (code, len(played.jobs)) == (ExitCode.RANK_LOST, 1)
    assert words.endswith("No restart: the log had not been opened.")
    # A later attempt may fail at its start.
    played = PlayedLauncher(monkeypatch, KILLED, not_begun, refused((ExitCode.ERROR, "it is another's")))
    with pytest.raises(TimedrunError, match="it is another's"):
        launched(paths, 5)
    assert len(played.jobs) == 3


def test_errors_of_ranks_are_printed_unless_the_verdict_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = ((ExitCode.ERROR, "DataError: gone"), (ExitCode.ERROR, "the digest is missing"))
    PlayedLauncher(monkeypatch, End((1, 1), begun=True, errors=errors))
    assert "DataError: gone" in launched(paths_of(tmp_path, status=keys.ABORTED, reason="DataError: gone"), 0).words
    printed = capsys.readouterr().err
    assert "the digest is missing" in printed and "gone" not in printed


def test_another_node_uses_the_number_of_rank_0_for_its_checkpoints_and_its_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_checkpoints(ResultPaths(tmp_path, 4), (2, 3))
    own = ResultPaths(tmp_path, -1)  # the number of --resume in a folder without results
    played = PlayedLauncher(monkeypatch, replace(KILLED, number=4), End((0, 0), begun=True, over=True, number=4))
    code, words, _ = launched(own, 1, first_rank=2, world_size=4)
    assert (code, "see the log on node 0" in words) == (ExitCode.OK, True)
    assert [(job.paths.number, job.resume) for job in played.jobs] == [(-1, False), (4, True)]
    assert "all ranks resume from step 10" in capsys.readouterr().err
    played = PlayedLauncher(monkeypatch, KILLED)
    code, words, _ = launched(ResultPaths(tmp_path, 4), 1, first_rank=2, world_size=4)  # 4 is this node's own count
    assert (code, len(played.jobs)) == (ExitCode.RANK_LOST, 1)
    assert "no restart: its ranks could not report the result's number" in words


@pytest.mark.parametrize("first_rank", [0, 2])
def test_a_restart_that_a_signal_stops_before_it_resumes_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_rank: int
) -> None:
    paths = paths_of(tmp_path, status=keys.ABORTED, reason="rank 1 died", ranks=(first_rank, first_rank + 1))
    stopped = End((-15, -15), signal=signal.SIGTERM, at_once=True)
    PlayedLauncher(monkeypatch, replace(KILLED, number=0), stopped)
    code, words, _ = launched(paths, 3, first_rank=first_rank, world_size=4)
    assert code == ExitCode.STOPPED_RESUMABLE
    assert words.startswith("the restart was stopped before the run was resumed; its log was not changed; resume from")
    code, words, _ = launch.verdict(paths, stopped, None, begun_before=True)
    assert (code, "not every rank has a checkpoint" in words) == (ExitCode.TERMINATED, True)


def test_a_rank_lost_after_the_end_of_the_run_is_a_warning_on_a_node_without_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end = End((0, -9), lost="rank 3 did not exit", begun=True, over=True, number=0)
    played = PlayedLauncher(monkeypatch, end)
    code, words, _ = launched(ResultPaths(tmp_path, 0), 3, first_rank=2, world_size=4)
    assert (code, len(played.jobs)) == (ExitCode.OK, 1)
    assert words.startswith("the ranks of this node exited; see the log on node 0")
    assert "warning: rank 3 did not exit; the result is valid as logged." in capsys.readouterr().err
