"""Everything about a run that can be found wrong before it starts, all at once."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mlevents import keys
from mlevents.record import result_files
from mlevents.rounds import RULESETS
from timedrun.benchmark import Benchmark
from timedrun.config import RunConfig
from timedrun.distributed.launch_env import LaunchEnv
from timedrun.distributed.process_group import ProcessGroup, choose_device, local_batch, require_warm_up_for_ddp
from timedrun.distributed.rendezvous import too_few_open_files
from timedrun.errors import PreflightError, TimedrunError
from timedrun.methods import EMA
from timedrun.preflight import dry_run
from timedrun.run import checkpoint_manager
from timedrun.run.worker import LaunchOptions
from timedrun.storage.result_files import ResultPaths

LEAST_FREE_BYTES = 64 * 2**20
"""A log and its side files, with room to spare. Checkpoints come on top."""

OPTIMIZER_COPIES = {"sgd": 1, "decoupled_sgd": 1, "adamw": 2, "decoupled_adamw": 2, "muon": 2}
"""Numbers that an optimizer keeps of each parameter; muon: at most."""

COARSEST_CLOCK = 1e-3
"""Seconds: logs have milliseconds."""

EARLIEST_TIME = 1_577_836_800.0
"""2020-01-01: a wall clock that says less was never set."""

SLOW_CLOCK_SOURCES = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
"""Linux's names of sources that are coarse or take microseconds to read; it falls back to them where the processor's
own counter is not trusted."""

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def check(benchmark: Benchmark, config: RunConfig, options: LaunchOptions, place: LaunchEnv) -> None:
    """Look at everything that the run will need of this machine; `place` is that of the first rank here.

    Raises:
        PreflightError: with every failure found; nothing was written.
    """
    failures = [
        *settings_problems(benchmark, config, place.world_size),
        *device_problems(config, place.local_world_size),
        *filter(None, [too_few_open_files(place.world_size)]),
        *data_problems(benchmark, config, place.world_size, options.data_folder),
        *restart_problems(config, options),
        *result_problems(
            options.paths,
            options.resume,
            checkpoints=checkpoint_bytes(benchmark, config, options, place),
            writes_log=place.rank == 0,
        ),
        *log_problems(benchmark, config),
    ]
    if failures:
        raise PreflightError(failures)


def settings_problems(benchmark: Benchmark, config: RunConfig, ranks: int) -> list[str]:
    """What of the settings can work on no machine."""
    failures = _complaint(lambda: local_batch(config.global_batch, ranks))
    failures += _complaint(lambda: require_warm_up_for_ddp(config.warm_up_steps, ranks))
    share = benchmark.spec_of(config).direction == ">="
    if not 0 < config.evaluation.target < (1 if share else math.inf):
        wanted = "between 0 and 1; give a fraction, not percent" if share else "a number above 0"
        failures.append(f"evaluation.target {config.evaluation.target} is not {wanted}.")
    if config.evaluation.every < 1 or config.evaluation.first < 1:
        failures.append("evaluation.every and evaluation.first count from 1.")
    return failures


def restart_problems(config: RunConfig, options: LaunchOptions) -> list[str]:
    """Why the run cannot be started again after a rank was lost, where that is asked for."""
    if not options.restarts:
        return []
    found = []
    if config.submission.division == keys.CLOSED:
        found.append(
            "--restarts: a run of the closed division may not be resumed; leave it out, or --submission.division open."
        )
    if not options.checkpoint_minutes:
        found.append(
            f"--restarts {options.restarts} goes on from a checkpoint, and none is written: give --checkpoint-minutes."
        )
    return found


def checkpoint_bytes(benchmark: Benchmark, config: RunConfig, options: LaunchOptions, place: LaunchEnv) -> int:
    """Room on this node for the checkpoints of its ranks: the model in fp32, what the optimizer and a moving average
    keep of each parameter, in as many files as there are at once. 0 where the model's size is not known beforehand."""
    rehearse: Callable[..., dry_run.Plan] | None = getattr(benchmark.module("train"), "rehearse", None)
    if rehearse is None:
        return 0
    try:
        plan = rehearse(config, ProcessGroup(0, place.world_size, 0, torch.device("cpu")), options.data_folder)
    except (TimedrunError, ValueError, RuntimeError, OSError):  # what is wrong, the other checks say
        return 0
    parameters = plan.run_info["hyperparameters"].get("model_parameters", 0)
    averages = sum(isinstance(method, EMA) for method in config.methods)
    copies = 1 + OPTIMIZER_COPIES[config.optimizer.kind] + averages
    files = checkpoint_manager.KEPT + 1 if options.checkpoint_minutes else 1
    return int(parameters) * 4 * copies * files * place.local_world_size if isinstance(parameters, int) else 0


def device_problems(config: RunConfig, ranks: int) -> list[str]:
    """What keeps the config from running on the devices of this machine; `ranks` of them are here."""
    failures = _complaint(lambda: choose_device(config.device, ranks - 1))  # where the last rank has one, all have
    if config.precision == "fp16" and (config.device == "cpu" or not torch.cuda.is_available()):
        failures.append("precision fp16 needs a CUDA device; use --precision bf16 or fp32.")
    return failures


def data_problems(benchmark: Benchmark, config: RunConfig, ranks: int, data_folder: Path | None) -> list[str]:
    """What the benchmark itself has to say of the config and its data."""
    own: Callable[..., list[str]] | None = getattr(benchmark.module("datasets"), "preflight", None)
    return own(config, data_folder, ranks) if own else []


def log_problems(benchmark: Benchmark, config: RunConfig) -> list[str]:
    """Why no log of this config could pass the strict checks, whatever the run; on other data than the benchmark's own
    nothing is asked."""
    spec = benchmark.spec_of(config)
    rules = RULESETS.get(spec.ruleset)
    if config.dataset != spec.dataset or rules is None or spec.mlperf_benchmark not in rules.benchmarks:
        return []
    try:
        found = dry_run.unfit(spec, config)
    except (TimedrunError, OSError) as error:
        return [f"a log of this run could not be rehearsed: {error}"]
    except ValueError:  # settings that no run can be planned with: `settings_problems` names them
        return []
    return [f"no log of this run could pass: {words}" for words in found]


def result_problems(
    paths: ResultPaths, resume: bool, runs: int = 1, *, checkpoints: int = 0, writes_log: bool = True
) -> list[str]:
    """What keeps the results of `runs` runs from being written where they shall go.

    checkpoints: bytes of the largest run's. writes_log: whether rank 0 is here; other nodes have checkpoints only.
    """
    if writes_log and resume and not paths.log.exists():
        what = f"{paths.log} does not exist" if paths.number >= 0 else f"{paths.folder} holds no run"
        return [f"{what}: there is nothing to resume; give the --results folder of the run, or leave out --resume."]
    if writes_log and not resume and (paths.log.exists() or paths.side.exists()):
        taken = paths.log if paths.log.exists() else paths.side
        return [f"{taken} exists; a result is never overwritten. Choose another --number or --results folder."]
    parent = paths.folder
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        return [f"{parent} is a file, so the results folder {paths.folder} cannot be made; choose another --results."]
    try:
        tempfile.TemporaryFile(dir=parent).close()  # root is told that all is writable, a read-only mount too
    except OSError as error:
        return [f"{parent} is not writable ({error.strerror}); choose another --results folder."]
    free, needed = shutil.disk_usage(parent).free, LEAST_FREE_BYTES * runs + checkpoints
    if free < needed:
        several = "a run needs" if runs == 1 else f"{runs} runs need"
        for_them = f", {checkpoints / 2**20:.0f} MiB of it for checkpoints" if checkpoints else ""
        room = f"{parent} has {free / 2**20:.0f} MiB free, {several} {needed / 2**20:.0f} MiB{for_them}"
        return [f"{room}; free some room or choose another --results folder."]
    return []


def set_problems(folder: Path, runs: int) -> list[str]:
    """What in the results folder does not leave room for a set of exactly `runs` results."""
    there = [path for path in result_files(folder) if path.parent == folder] if folder.is_dir() else []
    if not there:
        return []
    names = ", ".join(path.name for path in there[:3]) + (" ..." if len(there) > 3 else "")
    return [
        f"{folder} holds {len(there)} results already ({names}), and a set has exactly {runs}: {runs} more runs there"
        " make no set; choose another --results folder."
    ]


def clock_problems(source: Path = CLOCK_SOURCE) -> list[str]:
    """What makes times of this machine doubtful."""
    found = []
    monotonic = time.get_clock_info("monotonic")
    if not monotonic.monotonic or monotonic.resolution > COARSEST_CLOCK:
        found.append(f"the monotonic clock ({monotonic.implementation}) has a resolution of {monotonic.resolution} s.")
    if time.time() < EARLIEST_TIME:
        found.append("the wall clock was never set; set it, or no time in a log can be believed.")
    name = source.read_text().strip() if source.is_file() else ""
    if name in SLOW_CLOCK_SOURCES:
        found.append(
            f"the kernel's clock source is {name}, which is coarse or slow; boot with the processor's counter."
        )
    return found


def _complaint(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except (TimedrunError, ValueError, RuntimeError) as error:
        return [str(error)]
    return []
