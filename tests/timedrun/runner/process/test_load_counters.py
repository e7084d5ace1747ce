"""What the kernel's files tell of the load beside a run, by block, or why not; and page caches that are dropped."""

import os
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import torch

from mlevents import keys, record
from mlevents.event import Event
from mlevents.runlog import RunLog
from tests.timedrun.runner.distributed.thread_ranks import CPU, on_all
from tests.timedrun.runner.run.killed_run import finished
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.process import load_counters
from timedrun.runner.process.load_counters import LoadCounters, Reading, log_load
from timedrun.runner.run import page_cache
from timedrun.runner.run.page_cache import clear_on_every_node, drop_file


class Machine:
    """A simulated kernel: files of /proc and of control groups, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.root, self.proc, self.powercap = folder, folder / "proc", folder / "sys/class/powercap"
        self.now = 100.0
        self.own = 50.0

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def thread(self, number: int, waited: float, process: str = "self", children: str = "") -> None:
        folder = self.proc / process / "task" / str(number)
        self.write(folder / "schedstat", f"1000000000 {int(waited * 1e9)} 7\n")
        self.write(folder / "children", children)

    def stat(self, *, user: int, idle: int, steal: int = 0) -> None:
        """Write the CPU times, in hundredths of a second."""
        self.write(self.proc / "stat", f"cpu  {user} 10 20 {idle} 30 0 5 {steal} 0 0\n")

    def pressure(self, microseconds: int, file: str = "proc/pressure/memory") -> None:
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}\nfull avg10=0.00 total=7\n"
        self.write(self.root / file, text)

    def groups(self, lines: str, **throttled: int) -> None:
        """Write the process's control groups and the `nr_throttled` of each group's file, by its folder."""
        self.write(self.proc / "self" / "cgroup", lines)
        for folder, count in throttled.items():
            text = f"usage_usec 1\nnr_periods 100\nnr_throttled {count}\n" if count >= 0 else "usage_usec 1\n"
            self.write(self.root / "sys/fs/cgroup" / folder.replace("__", "/") / "cpu.stat", text)

    def zone(self, name: str, joules: float, *, kind: str = "package-0", most: float = 262_143.3) -> None:
        """Write the energy counter of a powercap zone, which wraps around at `most` joules."""
        for file, text in (("name", kind), ("energy_uj", joules * 1e6), ("max_energy_range_uj", most * 1e6)):
            self.write(self.powercap / name / file, f"{text if file == 'name' else int(float(text))}\n")

    def begun(self) -> LoadCounters:
        counters = LoadCounters(CPU, lambda: self.now, self.root)
        counters.begin()
        return counters


def logged(folder: Path, *blocks: list[tuple[str, Reading]]) -> list[Event]:
    """The events of the reports of all ranks on some blocks."""
    with closing(RunLog(folder / "result_0.txt", durable=False)) as log:
        for reports in blocks:
            log_load(log, reports)
    return record.read(folder / "result_0.txt").all(keys.MACHINE_LOAD)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    simulated = Machine(tmp_path)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(simulated.proc))
    monkeypatch.setattr(load_counters, "cpu_seconds", lambda children: simulated.own)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    simulated.write(simulated.proc / "thread-self" / "children", "")
    simulated.stat(user=1000, idle=500)
    simulated.thread(1, 1.0)
    simulated.pressure(1_000_000)
    simulated.groups("0::/\n", unified=-1)
    simulated.zone("intel-rapl:0", 1000.0)
    return simulated


def test_a_block_counts_what_was_used_since_the_block_before(machine):
    counters = machine.begun()
    machine.now, machine.own = 110.0, 56.0
    machine.stat(user=2800, idle=600, steal=50)
    machine.thread(1, 1.5, children="77")
    machine.thread(2, 0.25)  # started since
    machine.thread(77, 2.0, process="77")
    machine.pressure(1_250_000)
    machine.zone("intel-rapl:0", 1125.0)
    assert counters.block()[1] == pytest.approx(
        {"seconds": 10.0, "capacity_seconds": 20.0, "busy_seconds": 18.0, "stolen_seconds": 0.5, "own_seconds": 6.0}
        | {"waited_seconds": 2.75, "periods": 0, "throttled_periods": 0, "memory_stalled_seconds": 0.25}
        | {"cpu_joules": 125.0}
    )
    shutil.rmtree(machine.proc / "self" / "task" / "2")  # an ended thread takes nothing back
    machine.thread(1, 1.75, children="77")
    assert counters.block()[1]["waited_seconds"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("lines", "throttled"),
    [
        ("0::/pod/box\n", {"pod__box": 3, "pod": 2, ".": -1}),
        ("4:memory:/other\n2:cpu,cpuacct:/pod/box\n0::/\n", {"cpu__pod__box": 3, "cpu__pod": 2, "cpu": 0, "cpu__x": 9}),
        ("2:cpu:/host/path/not/shown\n", {"cpu": 5}),
    ],
    ids=["version 2", "version 1", "version 1 in a container"],
)
def test_throttling_and_pressure_are_the_runs_groups(machine, lines, throttled):
    machine.groups(lines, **dict.fromkeys(throttled, 0) | {name: -1 for name, count in throttled.items() if count < 0})
    own = f"sys/fs/cgroup/{next(iter(throttled)).replace('__', '/')}/memory.pressure"
    machine.pressure(0, own)
    counters = machine.begun()
    machine.groups(lines, **throttled)
    machine.pressure(400_000, own)
    _, found = counters.block()
    assert (found["throttled_periods"], found["memory_stalled_seconds"]) == (5, pytest.approx(0.4))


def test_the_energy_of_the_processors_is_that_of_their_packages_also_where_a_counter_wraps_around(machine):
    for name, kind in (("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"), ("intel-rapl:2", "psys")):
        machine.zone(name, 1.0, kind=kind)
    machine.zone("intel-rapl:0", 262_100.0)
    machine.zone("intel-rapl:1", 10.0, kind="package-1")
    counters = machine.begun()
    machine.zone("intel-rapl:0", 200.0)  # wrapped around at 262,143.3
    machine.zone("intel-rapl:1", 60.0, kind="package-1")
    machine.zone("intel-rapl:0:0", 9_000.0, kind="core")
    assert counters.block()[1]["cpu_joules"] == pytest.approx(43.3 + 200 + 50)
    machine.zone("intel-rapl:0", 250.0)
    assert counters.block()[1]["cpu_joules"] == pytest.approx(50)
    for joules in (150.0, 100.0):  # within one block a counter wraps around twice
        machine.now += 500
        machine.zone("intel-rapl:0", joules)
        counters.keep_up()
    assert counters.block()[1]["cpu_joules"] == pytest.approx(2 * 262_143.3 + 100 - 250)
    machine.now += 525
    counters.keep_up()
    assert "may have wrapped around twice" in str(counters.block()[1]["cpu_joules"])


def test_what_a_system_lacks_is_unknown_with_a_reason_and_logged_as_such(tmp_path, machine):
    for folder in ("self", "pressure"):
        (machine.proc / folder).rename(tmp_path / folder)
    machine.powercap.rename(tmp_path / "none")
    counters = machine.begun()
    machine.stat(user=1100, idle=500)
    (machine.proc / "stat").rename(tmp_path / "stat")  # fails from here on
    reports = [counters.block()]
    (event,) = logged(tmp_path, reports)
    assert event.value == {"seconds": 0.0, "capacity_seconds": 0.0, "own_seconds": 0.0}
    absent = ("busy_seconds", "stolen_seconds", "periods", "throttled_periods", "memory_stalled_seconds")
    assert event.metadata["unknown"] == dict.fromkeys(absent, "FileNotFoundError: No such file or directory") | {
        "waited_seconds": "OSError: the kernel does not account for waits of threads (schedstat)",
        "cpu_joules": "OSError: the kernel shows no energy of a processor package (RAPL)",
    }


def test_a_gpus_heat_energy_and_other_processes_are_nvmls(monkeypatch):
    library = MagicMock()
    library.nvmlDeviceGetHandleByUUID = {b"GPU-abc": "handle"}.__getitem__
    library.nvmlDeviceGetViolationStatus.side_effect = [MagicMock(violationTime=time) for time in (5e9, 7e9)]
    library.nvmlDeviceGetComputeRunningProcesses.return_value = ["own", "another"]
    library.nvmlDeviceGetTotalEnergyConsumption.side_effect = [10_000_000, 10_250_000]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: MagicMock(uuid="abc"))
    counters = LoadCounters(torch.device("cuda", 0))
    counters.begin()
    _, found = counters.block()
    assert [found[name] for name in ("gpu_slowed_seconds", "gpu_shared_blocks")] == [2.0, 1.0]
    assert found["gpu_joules"] == 250
    monkeypatch.setitem(sys.modules, "pynvml", None)
    counters = LoadCounters(torch.device("cuda", 0))
    counters.begin()
    assert "ModuleNotFoundError" in str(counters.block()[1]["gpu_shared_blocks"])


def test_the_ranks_of_a_machine_are_one_run_and_the_most_loaded_machine_is_logged(tmp_path):
    def reading(own: float, waited: float | str = 0.0) -> Reading:
        machine = {"seconds": 10.0, "capacity_seconds": 20.0, "busy_seconds": 12.0, "stolen_seconds": 0.0}
        return machine | {"gpu_joules": 50.0} | {"own_seconds": own, "waited_seconds": waited}

    reports = [("a", reading(6.0, 1.0)), ("b", reading(2.0)), ("a", reading(6.0, 2.0)), ("b", reading(1.0))]
    two, one = logged(tmp_path, reports, [*reports[::2], ("a", reading(0.0, "OSError: gone"))])
    assert (two.metadata["node"], two.metadata["nodes"], two.value["own_seconds"]) == (1, 2, 3.0)
    assert two.value["gpu_joules"] == 100  # two GPUs
    assert "nodes" not in one.metadata and one.metadata["unknown"] == {"waited_seconds": "OSError: gone"}
    assert one.value["own_seconds"] == 12.0


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_logs_the_load_of_every_block_and_no_failed_reading_ends_it(make_run, machine, monkeypatch, fails):
    def fail(*arguments: object) -> float:
        raise RuntimeError("no such counter")

    for name in ("cpu_seconds", "thread_times") if fails else ():
        monkeypatch.setattr(load_counters, name, fail)
    kept_up: list[int] = []
    monkeypatch.setattr(LoadCounters, "keep_up", lambda counters: kept_up.append(1))
    log = finished(make_run(load=machine.begun()))
    assert kept_up, "counters that wrap around are read within blocks"
    loads = log.all(keys.MACHINE_LOAD)
    assert [event.metadata["epoch_num"] for event in loads] == [2, 4]
    assert log.status == keys.SUCCESS and all(event in log.timed for event in loads)
    if fails:
        words = "RuntimeError: no such counter"
        assert loads[0].metadata["unknown"] == {"own_seconds": words, "waited_seconds": words}


def test_the_kernels_file_is_found_where_a_container_has_it_writable(tmp_path):
    mounts, file = tmp_path / "mountinfo", "22 0:4 /sys/vm/drop_caches"
    mounts.write_text(f"28 {file} /fixed ro - proc proc rw\n29 {file} /drop\\040caches rw shared:3 - proc proc rw\n")
    assert drop_file(mounts) == Path("/drop caches")


def test_caches_that_cannot_be_dropped_have_a_reason_without_a_path(tmp_path):
    assert page_cache.clear(tmp_path / "file") == ""
    assert (tmp_path / "file").read_text() == "3\n"
    assert page_cache.clear(tmp_path) == "IsADirectoryError: Is a directory"


def test_caches_are_cleared_once_on_each_node_and_count_as_cleared_only_where_all_were():
    calls: list[int] = []

    def told(*nodes: str) -> list[Any]:
        """What each of two ranks of every node is told."""

        def body(ranks: ProcessGroup) -> str:
            def clear() -> str:
                calls.append(ranks.rank)
                return nodes[ranks.rank // 2]

            return clear_on_every_node(replace(ranks, local_rank=ranks.rank % 2), clear)

        return on_all(2 * len(nodes), body)

    assert told("", "") == [""] * 4
    assert sorted(calls) == [0, 2]  # not by a local rank 1
    assert told("", "read-only") == ["node 1 of 2: read-only"] * 4
    assert told("read-only") == ["read-only"] * 2
