"""Ranks that a small program plays under the launcher."""

import socket
import sys
import textwrap
import time
from collections.abc import Callable

import psutil
import pytest

from timedrun.distributed import launcher
from timedrun.distributed.launch_env import LaunchEnv
from timedrun.distributed.launcher import End, Launcher

PRELUDE = """
import fcntl, json, os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
status = Path(os.environ["TIMEDRUN_SIGNS"])
def wait(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped:
        time.sleep(0.02)
def report_left():
    (status / f"rank_{rank}.left").write_text("")
def leave(code):
    report_left()
    os._exit(code)
def begin():
    (status / f"rank_{rank}.waiting").unlink()
def refuse(words, code=1):
    (status / f"rank_{rank}.error").write_text(json.dumps({"code": code, "words": words}))
    os._exit(code)
def at(step, **more):
    (status / f"rank_{rank}.json").write_text(json.dumps({"step": step, **more}))
def suspend():
    os.kill(os.getpid(), signal.SIGSTOP)
def interrupt(number=signal.SIGTERM):
    os.kill(os.getppid(), number)
def on_sigterm(action):
    signal.signal(signal.SIGTERM, action)
def stop(*_):
    stopped.append(1)
def all_started():
    (status / f"started_{rank}").touch()
    while len(list(status.glob("started_*"))) < int(os.environ["LOCAL_WORLD_SIZE"]):
        time.sleep(0.01)
stopped = []
"""


def launch_env(ranks: int, first: int = 0, world_size: int | None = None) -> LaunchEnv:
    return LaunchEnv("none", first, world_size or ranks, 0, ranks, "127.0.0.1", 0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def launch_ranks(code: str, ranks: int = 2, **options: object) -> tuple[End, float]:
    """Run ranks that execute `code`; return their end and the seconds until then."""
    began = time.monotonic()
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    env = options.pop("env", launch_env(ranks))
    with pytest.MonkeyPatch.context() as patch:
        options = {"log_seconds": 2.0, "term_seconds": 0.5, "suspended_seconds": 30.0} | options
        for name in [name for name in options if name.endswith("_seconds")]:
            patch.setattr(launcher, name.upper(), options.pop(name))
        end = Launcher(command, env, **options).run()
    return end, time.monotonic() - began


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
