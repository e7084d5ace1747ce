"""The order of a race's runs, failures among them, its continuation after a stop, and runs as child processes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mlevents.record import result_files
from tests.timedrun.racing.conftest import run_turns
from timedrun.racing import race_file
from timedrun.racing.child_run import run_child
from timedrun.racing.plan import Rounds, schedule
from timedrun.racing.race_file import Race, Turn
from timedrun.racing.turns import plan_again, settle

Plan = Callable[..., Race]
WriteRun = Callable[..., Path]


def saving(race: Race, folder: Path) -> Callable[[Turn], None]:
    return lambda turn: race.save(folder)


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def test_every_side_runs_once_a_round_and_none_is_always_first():
    turns = schedule(["a", "b", "c"], Rounds(runs=3, first_seed=7))
    assert "".join(turn.side for turn in turns) == "abccbaabc"
    assert [turn.seed for turn in turns] == [7, 7, 7, 8, 8, 8, 9, 9, 9]
    apart = {
        (turn.side, turn.number): turn.seed for turn in schedule(["a", "a_2"], Rounds(runs=2, unpaired_seeds=True))
    }
    assert apart == {("a", 0): 1, ("a", 1): 2, ("a_2", 0): 3, ("a_2", 1): 4}


def test_a_failed_run_is_noted_and_three_in_a_row_end_their_side(tmp_path, plan, write_run, capsys):
    started: list[str] = []

    def start(turn: Turn, label: str) -> tuple[int, int]:
        on_disk = race_file.load(tmp_path)
        assert [turn.status for turn in on_disk.turns].count("running") == 1
        assert len([turn for turn in on_disk.turns if turn.status in ("finished", "failed")]) == len(started)
        started.append(f"{turn.side}{turn.number}")
        if turn.side == "b":
            return 1, False
        write_run(tmp_path / "a", turn.number)
        return 0, False

    times = iter(range(0, 1000, 30))
    race = plan(runs=5)
    assert not run_turns(race, tmp_path, start, saving(race, tmp_path), clock=lambda: next(times))
    assert started == ["a0", "b0", "b1", "a1", "a2", "b2", "a3", "a4"]
    assert len(race.of_side("a", "finished")) == 5 > len(race.of_side("b", "finished"))
    assert [turn.why for turn in race.of_side("b", "left out")] == ["3 runs in a row failed"] * 2
    said = capsys.readouterr().err
    assert "run 1/10, config a, seed 1\n" in said and "run 2/10, config b, seed 1, about 4 min left\n" in said
    assert "run 2/10, config b, failed: exit code 1; it wrote no log, see b" in said


@pytest.mark.parametrize(("at", "finished"), [("finished", 1), ("running", 0)])
def test_a_signal_between_two_runs_ends_them_and_a_second_one_is_the_callers(tmp_path, plan, write_run, at, finished):
    received: list[int] = []

    def start(turn: Turn, label: str) -> tuple[int, int]:
        write_run(tmp_path / str(twice) / turn.side, turn.number)
        return 0, 0

    def note(turn: Turn) -> None:
        if turn.status == at:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not received
            if twice:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        for twice in (False, True):
            race = plan(runs=2)
            assert run_turns(race, tmp_path / str(twice), start, note) == signal.SIGTERM
            statuses = [turn.status for turn in race.turns]
            assert statuses == ["finished"] * finished + ["planned"] * (4 - finished)
            assert received == [signal.SIGTERM] * twice
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_log_that_ended_counts_however_its_process_did(tmp_path, plan, write_run):
    def start(turn: Turn, label: str) -> tuple[int, int]:
        write_run(tmp_path / turn.side, turn.number, ends=turn.number == 0)
        return -9, False

    race = plan(runs=2)
    run_turns(race, tmp_path, start, saving(race, tmp_path))
    assert [turn.status for turn in race.turns] == ["finished", "finished", "failed", "failed"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_killed_race_goes_on_where_it_was(tmp_path, plan, write_run, ended):
    started: list[tuple[str, int, int]] = []

    def start(turn: Turn, label: str) -> tuple[int, int]:
        started.append((turn.side, turn.number, turn.seed))
        killed = len(started) == 4
        write_run(tmp_path / turn.side, turn.number, ends=ended or not killed)
        (tmp_path / turn.side / f"run_{turn.number}").mkdir()
        if killed:
            raise Killed
        return 0, False

    with pytest.raises(Killed):
        run_turns(race := plan(), tmp_path, start, saving(race, tmp_path))
    race = race_file.load(tmp_path)
    settle(race, tmp_path)
    assert [turn.status for turn in race.turns].count("finished") == (4 if ended else 3)
    plan_again(race, tmp_path)
    assert not run_turns(race, tmp_path, start, saving(race, tmp_path))
    assert [turn.status for turn in race_file.load(tmp_path).turns] == ["finished"] * 6
    repeated = ("a", 1, 2)
    assert started.count(repeated) == (1 if ended else 2) and len(started) == (6 if ended else 7)
    aside = tmp_path / "interrupted_1" / "a"
    assert (aside / "interrupted_1.txt").exists() == (aside / "run_1").exists() == (not ended)
    assert len(result_files(tmp_path)) == 6
    assert [turn.session for turn in race.turns] == ([0] * 4 if ended else [0] * 3 + [1]) + [1] * 2


def test_a_run_without_its_log_is_named_until_it_is_back(tmp_path, plan, write_run):
    race = plan(runs=1)
    race.turns[0].status = "finished"
    settle(race, tmp_path)
    assert race.turns[0].status == "failed" and "put it back" in race.turns[0].why
    write_run(tmp_path / race.turns[0].side, race.turns[0].number)
    settle(race, tmp_path)
    assert (race.turns[0].status, race.turns[0].why) == ("finished", "")


def test_a_race_that_runs_or_is_of_an_earlier_version_is_refused(tmp_path, plan):
    plan().save(tmp_path)
    again = race_file.locked(tmp_path)
    with race_file.locked(tmp_path), pytest.raises(race_file.TimedrunError, match="still running"):
        again.__enter__()
    (tmp_path / "race.json").write_text('{"runs_seconds": {}}')
    with pytest.raises(race_file.UsageError, match="holds no schedule"):
        race_file.load(tmp_path)
    (tmp_path / "race.json").write_text('{"race": {"runs": "five"}}')
    with pytest.raises(race_file.UsageError, match=r"race\.json"):
        race_file.load(tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_a_signal_ends_the_run_and_is_reported(name):
    # The child signals its parent, as Ctrl-C does, and ends only when it gets the signal itself.
    number = signal.Signals[f"SIG{name}"]
    handler = signal.getsignal(number)
    script = f"trap 'echo stopped >&2; exit 75' {name}; kill -{name} $PPID; while :; do sleep 0.05; done"
    assert run_child(["sh", "-c", script], keep_output=True) == (75, "stopped", number)
    assert signal.getsignal(number) is handler


@pytest.mark.processes
def test_the_last_lines_are_returned_and_the_process_group_is_its_own(capsys):
    script = "cut -d' ' -f5 /proc/self/stat >&2; for n in $(seq 20); do echo line $n >&2; done; exit 3"
    code, output, interrupted = run_child(["sh", "-c", script], keep_output=True)
    assert (code, interrupted) == (3, 0)
    assert output.startswith("line 9 line 10") and output.endswith("line 20")
    shown = capsys.readouterr().err.splitlines()
    assert int(shown[0]) != os.getpgid(0) and len(shown) == 21
