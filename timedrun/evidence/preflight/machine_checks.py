"""Checks of what on this machine keeps a run from starting, or makes its times doubtful, without torch."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from judging.ground.cores import usable_cores
from judging.ground.errors import UsageError
from judging.ground.result_files import ResultPaths
from mlevents.machine_load import SHORTEST
from timedrun.runner.process.process_times import CpuReading
from timedrun.runner.provenance.hardware import default_threads

LEAST_FREE_BYTES = 64 * 2**20  # for a log and its side files, with a margin; checkpoints come on top
EARLIEST_TIME = 1_577_836_800.0  # 2020-01-01: an earlier wall clock was never set
SLOW_CLOCK_SOURCES = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
"""Linux's names of sources that are coarse or slow to read; the fallbacks for an untrusted processor counter."""

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def result_problems(
    paths: ResultPaths, resume: bool, runs: int = 1, *, checkpoints: int = 0, writes_log: bool = True
) -> list[str]:
    """Return the faults of the results folder for `runs` runs.

    checkpoints: bytes of those of one run. writes_log: rank 0 is on this node; other nodes write only checkpoints.
    """
    if writes_log and resume and not paths.log.exists():
        what = f"{paths.log} does not exist" if paths.number >= 0 else f"{paths.folder} holds no run"
        return [f"{what}: there is nothing to resume; set --results to the folder of the run, or leave out --resume."]
    if writes_log and not resume and (paths.log.exists() or paths.side.exists()):
        taken = paths.log if paths.log.exists() else paths.side
        return [
            f"{taken} exists; a result is never overwritten. Choose another --results folder, or result_N.txt in it."
        ]
    parent = existing(paths.folder)
    if not parent.is_dir():
        return [f"{parent} is a file, so {paths.folder} cannot be created; choose another --results folder."]
    try:
        tempfile.TemporaryFile(dir=parent).close()  # os.access grants root every folder, even on a read-only mount
    except OSError as error:
        owner, own = parent.stat().st_uid, os.geteuid()
        uids = f": it belongs to uid {owner}, this process to {own}" if owner != own else ""
        user = f", or in a container docker's --user {owner}" if uids else ""
        return [f"{parent} is not writable ({error.strerror}){uids}; choose another --results folder{user}."]
    free, needed = shutil.disk_usage(parent).free, LEAST_FREE_BYTES * runs + checkpoints
    if free < needed:
        several = "a run needs" if runs == 1 else f"{runs} runs need"
        for_them = f", {checkpoints / 2**20:.0f} MiB of them for checkpoints" if checkpoints else ""
        room = f"{parent} has {free / 2**20:.0f} MiB free, but {several} {needed / 2**20:.0f} MiB{for_them}"
        return [f"{room}; free some space or choose another --results folder."]
    return []


def require_file(option: str, path: Path | None) -> None:
    """Raise UsageError if no file can be written to the `path` of `option`, as there is a folder, or none for it."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        problem = "this is a folder" if path.is_dir() else f"the folder {path.parent} does not exist"
        raise UsageError(f"{option} {path}: {problem}; nothing was measured.")


def existing(folder: Path) -> Path:
    """Return `folder`, or the nearest one around it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def clock_problems(source: Path = CLOCK_SOURCE) -> list[str]:
    """Return the reasons to doubt this machine's clocks."""
    problems = []
    if time.time() < EARLIEST_TIME:
        problems.append("the wall clock was never set, so the log's times would be wrong; set it.")
    name = source.read_text().strip() if source.is_file() else ""
    if name in SLOW_CLOCK_SOURCES:
        problems.append(
            f"the kernel's clock source is {name}, which is coarse or slow; boot with the processor's counter (tsc)."
        )
    return problems


def load_problems(before: CpuReading, threads: int, ranks: int = 1, now: CpuReading | None = None) -> list[str]:
    """Return a warning if other processes left fewer cores than the `threads` of all `ranks` since `before`: threads
    that share cores wait for each other in every operator, which can make a run 20 times slower. A span that is too
    short to tell, such as that of a run that was forked, has none.

    threads: of a rank; 0: the default.
    """
    now = now or CpuReading.now()
    if now.seconds - before.seconds < SHORTEST:
        return []
    cores, usable = os.cpu_count() or 1, usable_cores()
    others = max(0.0, (now.busy - before.busy) - (now.own - before.own)) / (now.seconds - before.seconds)
    free = int(min(usable, max(0.0, cores - others)) + 0.5)
    wanted = threads * ranks or default_threads()
    if free >= wanted:
        return []
    advice = f"use --threads {max(1, free // ranks)}" if wanted > ranks else "expect longer times"
    used = f"other processes use {min(others, cores):.1f} of {cores} cores"
    limited = f", of which this process may use {usable}" if usable < cores else ""
    return [f"{used}{limited}, too many for {wanted} thread{'s' * (wanted > 1)} of a run: {advice}."]
