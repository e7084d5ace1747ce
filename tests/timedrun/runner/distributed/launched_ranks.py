"""Ranks that a small program plays under the agent of a node."""

import socket
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import psutil

from timedrun.runner.distributed.node_agent import NodeAgent
from timedrun.runner.process.launch_env import LaunchEnv
from timedrun.runner.process.status_files import End

PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
status = Path(os.environ["TIMEDRUN_SIGNS"])
def report(kind, **values):
    (status / f"rank_{rank}.{kind}").write_text(json.dumps(values))
def leave(code):
    report("left", code=code)
    os._exit(0)
def begin():
    (status / f"rank_{rank}.waiting").unlink()
def refuse(words, code=1):
    report("error", code=code, words=words)
    os._exit(code)
def die(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
def interrupt(number=signal.SIGTERM):
    os.kill(os.getppid(), number)
def on_sigterm(action):
    signal.signal(signal.SIGTERM, action)
def stop(*_):
    stopped.append(1)
def wait(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped:
        time.sleep(0.02)
def all_started():
    (status / f"started_{rank}").touch()
    while len(list(status.glob("started_*"))) < int(os.environ["LOCAL_WORLD_SIZE"]):
        time.sleep(0.01)
stopped = []
"""


TWO = LaunchEnv("node", 0, 2, 0, 2)
"""Two ranks, all of a run."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def launch_ranks(code: str, **options: object) -> tuple[End, float]:
    """Run two ranks that execute `code`; return their end and the seconds until then."""
    began = time.monotonic()
    command = [sys.executable, "-S", "-c", PRELUDE + textwrap.dedent(code)]
    end = NodeAgent(command, TWO, job="the job", **options).run()
    return end, time.monotonic() - began


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Return what `condition` returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
