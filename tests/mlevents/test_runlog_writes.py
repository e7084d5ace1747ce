"""Every event is one whole line on disk or absent, whatever thread writes, hangs or is killed, also on a full disk."""

import ctypes
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlperf_logging.compliance_checker import mlp_parser

import mlevents
from mlevents import keys
from mlevents.record import read
from mlevents.runlog import PAGE, ROOM, EventOrderError, RunLog


def test_each_event_is_one_write_and_clock_events_reach_the_disk(tmp_path, monkeypatch):
    writes, synced = [], []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(len(writes)) or fsync(fd))
    log = RunLog(tmp_path / "result_0.txt")
    log.event("seed", 1)
    log.end(keys.INIT_STOP)
    log.start(keys.RUN_START)
    log.start(keys.EPOCH_START, epoch_num=1)
    log.event(keys.EVAL_ACCURACY, 0.5, epoch_num=1)
    log.end(keys.RUN_STOP, status="success")
    assert [data.count(b"\n") for data in writes] == [1] * 6 and all(data.endswith(b"}}\n") for data in writes)
    assert synced == [2, 3, 5, 6]


def test_no_line_lies_across_a_page_of_the_file_where_a_kill_could_cut_it_and_all_tools_read_on(path):
    draw, sent = random.Random(5), []
    with closing(RunLog(path)) as log:
        log.start(keys.RUN_START)
        for number in range(500):
            sent.append("x" * draw.choice((1, 50, 200, 400, 700)))
            log.event(f"step_{number}", sent[-1])
    raw = path.read_bytes()
    ends = [place for place, byte in enumerate(raw) if byte == ord("\n")]
    starts = [0, *(end + 1 for end in ends[:-1])]
    assert all(start // PAGE == end // PAGE for start, end in zip(starts, ends, strict=True))
    record = read(path)
    assert not record.problems and [event.value for event in record.events[1:-1]] == sent
    assert sum(line.endswith(b" ") for line in raw.splitlines()) == len(raw) // PAGE
    official, wrong = mlp_parser.parse_file(str(path), ruleset="2.0.0")
    assert not wrong and [line.value["value"] for line in official[1:-1]] == sent


def test_a_full_disk_leaves_no_half_line(path, monkeypatch):
    log = RunLog(path)
    log.event("first")
    whole, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    with pytest.raises(OSError, match="disk full"):
        log.event("second")
    assert path.read_bytes() == whole
    monkeypatch.undo()
    log.close()
    assert [event.key for event in read(path).events] == ["first", "run_stop"]


def test_threads_that_log_at_once_tear_no_line_and_times_do_not_go_back(path):
    log = RunLog(path)
    log.start(keys.RUN_START)
    closed = threading.Event()

    def write(name):
        for number in range(10_000):
            try:
                log.event(name, number)
            except EventOrderError:
                return

    threads = [threading.Thread(target=write, args=(f"of_{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    while path.stat().st_size < 50_000:
        time.sleep(0.001)
    threading.Thread(target=lambda: (log.close(reason="lost a rank"), closed.set())).start()
    assert closed.wait(30)
    for thread in threads:
        thread.join(30)
    record = read(path)
    times = [event.time_ms for event in record.events]
    assert not record.problems and path.read_bytes().rstrip(b" \n").endswith(b"}}")
    assert path.read_bytes().endswith(b"\n")
    assert times == sorted(times) and record.events[-1].key == "run_stop"
    assert sum(event.key == "run_stop" for event in record.events) == 1


def test_closing_gives_up_on_a_thread_that_hangs_in_a_write(tmp_path, monkeypatch):
    """A rank that is lost must end, whatever its disk does."""
    monkeypatch.setattr("mlevents.runlog.CLOSING_SECONDS", 0.1)
    log = RunLog(tmp_path / "result_0.txt")
    inside, released, write = threading.Event(), threading.Event(), os.write

    def hang(descriptor, data):
        inside.set()
        released.wait(30)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", hang)
    thread = threading.Thread(target=log.event, args=("slow",))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(TimeoutError, match="run_stop was not logged"):
        log.close()
    released.set()
    thread.join(30)
    log.close()
    assert [event.key for event in read(log.path).events] == ["slow", "run_stop"]


WRITER = """
import os, sys, time
from mlevents import keys
from mlevents.runlog import RunLog
RunLog(None).event("imports")  # what encodes a line is imported with the first one
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        log = RunLog(os.path.join(sys.argv[1], f"result_{number}.txt"))
        log.start(keys.RUN_START)
        while True:
            log.event("step", "x" * 200)
    print(child, flush=True)
    sys.stdin.readline()
    os.waitpid(child, 0)
"""


@pytest.mark.processes
def test_a_writer_killed_at_any_moment_leaves_whole_lines(tmp_path):
    """SIGKILL shows what the process had written, not what a crash of the machine leaves: for that see fsync's test."""
    kills, draw = 30, random.Random(3)
    environment = {**os.environ, "PYTHONPATH": str(Path(mlevents.__file__).parents[1])}
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(kills)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as parent:
        try:
            for number in range(kills):
                child = int(parent.stdout.readline())
                path = tmp_path / f"result_{number}.txt"
                while not path.exists() or path.stat().st_size == 0:
                    time.sleep(0.001)
                time.sleep(draw.uniform(0, 0.03))
                os.kill(child, signal.SIGKILL)
                parent.stdin.write("\n")
                parent.stdin.flush()
            assert parent.wait(30) == 0
        finally:
            if parent.poll() is None:
                os.killpg(parent.pid, signal.SIGKILL)
    counts = []
    for number in range(kills):
        path = tmp_path / f"result_{number}.txt"
        record = read(path)
        assert not record.problems and path.read_bytes().rstrip(b" \n").endswith(b"}}")
        assert path.read_bytes().endswith(b"\n")
        assert record.events[0].key == "run_start" and record.stopped is None
        counts.append(len(record.events))
    assert len(set(counts)) > kills // 2  # they were killed at different moments


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def test_a_disk_that_fills_up_keeps_no_event_out_of_the_log_and_a_closed_log_gives_back_its_room(small_disk):
    path = small_disk / "result_0.txt"
    log = RunLog(path)
    log.start(keys.RUN_START)
    assert path.stat().st_blocks * 512 >= ROOM > path.stat().st_size
    fill(small_disk)
    with pytest.raises(OSError):
        (small_disk / "other").write_bytes(bytes(1 << 13))
    for number in range(500):
        log.event("step", number)
    log.close(reason="the disk is full")
    record = read(path)
    assert len(record.events) == 502 and record.status == keys.ABORTED and not record.problems
    assert path.stat().st_blocks * 512 <= path.stat().st_size + (1 << 13)


def test_a_disk_without_room_for_a_log_is_an_error_before_the_run_and_leaves_no_file(small_disk):
    fill(small_disk)
    with pytest.raises(OSError, match="no disk space for a log") as raised:
        RunLog(small_disk / "result_0.txt")
    assert raised.value.errno == errno.ENOSPC
    assert [entry.name for entry in small_disk.iterdir()] == ["filler"]


def test_a_file_system_that_cannot_reserve_is_no_error(tmp_path, monkeypatch):
    def unsupported(*arguments):
        ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    library = SimpleNamespace(fallocate=unsupported)
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: library)
    RunLog(tmp_path / "result_0.txt").close(reason="nothing")
    assert read(tmp_path / "result_0.txt").status == keys.ABORTED
