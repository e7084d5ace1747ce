"""Counters of the load beside a run: CPU time of others, waits for a core, throttling, memory pressure, GPUs.

The kernel integrates all but two of them. So they are read when the clock starts and at the end of each block, and
nothing runs in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from mlevents import keys
from mlevents.machine_load import MachineLoad
from mlevents.runlog import RunLog, Scalar
from timedrun.distributed.stall_detector import ThreadTimes, cpu_seconds, descendants, thread_folders, thread_times
from timedrun.run.clock_check import boot_id

Reading = dict[str, float | str]
"""Counters by name; in place of one that could not be read, the reason."""
Probe = Callable[[], Sequence[float]]
GAUGES: Final = ("gpu_sm_mhz", "gpu_other_processes")
"""Values at the end of a block, not over it: the driver does not integrate them."""
OF_RANKS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "own_seconds": sum,
    "waited_seconds": sum,
    "gpu_slowed_seconds": max,
    "gpu_sm_mhz": min,
    "gpu_other_processes": max,
}
"""Counters that differ between the ranks of a machine, and how its value is computed from theirs."""


class LoadCounters:
    """Counters of this rank and of its machine. A counter that cannot be read is unknown and never ends the run."""

    def __init__(
        self,
        device: torch.device,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._monotonic, self._proc, self._cgroup = monotonic, proc, cgroup
        self._processors = os.cpu_count() or 1
        self._boot = boot_id()
        self._children: list[int] = []
        self._threads: ThreadTimes = {}
        self._waited = 0.0
        self._probes: list[tuple[tuple[str, ...], Probe]] = [
            (("seconds", "capacity_seconds"), self._time),
            (("busy_seconds",), busy_seconds),
            (("stolen_seconds",), lambda: (psutil.cpu_times().steal,)),
            (("own_seconds",), self._own_seconds),
            (("waited_seconds",), self._waited_seconds),
        ]
        self._unknown: Reading = {}
        self._add(("limited_periods", "throttled_periods"), self._throttling)
        self._add(("memory_stalled_seconds",), self._memory_pressure)
        if device.type == "cuda":
            self._add(("gpu_slowed_seconds", *GAUGES), lambda: gpu_probe(device))
        self._before: Reading = {}

    def begin(self) -> None:
        """Read the counters from which the next block counts."""
        self._before = self._read()

    def block(self) -> tuple[str, Reading]:
        """Return the identity of this machine's boot and the counters since the last call."""
        before, self._before = self._before, self._read()
        found: Reading = {}
        for name, now in self._before.items():
            then = 0.0 if name in GAUGES else before.get(name, "not read at the start of the clock")
            found[name] = then if isinstance(then, str) else now if isinstance(now, str) else now - then
        return self._boot, found

    def _add(self, names: tuple[str, ...], make: Callable[[], Probe]) -> None:
        try:
            self._probes.append((names, make()))
        except Exception as error:  # whatever fails here must not end the run
            self._unknown |= dict.fromkeys(names, _reason(error))

    def _read(self) -> Reading:
        found = dict(self._unknown)
        for names, probe in self._probes:
            try:
                found.update(zip(names, probe(), strict=True))
            except Exception as error:  # as above
                found |= dict.fromkeys(names, _reason(error))
        return found

    def _time(self) -> Sequence[float]:
        now = self._monotonic()
        return now, now * self._processors

    def _own_seconds(self) -> Sequence[float]:
        self._children = descendants(self._proc)
        return (cpu_seconds(self._children),)

    def _waited_seconds(self) -> Sequence[float]:
        processes = ["self", *map(str, self._children)]
        times = thread_times([task for one in processes for task in thread_folders(one, self._proc)])
        if not times:
            raise OSError("the kernel does not account for waits of threads (schedstat)")
        before, self._threads = self._threads, times
        self._waited += sum(max(0.0, waited - before.get(task, (0.0, 0.0))[1]) for task, (_, waited) in times.items())
        return (self._waited,)

    def _groups(self) -> list[Path]:
        """Return the control groups of this process (version 2, and version 1's of the controller cpu) and those above,
        as far as this file system shows them; the innermost first."""
        found: list[Path] = []
        for line in (self._proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            for mount in [self._cgroup / "cpu"] if controllers else [self._cgroup, self._cgroup / "unified"]:
                own = mount / path.lstrip("/")
                found += [one for one in (own, *own.parents) if one.is_relative_to(mount)]
        return found

    def _throttling(self) -> Probe:
        files = [group / "cpu.stat" for group in self._groups()]
        found = [file for file in files if file.is_file()]
        if not found:
            raise FileNotFoundError(f"no cpu.stat of this process's control group in {self._cgroup}")
        limited = [file for file in found if "nr_throttled " in file.read_text()]  # the root group has no limit

        def probe() -> Sequence[float]:
            stats = [dict(line.split() for line in file.read_text().splitlines()) for file in limited]
            return tuple(sum(int(one[name]) for one in stats) for name in ("nr_periods", "nr_throttled"))

        return probe

    def _memory_pressure(self) -> Probe:
        """Return a probe of the time in which some task of the control group, or else of the machine, stalled
        (Documentation/accounting/psi.rst)."""
        groups = self._groups() if (self._proc / "self" / "cgroup").is_file() else []
        files = [group / "memory.pressure" for group in groups] + [self._proc / "pressure" / "memory"]
        file = next((one for one in files if one.is_file()), files[-1])
        return lambda: (int(file.read_text().splitlines()[0].rpartition("total=")[2]) / 1e6,)


def busy_seconds() -> Sequence[float]:
    """Return the CPU time that all processes and the kernel used on this machine since its boot."""
    used = psutil.cpu_times()
    return (sum(getattr(used, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq")),)


def gpu_probe(device: torch.device) -> Probe:
    """Return a probe of NVIDIA's management library (extra `gpu`): seconds slowed by heat, SM clock, processes of
    others.

    Written by NVML's documentation; it has run on a simulated library only.
    """
    import pynvml as nvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode())

    def probe() -> Sequence[float]:
        slowed = nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_THERMAL).violationTime / 1e9
        clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        # One process of the run is on each GPU; in a container NVML's numbers of processes may be the host's.
        processes = len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return slowed, clock, max(0, processes - 1)

    return probe


def log_load(log: RunLog, reports: Sequence[tuple[str, Reading]], **metadata: Scalar) -> None:
    """Log the load of the machine that was loaded most, from the `block` of every rank. Unknown counters are named with
    their reasons."""
    machines: dict[str, list[Reading]] = {}
    for boot, reading in reports:
        machines.setdefault(boot, []).append(reading)
    loads = [_of_machine(readings) for readings in machines.values()]
    known = [{name: one for name, one in load.items() if not isinstance(one, str)} for load in loads]
    worst = max(range(len(loads)), key=lambda number: _worst(known[number]))
    if unknown := {name: one for name, one in loads[worst].items() if isinstance(one, str)}:
        metadata["unknown"] = unknown
    if len(loads) > 1:
        metadata |= {"node": worst, "nodes": len(loads)}
    log.event(keys.MACHINE_LOAD, {name: round(one, 6) for name, one in known[worst].items()}, **metadata)


def _of_machine(ranks: Sequence[Reading]) -> Reading:
    found = dict(ranks[0])
    for name, of_ranks in OF_RANKS.items():
        values = [rank[name] for rank in ranks if name in rank]
        reasons = [one for one in values if isinstance(one, str)]
        if values:
            found[name] = reasons[0] if reasons else of_ranks([one for one in values if not isinstance(one, str)])
    return found


def _worst(load: Mapping[str, Any]) -> float:
    found = MachineLoad.of([load])
    return max([0.0, float(found.gpu_others or 0), *(one for one in found.shares.values() if one is not None)])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
