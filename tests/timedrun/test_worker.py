"""A rank's process: several runs one after the other leave it as it was, and one that fails ends without delay."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from timedrun.card import find
from timedrun.errors import ExitCode
from timedrun.ranks import fault
from timedrun.results import ResultPaths
from timedrun.worker import LaunchOptions, execute

pytestmark = pytest.mark.timeout(120)


def open_files() -> list[str]:
    """What this process has open, without a run's lock, which is kept as long as the process lives."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").split(":")[0])
        except FileNotFoundError:
            continue  # the one that lists the folder
    return sorted(one for one in found if not one.endswith("environment.txt"))


def test_runs_in_one_process_leave_no_handler_and_no_open_file(tmp_path: Path) -> None:
    benchmark = find("image_classification")
    config = benchmark.config("smoke", "synthetic")
    short = replace(config, evaluation=replace(config.evaluation, target=0.01, first=1))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    execute(benchmark, short, LaunchOptions(paths=ResultPaths(tmp_path, 0)))
    before = open_files()
    for number in (1, 2):
        options = LaunchOptions(paths=ResultPaths(tmp_path, number))
        assert execute(benchmark, short, options) == ExitCode.OK
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert open_files() == before


def test_a_run_that_fails_reads_no_data_after_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fault.VARIABLE, "0:1:raise")
    benchmark = find("image_classification")
    paths = ResultPaths(tmp_path, 0)
    with pytest.raises(RuntimeError, match="asked for"):
        execute(benchmark, benchmark.config("smoke", "synthetic"), LaunchOptions(paths=paths))
    assert json.loads(paths.provenance.read_text())["data"] is None
