"""Find every problem that can be found before a run starts, and report all of them at once."""

import math
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import torch

from judging.ground import stdio
from judging.ground.config_values import flatten
from judging.ground.errors import PreflightError, TimedrunError, UsageError
from mlevents import keys
from timedrun.evidence.preflight import dry_run
from timedrun.evidence.preflight.machine_checks import existing, load_problems, result_problems
from timedrun.methods import EMA, NoEffect, stack
from timedrun.methods.training import number_formats
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig, plain
from timedrun.runner.distributed.process_group import ProcessGroup, choose_device, require_warm_up_for_ddp
from timedrun.runner.plan import Plan
from timedrun.runner.process.launch_env import MAX_RESTARTS, LaunchEnv
from timedrun.runner.process.process_times import CpuReading
from timedrun.runner.run import checkpoint_manager, kept_model
from timedrun.runner.run.result_set import other_config, other_rules
from timedrun.runner.run.worker import LaunchOptions

OPTIMIZER_COPIES = {"sgd": 1, "decoupled_sgd": 1, "adamw": 2, "decoupled_adamw": 2, "radam": 2, "lamb": 2, "muon": 2}
"""Numbers that an optimizer keeps for each parameter; muon: at most."""

MOST_THREADS = 1024  # of a rank; far above it OpenMP ends the process when it cannot start its threads
MOST_SEED = 2**63 - 1  # the largest that all random generators take


def check(benchmark: Benchmark, config: RunConfig, options: LaunchOptions, place: LaunchEnv) -> None:
    """Raise PreflightError with every failure found unless the run can start here; nothing is written.

    place: the launch environment of the first rank on this machine.
    """
    tempfile.gettempdir()  # raises an error that names TMPDIR, before the checks that need it
    bytes_of_checkpoints, total, idle, unplanned = 0, 0, list[str](), list[str]()
    try:
        ranks = ProcessGroup(0, place.world_size, 0, torch.device("cpu"))
        plan: Plan = benchmark.plan(config, ranks, options.data_folder)
        bytes_of_checkpoints, total = checkpoint_bytes(plan, config, options), plan.total
    except NoEffect as error:  # a method to which this run gives nothing to do
        idle = [f"{error}."]
    except (TimedrunError, OSError):
        pass  # the other checks name the cause
    except (ArithmeticError, ValueError, RuntimeError) as error:
        unplanned = [f"{benchmark.name} cannot build this config: {error}"]
    failures = [
        *([] if benchmark.hook("train", "train") else [f"{benchmark.name}.train has no train(config, run); add it."]),
        *settings_problems(benchmark, config, place.world_size),
        *idle,
        *(_complaint(kept_model.require_safetensors) if config.keep_model else []),
        *launch_problems(config, options),
        *device_problems(config, place.local_world_size),
        *data_problems(benchmark, config, place.world_size, options.data_folder),
        *([] if options.resume or not (other := other_config(config, options.paths.folder)) else [other]),
        *([other] if (other := other_rules(benchmark.spec.own_rules, options.paths.folder)) else []),
        *result_problems(options.paths, options.resume, checkpoints=bytes_of_checkpoints, writes_log=place.rank == 0),
        *log_problems(benchmark, config, total),
    ]
    if failures or unplanned:
        raise PreflightError(failures or unplanned)  # another failure may be the cause


def settings_problems(benchmark: Benchmark, config: RunConfig, ranks: int) -> list[str]:
    """Return the faults of the settings that no machine can run with."""
    settings = flatten(plain(config))
    failures = benchmark.spec.unsupported(config, ranks)
    failures += [
        f"{name} is {value}, not a finite number; set another with --{name.replace('_', '-')}."
        for name, value in settings.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
    failures += _complaint(lambda: stack(*config.methods))  # clashes
    failures += _complaint(lambda: BatchPlan.of(config.global_batch, config.micro_batch, ranks))
    failures += _complaint(lambda: require_warm_up_for_ddp(config.warm_up_steps, ranks))
    if not 0 <= config.seed <= MOST_SEED:
        failures.append(f"seed {config.seed} is out of range; set --seed to a number from 0 to 2**63 - 1.")
    if config.warm_up_steps < 0:
        failures.append(f"warm_up_steps {config.warm_up_steps} is negative; set --warm-up-steps to 0 or more.")
    if config.optimizer.kind == "muon" and not config.optimizer.other_lr:
        failures.append("optimizer.other_lr is 0, so muon would train hidden matrices alone; set --optimizer.other-lr.")
    if isinstance(eval_batch := settings.get("data.eval_batch"), int) and eval_batch < 1:
        failures.append(f"data.eval_batch {eval_batch} is below 1; set --data.eval-batch to 1 or more.")
    if config.budget_minutes < 0:
        failures.append(f"budget_minutes {config.budget_minutes} is negative; --budget-minutes 0 sets no limit.")
    rules = benchmark.spec.rules
    fraction = rules.direction == ">=" and rules.target < 1
    if not 0 < config.evaluation.target < (1 if fraction else math.inf):
        wanted = "between 0 and 1; use a fraction, not a percentage" if fraction else "a number above 0"
        failures.append(f"evaluation.target {config.evaluation.target} is not {wanted}.")
    if config.evaluation.every < 1 or config.evaluation.first < 1:
        failures.append("evaluation.every and evaluation.first must be at least 1.")
    return failures


def check_steps(benchmark: Benchmark, configs: Iterable[RunConfig], options: LaunchOptions, *, verb: str) -> list[str]:
    """Raise PreflightError with every reason why a config cannot be trained here by this process; warn of other load,
    and return the warnings."""
    before = CpuReading.now()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("steps are measured on one rank; start it without a launcher, or `unset WORLD_SIZE`.")
    for config in configs:
        if failures := [*chain.from_iterable(step_problems(benchmark, config, options))]:
            raise PreflightError(failures)
    warnings = load_problems(before, options.threads)
    for problem in warnings:
        stdio.message(f"timedrun {verb}: warning: {problem}")
    return warnings


def step_problems(benchmark: Benchmark, config: RunConfig, options: LaunchOptions) -> Iterator[list[str]]:
    """Yield the faults of the settings, launch options, this machine's devices and the data for steps of one rank."""
    yield settings_problems(benchmark, config, 1)
    yield launch_problems(config, options)
    yield device_problems(config, 1)
    yield data_problems(benchmark, config, 1, options.data_folder)


def launch_problems(config: RunConfig, options: LaunchOptions) -> list[str]:
    """Return the faults of the launch options: number of threads, restarts."""
    problems = []
    if not 0 <= options.threads <= MOST_THREADS:
        problems.append(f"--threads {options.threads}: use a number from 1 to {MOST_THREADS}, or 0 for torch's choice.")
    if options.restarts and config.submission.division == keys.CLOSED:
        problems.append(
            f"{MAX_RESTARTS}: a run of the closed division may not be resumed; unset it, or --submission.division open."
        )
    if options.restarts and not options.checkpoint_minutes:
        problems.append(
            f"{MAX_RESTARTS}={options.restarts} requires checkpoints, but none are written: set --checkpoint-minutes."
        )
    return problems


def checkpoint_bytes(plan: Plan, config: RunConfig, options: LaunchOptions) -> int:
    """Return the bytes that checkpoints on this node need: the fp32 model and the copies that optimizer and moving
    average keep, saved once for all ranks of a node, times the files that exist at once; and those of a kept model, in
    at most two formats. 0 if the size of the model is not known."""
    parameters = plan.run_info.get("hyperparameters", {}).get("model_parameters", 0)
    averages = sum(isinstance(method, EMA) for method in config.methods)
    copies = 1 + OPTIMIZER_COPIES[config.optimizer.kind] + averages
    files = checkpoint_manager.KEPT + 1 if options.checkpoint_minutes else 1
    kept = 2 * config.keep_model
    return int(parameters) * 4 * (copies * files + kept) if isinstance(parameters, int) else 0


def device_problems(config: RunConfig, ranks: int) -> list[str]:
    """Return the faults of this machine's devices for `ranks` local ranks."""
    failures = _complaint(lambda: choose_device(config.device, ranks - 1))  # if the last rank has one, all have
    if config.precision == "fp16" and (config.device == "cpu" or not torch.cuda.is_available()):
        failures.append("precision fp16 needs a CUDA device; use --precision bf16 or fp32.")
    elif config.emulation == "refuse" and number_formats.emulated(config.precision, config.device):
        slower = f"{number_formats.slowdown(config.precision):.0f} times as long as one in fp32"
        failures.append(
            f"this CPU has no instructions for {config.precision}: a small matrix product takes {slower}; set"
            " --precision fp32, --device cuda for a run on another machine, or --emulation allow."
        )
    return failures + compiling_problems(config)


def compiling_problems(config: RunConfig) -> list[str]:
    """Return what keeps torch.compile, if `config` uses it, from building kernels or from loading them: no compiler, or
    a folder from which nothing may be executed."""
    cuda = config.device != "cpu" and torch.cuda.is_available()
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch does
    needed = config.compile and not cuda  # on a GPU it builds with Triton
    lacks = f"torch.compile needs a C++ compiler, and {compiler} is not found: install it, name one in CXX"
    problems = [lacks] if needed and shutil.which(compiler) is None else []
    for variable in ("TORCHINDUCTOR_CACHE_DIR", *["TRITON_CACHE_DIR"] * cuda) if config.compile else ():
        folder = existing(Path(os.environ.get(variable) or tempfile.gettempdir()))
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.truncate(mmap.PAGESIZE)
                mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        except OSError as error:
            noexec = isinstance(error, PermissionError) and os.access(folder, os.W_OK)
            why = "noexec (with docker, use --tmpfs /tmp:exec)" if noexec else f"not writable ({error.strerror})"
            remedy = f"set {variable} or TMPDIR to another folder"
            problems.append(f"{folder} is {why}, so torch.compile cannot load what it builds: {remedy}")
    return [f"{problem}, or set --no-compile." for problem in dict.fromkeys(problems)]


def data_problems(benchmark: Benchmark, config: RunConfig, ranks: int, data_folder: Path | None) -> list[str]:
    """Return the faults that the benchmark finds in the config and its data."""
    own = benchmark.hook("datasets", "preflight")
    texts: list[str] = own(config, data_folder, ranks) if own else []
    unused = data_folder and not data_folder.is_dir() and str(data_folder) != os.environ.get("TIMEDRUN_DATA")
    if unused and not texts:
        return [f"--data-folder {data_folder} does not exist; correct it, or leave it out if {config.name} reads none."]
    return texts


def log_problems(benchmark: Benchmark, config: RunConfig, total: int = 0) -> list[str]:
    """Return the reasons why no log of this config can pass the strict checks; none for data other than the
    benchmark's own. `total`: length of the run, 0 if it is not known."""
    spec = benchmark.spec
    if config.dataset != spec.rules.dataset:
        return []
    try:
        errors = dry_run.log_errors(spec, config, total)
    except (TimedrunError, OSError) as error:
        return [f"the dry run of its log failed: {error}"]
    except (ArithmeticError, ValueError):  # impossible settings: `settings_problems` names them
        return []
    return [f"no log of this run could pass: {message}" for message in errors]


def _complaint(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except (TimedrunError, ValueError, RuntimeError) as error:
        return [str(error)]
    return []
