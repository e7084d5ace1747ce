"""One rank of a run: join the process group, open the log, and call the benchmark's `train`."""

import errno
import faulthandler
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from judging.ground import ledger, result_files, stdio
from judging.ground.errors import ExitCode, RankLost, TimedrunError, UsageError
from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.runlog import NotResumable, RunLog
from mlevents.terminal_escape import printable
from timedrun.methods.training.precision import set_backends
from timedrun.runner import config
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed import config_consistency
from timedrun.runner.distributed.failure import is_symptom
from timedrun.runner.distributed.process_group import ProcessGroup, require_warm_up_for_ddp
from timedrun.runner.distributed.watchdog import Watchdog
from timedrun.runner.process import status_files
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.process.launch_env import LAUNCHED, MAX_RESTARTS, Launch
from timedrun.runner.process.load_counters import LoadCounters
from timedrun.runner.process.progress import Progress
from timedrun.runner.process.stop_signals import ShutdownRequest
from timedrun.runner.provenance import source
from timedrun.runner.run import kept_model, origin
from timedrun.runner.run.checkpoint_manager import discard_newer, newest_on_all
from timedrun.runner.run.result_set import other_config, repeated_seed
from timedrun.runner.run.resume_checks import require_resumable
from timedrun.runner.run.timed_run import TimedRun
from timedrun.runner.storage.benchmark_folders import ROOT

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(Launch):
    """Launch of one run, with the paths of its result."""

    paths: ResultPaths
    resume: bool = False
    label: str = ""
    command: str = ""
    seed_of_first: bool = False
    """All ranks take rank 0's seed, which it chose from the runs in its folder."""


def execute(benchmark: Benchmark, settings: RunConfig, options: LaunchOptions) -> ExitCode:
    """Run `settings` as this process's rank; return the exit code. Raises TimedrunError if the run was aborted."""
    if not faulthandler.is_enabled():
        faulthandler.enable()  # a mapped file that is truncated ends the process: this prints the place
    origin.image_digest()  # a malformed one is refused on every rank before any waits for another
    origin.set_threads(options.threads)
    ranks = ProcessGroup.join(settings.device)
    set_backends(ranks.device, tf32=settings.tf32, cudnn_benchmark=settings.cudnn_benchmark)
    if unsupported := benchmark.spec.unsupported(settings, ranks.world_size):  # torchrun's ranks: no preflight
        raise UsageError(" ".join(unsupported))
    stop = ShutdownRequest()
    ending = Ending(ranks)
    stop.install(ending, launched=LAUNCHED in os.environ, speaks=ranks.is_first)
    watch = Watchdog(ranks, ending).start()
    try:
        if options.seed_of_first:
            settings = replace(settings, seed=ranks.all_gather(settings.seed)[0])
        if ranks.world_size > 1:
            config_consistency.require(ranks, origin.values_to_compare(settings, ROOT, options_of_all(options, ranks)))
        require_warm_up_for_ddp(settings.warm_up_steps, ranks.world_size)
        # All ranks have met before there is a log, so that they can save together on a signal. Rank 0's number counts,
        # since nodes number the results of their own folders.
        number = ranks.all_gather(options.paths.number)[0]
        options = replace(options, paths=replace(options.paths, number=number))
        platform = origin.platform_name(settings, ranks)
        # Before the log is changed: without a checkpoint it must keep its run_stop.
        resume_from = load_checkpoint(settings, options, ranks, platform) if options.resume else None
        log = open_log(settings, options, ranks, platform, resume_from)
        status_files.report_begun(number)
        ending.log = log
        if resume_from is not None:
            discard_newer(options.paths.checkpoints, ranks, resume_from["position"]["step"])
        run = TimedRun(
            settings,
            benchmark.spec,
            ranks,
            log,
            platform=platform,
            progress=Progress(
                options.label or settings.name, shown=ranks.is_first, budget_seconds=settings.budget_minutes * 60
            ),
            stop=stop,
            data_folder=options.data_folder,
            checkpoints=options.paths.checkpoints,
            checkpoint_minutes=options.checkpoint_minutes,
            resume_from=resume_from,
            watch=watch,
            load=LoadCounters(ranks.device),
        )
        kept: dict[str, str] | None = None
        try:
            with run:
                benchmark.train(settings, run)
            watch.stop()
            if settings.keep_model and run.outcome in (Outcome.REACHED, Outcome.NOT_REACHED):
                kept = keep_model(run, benchmark, options.paths.model)
        finally:  # after run_stop, since it takes time and may read the data
            if ranks.is_first and run.outcome is not None:
                ending.close(run.outcome.value)
                state = None if run.outcome is Outcome.STOPPED else run.train_state.digest()
                origin.add_data(options.paths.provenance, benchmark, settings, options.data_folder, state, kept)
        assert run.outcome is not None  # leaving the context without an error sets it
    except BaseException as error:  # the group is not destroyed: that may wait for ranks that have ended
        reason = watch.failed(error)  # the same as before, if the run asked
        ending.close(reason)
        failure = watch.failure
        if failure is None or not is_symptom(error):
            raise
        if not speaks(ranks):
            status_files.report_error(failure.exit_code, reason)
            return failure.exit_code
        raise (RankLost if failure.exit_code == ExitCode.RANK_LOST else TimedrunError)(reason) from None
    finally:
        if ranks.world_size == 1:  # several ranks are processes of their own, which keep their handlers to the end
            stop.uninstall()
    ranks.leave()
    return run.outcome.exit_code


def keep_model(run: TimedRun, benchmark: Benchmark, folder: Path) -> dict[str, str] | None:
    """Keep the evaluated weights in `folder`; return the SHA-256 of its files. A failure is reported on standard error
    and does not fail the finished run."""
    weights = kept_model.evaluated_weights(run.train_state.parts)
    if not run.ranks.is_first:
        return None
    try:
        digests = kept_model.write(weights, benchmark, run.config, folder)
    except Exception as error:
        stdio.message(printable(f"the model was not kept: {type(error).__name__}: {error}"))
        return None
    stdio.message(printable(f"model: {folder}"))
    return digests


@dataclass
class Ending:
    """Exit of this process by a second signal, or by the watchdog while the main thread may hang in a collective."""

    ranks: ProcessGroup
    log: RunLog | None = None
    """None until it is opened."""

    def close(self, reason: str) -> None:
        """Close the log, with `reason` unless it is closed, then the run in the ledger."""
        log, self.log = self.log, None
        if log is not None:
            log.close(reason=reason)
            if log.path is not None:
                ledger.close(log.path)

    def __call__(self, reason: str, code: ExitCode) -> NoReturn:
        """Close the log with `reason` and exit."""
        try:
            try:
                self.close(reason)
            except Exception as error:  # a full or hanging disk must not keep a lost run alive
                stdio.say(printable(f"the log has no run_stop: {error}"))
            status_files.report_error(code, reason)
            if speaks(self.ranks):
                stdio.say(printable(reason))
        finally:  # also if the main thread is in the middle of a line, where Python forbids another
            os._exit(int(code))


def speaks(ranks: ProcessGroup) -> bool:
    """Return True if this process prints why a run ended: one per node, unless its wrapper does."""
    return ranks.is_first or (ranks.local_rank == 0 and LAUNCHED not in os.environ)


def options_of_all(options: LaunchOptions, ranks: ProcessGroup) -> dict[str, object]:
    """Return the launch options that must be equal on all ranks, by their names on the command line."""
    return {
        "--resume": options.resume,
        "--checkpoint-minutes": options.checkpoint_minutes,
        MAX_RESTARTS: options.restarts,
        "--device (resolved)": ranks.device.type,
        "--threads or OMP_NUM_THREADS": origin.computing_threads(ranks.device.type),
    }


def open_log(
    settings: RunConfig, options: LaunchOptions, ranks: ProcessGroup, platform: str, resume_from: dict[str, Any] | None
) -> RunLog:
    """Open the run's log, with config, system, environment and provenance next to it, on rank 0; on the other ranks
    return a log that writes nothing. Raises TimedrunError, on all ranks, if rank 0 could not write it."""

    def opened() -> RunLog:
        try:
            if resume_from is not None:
                result_files.hold(options.paths)
                ledger.resume(options.paths.log)
                return RunLog.resume(options.paths.log, keep_in=options.paths.side, **resume_from["log"])
            return claim(settings, options, ranks, platform)
        except OSError as error:
            where = error.filename or options.paths.folder
            raise TimedrunError(f"the result cannot be written: {error.strerror or error} ({where}).") from None
        except NotResumable as error:
            raise TimedrunError(f"the run cannot be resumed: {error}.") from None

    return on_first(ranks, opened) or RunLog(None, started=resume_from is not None)


def on_first(ranks: ProcessGroup, function: Callable[[], T]) -> T | None:
    """Call `function` on rank 0 and return its result there, None on the others. Raises TimedrunError with its message,
    on all ranks, if it failed."""
    result: T | None = None
    complaint = ""
    if ranks.is_first:
        try:
            result = function()
        except TimedrunError as error:
            complaint = str(error)
    if shared := ranks.broadcast(complaint):
        raise TimedrunError(str(shared))
    return result


def claim(settings: RunConfig, options: LaunchOptions, ranks: ProcessGroup, platform: str) -> RunLog:
    """Create the result's log, which only one process can, and the other files of the run."""
    paths = options.paths
    paths.folder.mkdir(parents=True, exist_ok=True)
    try:
        paths.side.mkdir()  # only one process can: no run of another is overwritten
    except FileExistsError:
        reason = "another run has this number and was left unchanged; start again to use the next number"
        raise FileExistsError(errno.EEXIST, reason, str(paths.side)) from None
    with ExitStack() as undo:
        undo.callback(paths.side.rmdir)
        undo.callback(paths.config.unlink, missing_ok=True)
        result_files.write_json(paths.config, config.dump(settings))  # so that of two runs at once one sees the other
        given = not options.seed_of_first  # `reproduce` gives the seeds of the originals, which may be equal
        taken = "" if given else repeated_seed(settings, paths.folder, but=paths.side.name)
        if problem := other_config(settings, paths.folder) or taken:
            raise TimedrunError(problem)
        log = RunLog(paths.log)
        undo.callback(paths.log.unlink)
        undo.callback(log.close)
        facts = {"benchmark": settings.benchmark, "config_name": settings.name, "system": platform}
        code, digest = source.provenance(ROOT), config.digest(settings)
        entry = ledger.announce(paths.log, config_digest=digest, seed=settings.seed, **facts, **code)
        undo.pop_all()
    status_files.report_begun(paths.number)
    try:
        log.event(keys.LEDGER_ENTRY, entry)
        origin.write(settings, paths, ranks, platform, options.command, code)
        result_files.hold(paths)
    except BaseException:
        log.close(reason="the run's files next to the log could not be written")
        ledger.close(paths.log)
        raise
    return log


def load_checkpoint(settings: RunConfig, options: LaunchOptions, ranks: ProcessGroup, platform: str) -> dict[str, Any]:
    """Load this rank's part of the newest checkpoint that is valid on every rank. Raises TimedrunError if there is
    none, or if the run cannot be resumed."""

    def require() -> None:
        started = origin.at_start(source.provenance(ROOT), ranks.world_size, ranks.device.type)
        require_resumable(settings, options.paths, origin=started, system=origin.describe(settings, ranks, platform))

    on_first(ranks, require)
    return newest_on_all(options.paths.checkpoints, ranks)
