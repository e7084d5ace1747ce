"""Counters of other load during a run: CPU time of others, waits for a core, throttling, memory pressure, GPUs; and of
the energy of the run's GPUs and the machine's processors.

The kernel integrates them, so they are read when the clock starts and at the end of each block: no thread samples.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from mlevents import keys
from mlevents.machine_load import shares
from mlevents.runlog import RunLog, Scalar
from timedrun.runner.process.clock_check import boot_id
from timedrun.runner.process.process_times import (
    ThreadTimes,
    busy_seconds,
    cpu_seconds,
    descendants,
    thread_folders,
    thread_times,
)

if TYPE_CHECKING:
    import torch

Reading = dict[str, float | str]  # counters by name; in place of one that could not be read, the reason
Probe = Callable[[], Sequence[float]]
GAUGE: Final = "gpu_shared_blocks"  # value at the end of a block: the driver does not integrate it
PACKAGE_WATTS: Final = 500.0
"""Assumed never to be exceeded by a processor package for minutes: an energy counter wraps around at most once within
its range divided by this power."""
OF_RANKS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    **dict.fromkeys(("own_seconds", "waited_seconds", "gpu_joules"), sum),
    **dict.fromkeys(("gpu_slowed_seconds", "gpu_shared_blocks"), max),
}
"""Counters that differ between the ranks of a machine, and how its value follows from theirs."""


class LoadCounters:
    """Counters of this process, its descendants and its machine, and of `device` if it is a GPU. One that cannot be
    read is unknown and never ends the run. root: of the kernel's files."""

    def __init__(
        self,
        device: torch.device | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        root: Path = Path("/"),
    ) -> None:
        self._monotonic, self._proc = monotonic, root / "proc"
        self._cgroup, self._powercap = root / "sys/fs/cgroup", root / "sys/class/powercap"
        self._boot, self._processors = boot_id(), os.cpu_count() or 1
        self._children: list[int] = []
        self._threads: ThreadTimes = {}
        self._waited = self._package_joules = 0.0
        self._packages: dict[Path, tuple[float, float]] = {}
        self._lost = False
        self._before: Reading = {}
        self._probes: dict[tuple[str, ...], Probe] = {
            ("seconds", "capacity_seconds"): self._time,
            ("busy_seconds",): busy_seconds,
            ("stolen_seconds",): lambda: (psutil.cpu_times().steal,),
            ("own_seconds",): self._own_seconds,
            ("waited_seconds",): self._waited_seconds,
            ("periods", "throttled_periods"): self._throttling,
            ("memory_stalled_seconds",): self._memory_pressure,
            ("cpu_joules",): self._package_energy,
        }
        if device is not None and device.type == "cuda":
            self._device = device
            self._probes["gpu_slowed_seconds", GAUGE] = self._gpu
            self._probes["gpu_joules",] = self._gpu_energy

    def begin(self) -> None:
        """Read the counters from which the next block counts."""
        self._before = self._read()

    def keep_up(self) -> None:
        """Read the counters that wrap around, within a block."""
        with suppress(OSError, ValueError):  # the reading at the end of the block says why
            self._package_energy()

    def block(self) -> tuple[str, Reading]:
        """Return the identity of this machine's boot and the counters since the last call."""
        before, self._before = self._before, self._read()
        counted: Reading = {}
        for name, now in self._before.items():
            then = 0.0 if name == GAUGE else before.get(name, "not read at the start of the clock")
            counted[name] = then if isinstance(then, str) else now if isinstance(now, str) else now - then
        return self._boot, counted

    def _read(self) -> Reading:
        reading: Reading = {}
        for names, probe in self._probes.items():
            try:
                reading.update(zip(names, probe(), strict=True))
            except Exception as error:  # no reading may end the run
                reading |= dict.fromkeys(names, _reason(error))
        return reading

    def _time(self) -> Sequence[float]:
        now = self._monotonic()
        return now, now * self._processors

    def _own_seconds(self) -> Sequence[float]:
        self._children = descendants(self._proc)
        return (cpu_seconds(self._children),)

    def _waited_seconds(self) -> Sequence[float]:
        processes = ["self", *map(str, self._children)]
        times = thread_times([task for process in processes for task in thread_folders(process, self._proc)])
        if not times:
            raise OSError("the kernel does not account for waits of threads (schedstat)")
        before, self._threads = self._threads, times
        self._waited += sum(max(0.0, waited - before.get(task, (0.0, 0.0))[1]) for task, (_, waited) in times.items())
        return (self._waited,)

    def _group_files(self, name: str) -> Iterator[Path]:
        """Yield the files `name` of this process's control groups (version 2, and version 1's with the controller cpu)
        and of those above, as far as they are visible; the innermost first."""
        for line in (self._proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                for mount in ("cpu",) if controllers else ("", "unified"):
                    own = self._cgroup / mount / path.lstrip("/") / name
                    groups = (own.parent, *own.parent.parents)
                    files = (group / name for group in groups if group.is_relative_to(self._cgroup / mount))
                    yield from filter(Path.is_file, files)

    @cached_property
    def _limits(self) -> list[Path]:
        if not (files := list(self._group_files("cpu.stat"))):
            raise FileNotFoundError("no control group of this process has a visible cpu.stat")
        return [file for file in files if "nr_throttled " in file.read_text()]  # the root group has no limit

    def _throttling(self) -> Sequence[float]:
        stats = [dict(line.split() for line in file.read_text().splitlines()) for file in self._limits]
        return tuple(sum(int(stat[name]) for stat in stats) for name in ("nr_periods", "nr_throttled"))

    @cached_property
    def _pressure_file(self) -> Path:
        return next(self._group_files("memory.pressure"), self._proc / "pressure" / "memory")

    def _memory_pressure(self) -> Sequence[float]:
        """Return the time in which a task of the control group, else of the machine, stalled (psi.rst)."""
        return (int(self._pressure_file.read_text().splitlines()[0].rpartition("total=")[2]) / 1e6,)

    def _package_energy(self) -> Sequence[float]:
        """Return the energy of the processor packages, without memory, since the first call (RAPL, by powercap.rst).
        Raises OSError if there is none, or if a counter may have wrapped around twice between two calls."""
        now = self._monotonic()
        zones = [path for path in self._powercap.glob("intel-rapl:*") if _text(path / "name").startswith("package")]
        for zone in zones:
            joules, most = (int(_text(zone / f"{name}_uj")) / 1e6 for name in ("energy", "max_energy_range"))
            before, then = self._packages.get(zone, (joules, now))
            self._packages[zone] = joules, now
            self._lost |= now - then > most / PACKAGE_WATTS
            self._package_joules += joules - before + (most if joules < before else 0.0)
        if not zones:
            raise OSError("the kernel shows no energy of a processor package (RAPL)")
        if self._lost:
            raise OSError("read so rarely that an energy counter (RAPL) may have wrapped around twice in between")
        return (self._package_joules,)

    @cached_property
    def _nvml(self) -> tuple[Any, Any]:
        import pynvml as nvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import torch

        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(self._device).uuid
        return nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())

    def _gpu(self) -> Sequence[float]:
        """Return seconds slowed by heat, and 1 for a GPU with other processes, from NVIDIA's management library (extra
        `gpu`). Written by its documentation; it has run on a simulated library only."""
        nvml, handle = self._nvml
        slowed = nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_THERMAL).violationTime / 1e9
        # The run has one process on each GPU, which in a container may have another number here.
        return slowed, float(len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) > 1)

    def _gpu_energy(self) -> Sequence[float]:
        """Return the energy that the GPU has used since its driver was loaded; NVML has it from Volta on."""
        nvml, handle = self._nvml
        return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,)


def _text(file: Path) -> str:
    return file.read_text().strip()


def log_load(log: RunLog, reports: Sequence[tuple[str, Reading]], **metadata: Scalar) -> None:
    """Log the load of the machine that was loaded most, from all ranks' `block`. Unknown counters have reasons."""
    machines: dict[str, list[Reading]] = {}
    for boot, reading in reports:
        machines.setdefault(boot, []).append(reading)
    loads = [_of_machine(readings) for readings in machines.values()]
    known = [{name: round(value, 6) for name, value in load.items() if not isinstance(value, str)} for load in loads]
    worst = max(range(len(loads)), key=lambda number: max(shares([known[number]]).values(), default=0.0))
    if unknown := {name: value for name, value in loads[worst].items() if isinstance(value, str)}:
        metadata["unknown"] = unknown
    if len(loads) > 1:
        metadata |= {"node": worst, "nodes": len(loads)}
    log.event(keys.MACHINE_LOAD, known[worst], **metadata)


def _of_machine(ranks: Sequence[Reading]) -> Reading:
    load = dict(ranks[0])
    for name, of_ranks in OF_RANKS.items():
        values = [rank[name] for rank in ranks if name in rank]
        if values:
            reason = next((value for value in values if isinstance(value, str)), None)
            load[name] = reason or of_ranks([float(value) for value in values])
    return load


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
