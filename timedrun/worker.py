"""One rank of one run: joins the others, opens the log, and hands the run to the benchmark's `train`."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch

from mlevents.runlog import NotResumable, RunLog
from timedrun import checkpoint, config, provenance, system
from timedrun.card import Benchmark
from timedrun.config import RunConfig
from timedrun.errors import ExitCode, TimedrunError
from timedrun.fault import Fault
from timedrun.progress import Progress
from timedrun.ranks import Ranks
from timedrun.results import ResultPaths, write_json
from timedrun.run import TimedRun, checkpoint_path
from timedrun.stop import StopRequest
from timedrun.watch import Watch

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How a run is started on this machine; none of it changes what is computed for a given number of ranks."""

    paths: ResultPaths
    ranks: int = 1
    threads: int = 0
    data_folder: Path | None = None
    resume: bool = False
    label: str = ""
    command: str = ""


def execute(benchmark: Benchmark, settings: RunConfig, options: LaunchOptions) -> ExitCode:
    """Run `settings` as this process's rank; the outcome as an exit code.

    Raises:
        TimedrunError: the run was aborted; its log says why.
    """
    fault = Fault.from_environment()
    provenance.image_digest()  # refused on every rank alike, before any waits for another
    if options.threads:
        torch.set_num_threads(options.threads)
    ranks = Ranks.join(settings.device)
    try:
        platform = settings.submission.platform or platform_name(settings, ranks)
        # Before the log is touched: without a checkpoint it must keep its run_stop.
        resume_from = load_checkpoint(options, ranks) if options.resume else None
        log = open_log(settings, options, ranks, platform)
        stop = StopRequest()
        stop.install()
        watch = Watch(ranks, partial(end_at_once, log, ranks)).start()
        run = TimedRun(
            settings,
            benchmark.card_of(settings),
            ranks,
            log,
            platform=platform,
            progress=Progress(options.label or settings.name, shown=ranks.is_first),
            stop=stop,
            data_folder=options.data_folder,
            checkpoints=options.paths.checkpoints,
            resume_from=resume_from,
            watch=watch,
            fault=fault,
        )
        try:
            with run:
                benchmark.train(settings, run)
            watch.stop()
        finally:  # after run_stop, since it may read the data
            if ranks.is_first:
                provenance.add_data(options.paths.provenance, benchmark, settings, options.data_folder)
        assert run.outcome is not None  # leaving the context without an error sets it
        return run.outcome.exit_code
    finally:
        ranks.leave()


def end_at_once(log: RunLog, ranks: Ranks, reason: str) -> NoReturn:
    """End this process, which may be caught in a collective, with `reason` in the log."""
    log.close(reason=reason)
    if ranks.is_first:
        print(f"timedrun run: {reason}", file=sys.stderr, flush=True)
    os._exit(int(ExitCode.RANK_LOST))


def open_log(settings: RunConfig, options: LaunchOptions, ranks: Ranks, platform: str) -> RunLog:
    """The run's log with config, system, environment and provenance beside it, on rank 0; one that writes nothing on
    the others. If rank 0 cannot write, all ranks end.

    Raises:
        TimedrunError: rank 0 could not write, or the result exists.
    """
    log: RunLog | None = None
    complaint = ""
    if ranks.is_first:
        try:
            log = claim(settings, options, ranks, platform)
        except OSError as error:
            where = error.filename or options.paths.folder
            complaint = f"the result cannot be written: {error.strerror or error} ({where})."
        except NotResumable as error:
            complaint = str(error)
    if shared := ranks.from_first(complaint):
        raise TimedrunError(str(shared))
    return log or RunLog(None)


def claim(settings: RunConfig, options: LaunchOptions, ranks: Ranks, platform: str) -> RunLog:
    """Create the result's log, which only one process can, and write what belongs beside it."""
    paths = options.paths
    if options.resume:
        attempt = len(list(paths.side.glob("interrupted_*.txt"))) + 1
        shutil.copyfile(paths.log, paths.side / f"interrupted_{attempt}.txt")
        return RunLog.resume(paths.log)
    paths.folder.mkdir(parents=True, exist_ok=True)
    log = RunLog(paths.log)
    try:
        write_beside(settings, paths, ranks, platform, options.command)
    except BaseException:
        log.close(reason="the files beside the log could not be written")
        raise
    return log


def write_beside(settings: RunConfig, paths: ResultPaths, ranks: Ranks, platform: str, command: str) -> None:
    """Write what belongs beside a run's log: its config, and the system, environment and source it ran on."""
    paths.side.mkdir()
    write_json(paths.config, config.dump(settings))
    submission = settings.submission
    description = system.describe(
        submission.organization,
        platform,
        division=submission.division,
        status=submission.status,
        ranks=ranks.world,
        device=ranks.device.type,
    )
    write_json(paths.system, description)
    paths.environment.write_text(system.environment())
    origin = {**system.provenance(ROOT), "command": command, "ranks": ranks.world}
    write_json(paths.provenance, origin | {"image_digest": provenance.image_digest(), "data": None})


def load_checkpoint(options: LaunchOptions, ranks: Ranks) -> dict[str, object]:
    """This rank's part of the newest checkpoint that is whole on every rank.

    Raises:
        TimedrunError: there is none.
    """
    folder = options.paths.checkpoints / f"rank_{ranks.rank}"
    found = checkpoint.newest_valid(folder)
    step = found[1]["position"]["step"] if found else -1
    (lowest,) = (-value for value in ranks.maximum([-float(step)]))
    if lowest < 0:
        raise TimedrunError(f"{folder.parent}: not every rank has a whole checkpoint; the run cannot be resumed.")
    if found and step == lowest:
        return found[1]
    return checkpoint.load(checkpoint_path(folder, int(lowest)))


def platform_name(settings: RunConfig, ranks: Ranks) -> str:
    """System id of this machine for this config: the number and kind of what computes, and the config's name."""
    if ranks.device.type == "cuda":
        kind = torch.cuda.get_device_name(ranks.device).replace("NVIDIA", "").strip().replace(" ", "_")
    else:
        kind = "CPU"
    return f"{ranks.world}x{kind}-{settings.name}"
