"""Ranks that a small program plays under a supervisor: what it begins with, how they ended."""

import sys
import textwrap
import time

import psutil
import pytest

from timedrun.distributed.launch_env import LaunchEnv
from timedrun.distributed.launcher import End, Supervisor

START = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
signs = Path(os.environ["TIMEDRUN_SIGNS"])
def wait(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped:
        time.sleep(0.02)
def leave(code):
    (signs / f"rank_{rank}.left").write_text("")
    os._exit(code)
def begin():
    (signs / f"rank_{rank}.waiting").unlink()
def refuse(words, code=1):
    (signs / f"rank_{rank}.error").write_text(json.dumps({"code": code, "words": words}))
    os._exit(code)
def at(step):
    (signs / f"rank_{rank}.json").write_text(json.dumps({"step": step, "seconds": 0.0}))
def all_started():
    (signs / f"started_{rank}").touch()
    while len(list(signs.glob("started_*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
stopped = []
"""


HANDLES = "signal.signal(signal.SIGTERM, lambda *_: stopped.append(1)); all_started()\n"


def place(ranks: int, first: int = 0, world_size: int | None = None) -> LaunchEnv:
    return LaunchEnv("none", first, world_size or ranks, 0, ranks, 1, 0, "127.0.0.1", 0)


def supervise(code: str, ranks: int = 2, **options: object) -> tuple[End, float]:
    """How ranks that run `code` ended, and how many seconds it took."""
    began = time.monotonic()
    command = [sys.executable, "-c", START + textwrap.dedent(code)]
    times = {"log_seconds": 2.0, "term_seconds": 0.5} | options
    end = Supervisor(command, times.pop("place", place(ranks)), **times).run()  # type: ignore[arg-type]
    return end, time.monotonic() - began


def said(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().err


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: object, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
