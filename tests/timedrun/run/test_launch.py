"""The verdict on a run: what its log says, and where it does not say how the run ended, how its ranks did."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from mlevents import keys
from mlevents.runlog import RunLog
from timedrun.distributed import fault_injection
from timedrun.distributed.launch_env import ATTEMPT, LaunchEnv
from timedrun.distributed.launcher import End
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.run import launch
from timedrun.storage.result_files import ResultPaths

KILLED = End((-9, 4), lost="rank 0 was killed by SIGKILL, last seen at step 12", begun=True)


def paths_of(folder: Path, *, status: str | None = None, reason: str | None = None) -> ResultPaths:
    """A result whose log ends in run_stop with this status and reason, or without one."""
    with_log = RunLog(folder / "result_0.txt")
    with_log.start(keys.RUN_START)
    if status == keys.SUCCESS:
        with_log.end(keys.RUN_STOP, status=status)
    elif status:
        with_log.close(status, reason)
    return ResultPaths(folder, 0)


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
def test_a_lost_rank_is_the_verdict_where_the_log_does_not_say_otherwise(
    tmp_path: Path, reason: str, expected: int
) -> None:
    paths = paths_of(tmp_path, status=keys.ABORTED, reason=reason)
    paths.checkpoints.mkdir(parents=True)
    code, words, _ = launch.verdict(paths, KILLED)
    assert code == expected
    assert reason in words


def test_a_killed_rank_0_is_told_with_the_way_to_go_on(tmp_path: Path) -> None:
    code, words, _ = launch.verdict(paths_of(tmp_path), KILLED, 10)
    assert code == ExitCode.RANK_LOST
    assert KILLED.lost in words and "no run_stop" in words and "--resume goes on from step 10" in words
    assert "--resume" not in launch.verdict(ResultPaths(tmp_path, 0), KILLED)[1]
    code, words, _ = launch.verdict(ResultPaths(tmp_path, 7), replace(KILLED, begun=False))
    assert code == ExitCode.RANK_LOST
    assert "no log was written" in words


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_a_signal_ended_at_once_exits_with_its_number(tmp_path: Path, number: signal.Signals) -> None:
    end = End((-15, -9), signal=number, at_once=True, begun=True)
    code, words, _ = launch.verdict(ResultPaths(tmp_path, 0), replace(end, begun=False))
    assert code == 128 + number
    assert "before the run had begun; no log was written" in words
    assert launch.verdict(paths_of(tmp_path), end)[0] == 128 + number


def test_a_node_without_rank_0_says_what_its_ranks_do(tmp_path: Path) -> None:
    code, words, _ = launch.verdict(ResultPaths(tmp_path, 0), End((0, 0), begun=True), first_node=False)
    assert (code, "log on node 0" in words) == (ExitCode.OK, True)
    code, words, _ = launch.verdict(ResultPaths(tmp_path, 0), KILLED, 8, first_node=False)
    assert code == ExitCode.RANK_LOST
    assert KILLED.lost in words and "step 8" in words


def test_a_step_counts_where_every_rank_has_its_checkpoint(tmp_path: Path) -> None:
    assert launch.common_step(tmp_path, range(2)) is None
    for rank, steps in ((0, (10, 20, 30)), (1, (10, 20))):
        (tmp_path / f"rank_{rank}").mkdir()
        for step in steps:
            (tmp_path / f"rank_{rank}" / f"step_{step:08d}.pt").touch()
    (tmp_path / "rank_1" / "step_00000030.pt.draft").touch()
    assert launch.common_step(tmp_path, range(2)) == 20
    assert launch.common_step(tmp_path, range(1)) == 30
    assert launch.common_step(tmp_path, range(3)) is None


class Played:
    """A supervisor whose ranks end as told, one end an attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: list[End]) -> None:
        self.ends = ends
        self.started: list[tuple[list[str], bool]] = []
        self.attempts: list[str] = []
        monkeypatch.setattr(launch, "Supervisor", self._make)
        monkeypatch.setenv(fault_injection.VARIABLE, "1:5:kill")

    def _make(self, command: list[str], place: LaunchEnv, *, environment: dict[str, str], finished: object) -> "Played":
        self.started.append((list(command), fault_injection.VARIABLE in environment))
        self.attempts.append(environment[ATTEMPT])
        return self

    def run(self) -> End:
        return self.ends.pop(0)


def launched(paths: ResultPaths, restarts: int, *, resumable: bool = True) -> launch.Verdict:
    place = LaunchEnv("none", 0, 2, 0, 2, 1, 0, "127.0.0.1", 0)
    return launch.launch(["run", "x", "y"], place, paths, threads=0, restarts=restarts, resumable=resumable)


def with_checkpoints(paths: ResultPaths) -> ResultPaths:
    for rank in (0, 1):
        (paths.checkpoints / f"rank_{rank}").mkdir(parents=True)
        (paths.checkpoints / f"rank_{rank}" / "step_00000010.pt").touch()
    return paths


def test_after_a_lost_rank_the_job_starts_again_from_its_checkpoint_so_often_and_no_oftener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = Played(monkeypatch, [KILLED, KILLED, KILLED])
    code, words, _ = launched(with_checkpoints(paths_of(tmp_path)), 2)
    assert code == ExitCode.RANK_LOST
    assert [command.count("--resume") for command, _ in played.started] == [0, 1, 1]
    assert [faulty for _, faulty in played.started] == [True, False, False]
    said = capsys.readouterr().err
    assert "restart 1 of 2: all ranks start again and go on from step 10" in said
    assert "restart 2 of 2" in said and "restart 3" not in said


def test_a_restart_that_reaches_the_end_is_judged_by_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = with_checkpoints(paths_of(tmp_path))
    played = Played(monkeypatch, [KILLED, End((0, 0), begun=True)])
    monkeypatch.setattr(
        launch, "verdict", lambda *a, **b: (ExitCode.RANK_LOST if len(played.started) == 1 else 0, "", None)
    )
    assert launched(paths, 5)[0] == ExitCode.OK
    assert len(played.started) == 2


@pytest.mark.parametrize(
    ("end", "checkpoints", "resumable", "code"),
    [
        (KILLED, False, True, ExitCode.RANK_LOST),
        (KILLED, True, False, ExitCode.RANK_LOST),
        (End((-9, 4), lost="rank 0 was killed", signal=signal.SIGTERM, begun=True), True, True, ExitCode.RANK_LOST),
        (End((1, 1), begun=True), True, True, ExitCode.ERROR),
    ],
)
def test_nothing_starts_again_without_a_checkpoint_in_the_closed_division_after_a_signal_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: End, checkpoints: bool, resumable: bool, code: ExitCode
) -> None:
    paths = paths_of(tmp_path)
    played = Played(monkeypatch, [end])
    got, words, _ = launched(with_checkpoints(paths) if checkpoints else paths, 3, resumable=resumable)
    assert (got, len(played.started)) == (code, 1)
    assert ("not started again" in words) == (code == ExitCode.RANK_LOST and end.signal is None)


def refused(*errors: tuple[ExitCode, str]) -> End:
    """Ranks that ended with these errors before they had begun."""
    return End(tuple(int(code) for code, _ in errors), errors=errors)


@pytest.mark.parametrize(
    ("status", "reason"), [(keys.SUCCESS, None), (None, None), (keys.ABORTED, "stopped by signal"), (keys.ABORTED, "")]
)
def test_a_refusal_is_the_verdict_whatever_a_log_of_another_launch_says(
    tmp_path: Path, status: str | None, reason: str | None
) -> None:
    paths = paths_of(tmp_path, status=status, reason=reason)
    paths.checkpoints.mkdir(parents=True)
    with pytest.raises(TimedrunError) as told:
        launch.verdict(paths, refused((ExitCode.ERROR, "it reached its target. Nothing was changed.")))
    assert str(told.value) == "it reached its target. Nothing was changed."
    assert told.value.exit_code == ExitCode.ERROR


def test_a_refusal_for_its_usage_alone_exits_2_and_different_ones_are_all_told(tmp_path: Path) -> None:
    usage, other = (ExitCode.USAGE, "no such device"), (ExitCode.ERROR, "no such file")
    with pytest.raises(UsageError, match="no such device"):
        launch.verdict(ResultPaths(tmp_path, 0), refused(usage))
    with pytest.raises(TimedrunError, match="no such device\nno such file") as told:
        launch.verdict(ResultPaths(tmp_path, 0), refused(usage, other))
    assert told.value.exit_code == ExitCode.ERROR


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (End((-6, 1), lost="rank 0 was killed by SIGABRT"), ExitCode.RANK_LOST, "SIGABRT; the run had not begun"),
        (End((-15, -9), signal=signal.SIGTERM, at_once=True), ExitCode.TERMINATED, "stopped before the run had begun"),
        (End((1, 1)), ExitCode.ERROR, "ended before the run had begun"),
    ],
)
def test_ranks_that_end_before_they_had_begun_say_nothing_of_the_log_that_is_there(
    tmp_path: Path, end: End, code: ExitCode, said: str
) -> None:
    got, words, run = launch.verdict(paths_of(tmp_path, status=keys.SUCCESS), end, 10)
    assert (got, run) == (code, None)
    assert said in words
    assert "the log that is there was not touched" in words and "--resume" not in words


@pytest.mark.parametrize("restart_refused", [False, True])
def test_nothing_starts_again_from_checkpoints_of_a_run_that_this_launch_did_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart_refused: bool
) -> None:
    paths = with_checkpoints(paths_of(tmp_path))
    lost = replace(KILLED, begun=False)
    played = Played(monkeypatch, [KILLED, lost, refused((ExitCode.ERROR, "it is another's"))][not restart_refused :])
    if restart_refused:  # the first attempt had begun it, so the second may fail at its start
        with pytest.raises(TimedrunError, match="it is another's"):
            launched(paths, 5)
        assert len(played.started) == 3
    else:
        code, words, _ = launched(paths, 5)
        assert code == ExitCode.RANK_LOST
        assert words.endswith("Not started again: nothing had begun.")
        assert len(played.started) == 1


def test_a_verdict_has_one_last_step_that_of_the_log(tmp_path: Path) -> None:
    said = "rank 0 gave no sign of life for 15 s (stopped or cut off); its last step was 120"
    words = launch.verdict(paths_of(tmp_path, status=keys.ABORTED, reason=said), KILLED).words
    assert "last step was 120" in words and "rank 0 was killed by SIGKILL" in words
    assert "last seen" not in words


def test_an_error_that_the_verdict_does_not_have_is_said_beside_it_and_one_that_it_has_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = ((ExitCode.ERROR, "DataError: gone"), (ExitCode.ERROR, "the digest is missing"))
    Played(monkeypatch, [End((1, 1), begun=True, errors=errors)])
    assert "DataError: gone" in launched(paths_of(tmp_path, status=keys.ABORTED, reason="DataError: gone"), 0).words
    shown = capsys.readouterr().err
    assert "the digest is missing" in shown and "gone" not in shown


def test_another_node_takes_the_runs_number_from_its_ranks_for_its_checkpoints_and_its_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = LaunchEnv("options", 2, 4, 0, 2, 2, 1, "127.0.0.1", 1)
    for rank in (2, 3):
        (tmp_path / "run_4" / "checkpoint" / f"rank_{rank}").mkdir(parents=True)
        (tmp_path / "run_4" / "checkpoint" / f"rank_{rank}" / "step_00000010.pt").touch()
    own = ResultPaths(tmp_path, -1)  # what a folder without results gives for --resume
    played = Played(monkeypatch, [replace(KILLED, number=4), End((0, 0), begun=True, over=True, number=4)])
    code, words, _ = launch.launch(["run", "x"], second, own, threads=0, restarts=1, resumable=True)
    assert (code, "log on node 0" in words) == (ExitCode.OK, True)
    assert [command[command.index("--number") :] for command, _ in played.started] == [
        ["--number", "-1"],
        ["--number", "4", "--resume"],
    ]
    assert "all ranks start again and go on from step 10" in capsys.readouterr().err
    played = Played(monkeypatch, [KILLED])
    four = ResultPaths(tmp_path, 4)  # its own count, which proves nothing
    code, words, _ = launch.launch(["run", "x"], second, four, threads=0, restarts=1, resumable=True)
    assert (code, len(played.started)) == (ExitCode.RANK_LOST, 1)
    assert "not started again: its ranks could not tell the number of the run" in words


def test_ranks_learn_which_attempt_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, [KILLED, KILLED])
    launched(with_checkpoints(paths_of(tmp_path)), 1)
    assert played.attempts == ["1", "2"]


@pytest.mark.parametrize("first_rank", [0, 2])
def test_a_restart_that_a_signal_stops_before_it_goes_on_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_rank: int
) -> None:
    paths = paths_of(tmp_path, status=keys.ABORTED, reason="rank 1 died")
    for rank in (first_rank, first_rank + 1):
        (paths.checkpoints / f"rank_{rank}").mkdir(parents=True)
        (paths.checkpoints / f"rank_{rank}" / "step_00000010.pt").touch()
    where = LaunchEnv("options", first_rank, 4, 0, 2, 2, first_rank // 2, "127.0.0.1", 1)
    stopped = End((-15, -15), signal=signal.SIGTERM, at_once=True)
    Played(monkeypatch, [replace(KILLED, number=0), stopped])
    code, words, _ = launch.launch(["run", "x"], where, paths, threads=0, restarts=3, resumable=True)
    assert code == ExitCode.STOPPED_RESUMABLE
    assert words.startswith("the restart was stopped before the run went on; its log was not touched; the same command")
    assert "--resume goes on from step 10" in words
    code, words, _ = launch.verdict(paths, stopped, None, ours=True)
    assert (code, "not every rank has a checkpoint" in words) == (ExitCode.TERMINATED, True)


def test_a_rank_lost_after_the_runs_end_is_a_warning_on_a_node_without_the_log_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = LaunchEnv("options", 2, 4, 0, 2, 2, 1, "127.0.0.1", 1)
    played = Played(monkeypatch, [End((0, -9), lost="rank 3 did not end", begun=True, over=True, number=0)])
    paths = ResultPaths(tmp_path, 0)
    code, words, _ = launch.launch(["run", "x"], second, paths, threads=0, restarts=3, resumable=True)
    assert (code, len(played.started)) == (ExitCode.OK, 1)
    assert words.startswith("this node's ranks ended; what became of the run")
    assert "warning: rank 3 did not end; what the log says stands." in capsys.readouterr().err
