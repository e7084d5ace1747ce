"""A command's run: its clock is the harness's, its log passes the checks, and it ends cleanly however it ends."""

import contextlib
import signal
import sys
import threading
import time
import venv
from pathlib import Path

import psutil
import pytest

from judging.ground.errors import TimedrunError
from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.checks.log_check import check
from mlevents.record import read
from mlevents.runlog import RunLog
from mlevents.summary import summarize
from timedrun.racing import command_run, received_output
from timedrun.racing.command_run import CommandRun
from timedrun.racing.command_side import CommandSide
from timedrun.racing.output_reader import Reading


def run(folder: Path, command: str, **settings: object) -> tuple[int, int]:
    values = {"quality": "loss:([0-9.]+)", "target": 1.0, "lower": True, "seed": 7} | settings
    side = CommandSide(name="a", command=command, **values)  # type: ignore[arg-type]
    return CommandRun(side, ResultPaths(folder, 0), runs=1, label="a 1/1", directory=folder.parent).run()


def reason(folder: Path) -> str:
    stopped = read(folder / "result_0.txt").stopped
    assert stopped is not None and stopped.metadata["status"] == keys.ABORTED
    return str(stopped.metadata["reason"])


def test_a_run_is_a_log_with_command_seed_environment_and_both_times(tmp_path):
    script = "echo loss:3.5; sleep 0.3; echo loss:0.9 took $SEED ms; sleep 0.2; echo loss:0.1"
    assert run(tmp_path / "set", script, reported=r"took (?P<ms>\d+) ms") == (0, 0)
    log = read(tmp_path / "set" / "result_0.txt")
    assert log.minutes is not None and 0.3 <= 60 * log.minutes < 0.5  # not the time after the target, nor the script's
    assert log.value(keys.REPORTED_SECONDS) == 0.007
    assert [point.value for point in log.quality] == [3.5, 0.9]
    assert (log.value(keys.COMMAND), log.seed) == (script, 7)
    assert (tmp_path / "set" / "run_0" / "output.txt").read_text().splitlines()[-1] == "loss:0.1"
    assert "no Python was seen in the command's session" in (tmp_path / "set/run_0/environment.txt").read_text()
    findings = check(log.path).findings
    assert [str(finding) for finding in findings if finding.level == "error" or "evaluation" in finding.rule] == []


WARM = {"start": "warm", "stop": "stop"}
ENDED = {"stop_at_target": True}
LATE = "echo loss:0.2; sleep 0.2; (echo loss:3; sleep 0.2; printf loss:0.5) > $SEED.log; sleep 0.2; echo bye"


@pytest.mark.parametrize(
    ("script", "settings", "qualities", "seconds", "missed"),
    [
        ("sleep 0.2; echo warm; sleep 0.1; echo loss:0.5; sleep 0.1; echo loss:0.7; echo stop", WARM, [0.5, 0.7],
         (0.15, 0.35), ""),  # two sleeps of 0.1 s, one of 0.2 s is before
        ("echo warm; echo loss:0.5; echo loss:1.7; echo stop", WARM, [0.5, 1.7], (0, 5), "target not reached"),
        ("(setsid sleep 3 &); printf loss:0.5", {}, [0.5], (0, 2), ""),  # the last line needs no end
        # The clock is that of the process and not of what it leaves.
        ("echo loss:0.5; sleep 0.3; echo loss:3; sleep 60 &", {"to_end": True}, [0.5, 3], (0.3, 0.9),
         "target not reached"),
        ("echo loss:0.5; exit 4", {"to_end": True}, [0.5], (0, 5), "exit code 4"),
        *(("echo loss:3; echo loss:0.5; sleep 60; echo end", ENDED | of, [3, 0.5], (0, 20), "")
          for of in ({}, {"to_end": True}, {"stop": "end"})),
        ("echo loss:3; echo loss:0.5", ENDED | {"target": 0.1}, [3, 0.5], (0, 20), "target not reached"),
        # A file that the command writes, new, shorter than it was or longer, is read in place of its output.
        (LATE, {"log": "*.log"}, [3, 0.5], (0.4, 0.7), ""),
        ("echo loss:0.4 > old.log", {"log": "old.log"}, [0.4], (0, 5), ""),
        ("echo loss:0.4 >> old.log", {"log": "old.log"}, [0.4], (0, 5), ""),
    ],
)  # fmt: skip
def test_a_run_has_the_qualities_and_the_time_that_its_settings_say(
    script, settings, qualities, seconds, missed, tmp_path
):
    (tmp_path / "old.log").write_text("loss:0.1 and more\n")
    code, _ = run(tmp_path / "set", script, **settings)
    log = read(tmp_path / "set" / "result_0.txt")
    assert [point.value for point in log.quality] == qualities and code == (4 if "code 4" in missed else 0)
    assert log.minutes is not None and seconds[0] <= 60 * log.minutes < seconds[1]
    assert missed in reason(tmp_path / "set") if missed else log.status == keys.SUCCESS
    ended = signal.SIGTERM.name if "stop_at_target" in settings and not missed else None
    assert log.value(keys.ENDED_AT_TARGET) == ended
    assert missed or all(finding.level != "error" for finding in check(log.path).findings)


@pytest.mark.parametrize(
    ("script", "settings", "words"),
    [
        ("echo accuracy 93.9", {"quality": "accuracy {}", "lower": False}, "a percentage? Give --target 100"),
        ("echo loss:3 > a.log; echo loss:3 > b.log", {"log": "*.log"}, "names several files that were written to"),
        ("true", {"log": "*.log"}, "no line of *.log (no such new file) has a quality"),
        ("echo unreadable bar", {"unreadable": "unreadable", "hint": "use another"}, "use another"),
        ("echo loss:0.5; echo go; sleep 0.1", {"start": "go"}, "a quality stands before the one that starts it"),
        ("echo end; echo loss:0.5", {"stop": "end"}, "none stands before the line that stops the clock"),
        ("echo loss:0.5.; echo end", {"quality": "loss:([0-9.]+)", "stop": "never"}, "has the pattern --stop 'never'"),
        ("echo loss:0.5; echo loss:nan; echo end", {"quality": r"loss:(\S+)", "stop": "end"}, "the training diverged"),
        ("kill -KILL $$", {}, "ended by SIGKILL"),
        ("head -c 3000000 /dev/urandom; echo; echo loss:3", {}, "target not reached"),
    ],
)
def test_a_run_without_a_time_says_why(tmp_path, monkeypatch, script, settings, words):
    monkeypatch.setattr(command_run, "END_SECONDS", 0.3)
    run(tmp_path / "set", script, **settings)
    assert words in reason(tmp_path / "set")
    assert "pairs" not in {finding.rule for finding in check(tmp_path / "set" / "result_0.txt").findings}


def test_a_command_is_not_blocked_while_its_lines_are_logged(tmp_path, monkeypatch):
    take = CommandRun._take

    def slow(self: CommandRun, log: RunLog, reading: Reading) -> None:
        while not (tmp_path / "printed").exists():
            assert time.monotonic() - began < 20
            time.sleep(0.01)
        take(self, log, reading)

    monkeypatch.setattr(CommandRun, "_take", slow)
    began = time.monotonic()
    text = "print('loss:0.5'); print('x' * 10**6, flush=True)"  # more than a pipe holds
    assert run(tmp_path / "set", f'{sys.executable} -c "{text}"; touch {tmp_path}/printed') == (0, 0)


def test_what_a_command_printed_is_logged_after_its_end_however_long_that_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(command_run, "REST_SECONDS", 0.01)
    take = CommandRun._take

    def slow(self: CommandRun, log: RunLog, reading: Reading) -> None:
        time.sleep(0.05)
        take(self, log, reading)

    monkeypatch.setattr(CommandRun, "_take", slow)
    assert run(tmp_path / "set", "for i in 9 8 7 6 5 4 3; do echo loss:$i; sleep 0.005; done; echo loss:0.5") == (0, 0)
    assert (tmp_path / "set" / "run_0" / "output.txt").read_text().endswith("loss:3\nloss:0.5\n")
    monkeypatch.setattr(command_run, "DRAIN_SECONDS", 0.1)
    assert run(tmp_path / "flood", "for i in $(seq 60); do echo loss:3; sleep 0.002; done") == (1, 0)
    assert "printed more than could be read within 0.1 s" in reason(tmp_path / "flood")


def test_a_flood_of_evaluations_does_not_outlive_the_end_that_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(command_run, "END_SECONDS", 0.2)
    began = time.monotonic()
    run(tmp_path / "set", "yes loss:3", minutes=0.01)
    assert time.monotonic() - began < 20 and "ran past" in reason(tmp_path / "set")


def test_processes_that_a_command_leaves_are_ended_and_not_waited_for(tmp_path):
    began = time.monotonic()
    run(tmp_path / "set", f"sleep 60 & echo $! > {tmp_path}/left; echo loss:0.5")
    assert time.monotonic() - began < 20
    with contextlib.suppress(psutil.NoSuchProcess):
        left = psutil.Process(int((tmp_path / "left").read_text()))
        while left.status() != psutil.STATUS_ZOMBIE:  # where no one waits for it, as in a container
            assert time.monotonic() - began < 20
            time.sleep(0.01)


@pytest.mark.parametrize("session", ["", "setsid "])
def test_what_a_left_process_prints_is_neither_waited_for_nor_read(tmp_path, session):
    began, threads = time.monotonic(), threading.active_count()
    printing = "i=0; while [ $i -lt 900 ]; do i=$((i+1)); sleep 0.01; echo loss:3; done; echo loss:0.5"
    left = f"({session}sh -c '{printing}' &)"
    assert run(tmp_path / "set", f"echo loss:2; {left}; printf loss:4", to_end=True)[0] == 0
    assert time.monotonic() - began < 8 and threading.active_count() == threads
    log = read(tmp_path / "set" / "result_0.txt")
    assert log.minutes is not None and 60 * log.minutes < 2 and log.quality[0].value == 2
    assert all(point.value > 1 for point in log.quality)


def test_the_whole_group_of_a_command_that_is_ended_has_the_grace_and_not_more(tmp_path, monkeypatch):
    monkeypatch.setattr(command_run, "REST_SECONDS", 0.05)
    saving = f"(trap 'sleep 0.3; touch {tmp_path}/saved; exit' TERM; echo loss:0.5; while :; do sleep 0.02; done); :"
    assert run(tmp_path / "set", saving, stop_at_target=True) == (0, 0)
    assert (tmp_path / "saved").exists()
    monkeypatch.setattr(command_run, "END_SECONDS", 0.2)
    began = time.monotonic()
    assert run(tmp_path / "deaf", "(trap '' TERM; echo loss:0.5; sleep 60); :", stop_at_target=True) == (0, 0)
    assert time.monotonic() - began < 20


def test_each_line_has_the_time_at_which_it_arrived_however_late_an_evaluation_is_logged(tmp_path, monkeypatch):
    began = time.monotonic()
    arrived = [(0.1, b"warm\n"), (0.2, b"loss:0.7\n"), (0.4, b"loss:0.5\nstop\n"), (0.5, b"")]

    class Received:
        def __init__(self, *_: object) -> None:
            self.chunks = iter([received_output.Chunk(began + at, data) for at, data in arrived])

        def next(self) -> received_output.Chunk | None:
            return next(self.chunks, None)

        def close(self) -> None:
            pass

    monkeypatch.setattr(command_run, "ReceivedOutput", Received)
    run(tmp_path / "set", "true", start="warm", stop="stop")
    log = read(tmp_path / "set" / "result_0.txt")
    start = log.first(keys.RUN_START)
    assert log.minutes == pytest.approx(0.3 / 60, abs=0.002 / 60) and start
    evaluated = [event.time_ms - start.time_ms for event in log.all(keys.EVAL_ACCURACY)]
    assert evaluated == pytest.approx([100, 300], abs=2)


def test_how_late_the_lines_of_the_clock_were_read_is_logged(tmp_path, monkeypatch):
    delays = iter([0.25, 0.05, None])
    monkeypatch.setattr(received_output.SchedulerDelays, "since_last", lambda delays_of: next(delays))
    run(tmp_path / "set", "sleep 0.1; echo go; sleep 0.2; echo loss:0.5", start="go")
    late = summarize(read(tmp_path / "set" / "result_0.txt")).disturbances
    assert "the clock's start or stop was read 250 ms late" in late


def test_a_directory_that_is_missing_is_named(tmp_path):
    with pytest.raises(TimedrunError, match="No such file.*nowhere"):
        run(tmp_path / "set", "echo", directory="nowhere")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script and a virtual environment that has one distribution."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / ".venv", symlinks=True)
    (packages,) = (folder / ".venv").glob("lib/python*/site-packages")
    (packages / "own-1.0.dist-info").mkdir()
    (packages / "own-1.0.dist-info" / "METADATA").write_text("Name: own\nVersion: 1.0\n")
    (folder / "train.py").write_text("import time\ntime.sleep(0.15)\nprint('loss:0.5')\n")
    (folder / "tool").write_text(f"#!{folder}/.venv/bin/python\nimport train\n")
    (folder / "tool").chmod(0o755)
    return folder


CALLS = "A=1 nice .venv/bin/python3 -m train", ". .venv/bin/activate && python train.py", "./tool"


@pytest.mark.parametrize("command", CALLS)
def test_a_python_is_described_by_its_own_packages_however_it_is_called(project, tmp_path, command):
    run(tmp_path / "set", f"cd {project}; {command}")
    lines = (tmp_path / "set" / "run_0" / "environment.txt").read_text().splitlines()
    at = lines.index("installed distributions:")
    assert lines[at - 1].startswith("python 3.") and "own==1.0" in lines[at:]
