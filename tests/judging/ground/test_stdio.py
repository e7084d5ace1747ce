"""A command whose standard streams are closed, or read by nobody, does its work and exits as it would otherwise."""

import io
import itertools
import os
import subprocess
import sys

import pytest

from judging.ground import stdio

WRITES = """
import sys
from judging.ground import stdio
stdio.open_closed()
log = open(sys.argv[1], "w")
assert log.fileno() > 2
stdio.write("words")
stdio.write("words", sys.stdout)
print("more", file=sys.stderr)
for stream in (sys.stdout, sys.stderr):
    stdio.flush(stream)
sys.exit(3)
"""


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_started_without_a_stream_does_its_work_and_opens_no_file_in_its_place(tmp_path, closed):
    (tmp_path / "program.py").write_text(WRITES)
    done = shell(f"{sys.executable} {tmp_path}/program.py {tmp_path}/log {closed}")
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert (tmp_path / "log").read_text() == ""


def test_the_command_starts_without_streams():
    assert shell(f"{sys.executable} -m timedrun show image_classification <&- >&- 2>&-").returncode == 0


def test_what_nobody_reads_changes_no_exit_code(tmp_path):
    (tmp_path / "program.py").write_text(WRITES)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as unread:
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "log")]
        assert subprocess.run(command, stdout=unread, stderr=unread).returncode == 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown", "written"),
    [
        (Terminal(), True, "".join(f"\r\x1b[Ksets checked: {n} of 4" for n in (0, 3)) + "\r\x1b[K"),
        (Terminal(), False, ""),
        (io.StringIO(), True, ""),
    ],
)
def test_progress_is_one_line_of_a_terminal_at_once_and_after_some_seconds_of_work(monkeypatch, stream, shown, written):
    clock = itertools.count(0.0, 0.3)  # read at the start and before each item
    monkeypatch.setattr(stdio.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr("sys.stderr", stream)
    assert list(stdio.progress(range(4), "sets checked", shown=shown)) == [0, 1, 2, 3]
    assert stream.getvalue() == written


def test_progress_without_a_terminal_is_a_line_after_each_silence(monkeypatch, capsys):
    clock = itertools.count(0.0, 6.0)
    monkeypatch.setattr(stdio.time, "monotonic", lambda: next(clock))
    assert list(stdio.progress(range(4), "sets read", shown=True)) == [0, 1, 2, 3]
    assert capsys.readouterr().err == "sets read: 2 of 4\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a.txt: strict pass, official fail", "a.txt: strict \x1b[32mpass\x1b[0m, official \x1b[31mfail\x1b[0m"),
        ("target not reached: last 0.9", "\x1b[33mtarget not reached\x1b[0m: last 0.9"),
        ("timedrun run: no config", "\x1b[31mtimedrun run\x1b[0m: no config"),
        ("no error; sets/fail/result_0.txt, logs: 0 pass, 0 fail", None),
    ],
)
def test_verdicts_have_a_colour_on_a_terminal_only(text, shown, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert stdio.coloured(text, Terminal()) == (shown or text)
    assert stdio.coloured(text, io.StringIO()) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert stdio.coloured(text, Terminal()) == text


def test_a_stage_is_a_line_of_a_terminal_that_the_next_output_takes(monkeypatch):
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr("sys.stderr", stream)
        stdio.stage("importing " + "x" * 100)
        stdio.stage("checks", terminal_only=False)
        stdio.message("done")
    assert terminal.getvalue() == f"\r\x1b[Kimporting {'x' * 69}\r\x1b[Kchecks\r\x1b[Kdone\n"
    assert pipe.getvalue() == "checks\ndone\n"
