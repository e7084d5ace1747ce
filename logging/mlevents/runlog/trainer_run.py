"""MLPerf log of a run of any trainer: settings asked for before the clock, events in the rules' order, a status always.

with mlperf_run("llama31_8b", round="6.1", out="result_0.txt", global_batch_size=32, ...) as run:
    run.start()
    while not run.ended and training():
        run.evaluating(samples=seen)
        run.evaluated(evaluate(), samples=seen)
"""

import errno
import itertools
import math
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from numbers import Number
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from mlevents import keys
from mlevents.checks.log_check import check_record
from mlevents.errors import TrainingLoopError, UsageError, nearest
from mlevents.event import ENDS, STARTS, Finding, is_number
from mlevents.record import read
from mlevents.rounds import RULESETS, BenchmarkRules, RequiredKey, Ruleset
from mlevents.rounds.required import LEAST
from mlevents.rounds.ruleset import highest
from mlevents.runlog import ResultFileExists, RunLog, require_loggable
from mlevents.runlog.protocol import Protocol

COURSE: Final = frozenset(
    {keys.SUBMISSION_BENCHMARK, keys.EVAL_ACCURACY, "aggregated_eval_accuracy", "averaged_validation_loss"}
).union(STARTS, ENDS)
"""Keys that a run logs itself; a trainer gives every other one."""
ALWAYS: Final = (keys.SUBMISSION_DIVISION, keys.SEED, keys.GLOBAL_BATCH_SIZE)
"""Settings asked for even where the round does not: runs are told apart, and evaluations placed, by them."""
OPTIONAL: Final = (keys.DATASET, keys.QUALITY_TARGET, keys.CONFIG_NAME, keys.CONFIG_DIGEST)
MEANINGS: Final = {
    keys.CACHE_CLEAR: "True if the page cache was cleared before the run",
    keys.SEED: "an integer, another one for each run",
    keys.GLOBAL_BATCH_SIZE: "samples in one optimizer step, over all ranks",
    keys.GRADIENT_ACCUMULATION_STEPS: "micro batches in one optimizer step",
    keys.TRAIN_SAMPLES: "samples of the training set",
    keys.EVAL_SAMPLES: "samples of one evaluation",
    keys.SUBMISSION_ORG: "name of the organization",
    keys.SUBMISSION_PLATFORM: "name of the system",
    keys.CONFIG_FILENAME: "name of the run's config file",
    keys.WEIGHTS_INITIALIZATION: "list of the names of the tensors that were initialized",
}
# Values that others are compared with are logged before them.
FIRST: Final = (
    *(keys.SUBMISSION_DIVISION, keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM, keys.SUBMISSION_STATUS),
    *(keys.SEED, keys.GLOBAL_BATCH_SIZE, keys.OPT_LR_WARMUP_STEPS, keys.OPT_BASE_LR, "num_prompts_per_step"),
)
TOLD: Final = frozenset({"evaluation-interval", "evaluation-points", "single-evaluation", "epoch-numbering"})
"""Strict checks whose findings are told during the run."""
MISSED: Final = "the target was not reached"
ENDED_BY: Final = (signal.SIGTERM, signal.SIGHUP)
MINUTE, HOUR = 60.0, 3600.0  # of an imagined run


class MLPerfRun:
    """Log a run; `mlperf_run` describes it. With `path` None nothing is written.

    Attributes:
        target: the quality to reach.
        reached: the target was reached; run_stop is logged.
        ended: the log has its run_stop.

    Examples:
        >>> settings = dict(submission_division="open", submission_org="Nobody", submission_platform="laptop")
        >>> settings |= dict(submission_status="onprem", cache_clear=True, seed=1, global_batch_size=64)
        >>> settings |= dict(train_samples=1437, eval_samples=360, dataset="digits", quality_target=0.97)
        >>> run = mlperf_run("resnet", round="4.0", out="result_0.txt", **settings)
        >>> run.target, run.progress(steps=90, epoch=4.0)
        (0.97, {'epoch': 4.0})
        >>> run.close("no training today")
        >>> run.ended, run.reached
        (True, False)
    """

    def __init__(
        self,
        benchmark: str,
        rules: Ruleset,
        path: Path | None,
        settings: Mapping[str, Any],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if benchmark not in rules.benchmarks:
            known = f"{nearest(benchmark, rules.benchmarks)} known: {', '.join(rules.benchmarks)}"
            raise UsageError(f"round {rules.name} has no benchmark {benchmark!r};{known}; no log was begun")
        self.rules, self.benchmark = rules, rules.benchmarks[benchmark]
        self.path, self.reached = path and path.absolute(), False  # the trainer may change its working folder
        settings = {key: _plain(value) for key, value in settings.items()}
        self.target = _checked_target(self.benchmark, rules, settings)
        self._settings = settings
        self._required = {rule.key for rule in _keys_of(self.benchmark, rules, settings)}
        interval = self.benchmark.evaluation_interval
        self._interval = interval.at(settings[keys.GLOBAL_BATCH_SIZE]) if interval else 1
        self._at = self._begun = 0.0
        self._evaluations = 0
        self._impossible = ""
        self._told: set[str] = set()
        self._handlers: dict[int, Any] = {}
        wall = time.time() - monotonic()  # a wall clock that is set during the run does not change its time
        self._log = RunLog(self.path, clock=lambda: wall + monotonic())
        self._protocol = Protocol(self._log, self.benchmark.progress)
        names = sorted(settings, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
        logged = {key: settings[key] for key in names if key != keys.CACHE_CLEAR}
        logged = {keys.SUBMISSION_BENCHMARK: self.benchmark.name, keys.RULESET: rules.name, **logged}
        self._protocol.begin(logged, cleared=settings.get(keys.CACHE_CLEAR, False))

    @property
    def ended(self) -> bool:
        return self._log.stopped

    def start(self) -> None:
        """Start the clock, and the first block of training. Before it, no training data may have been read."""
        self._protocol.end(keys.INIT_STOP)
        self._protocol.start(keys.RUN_START)
        self._start_block()

    def block(self, **progress: float) -> None:
        """End a block of training and start the next, where no evaluation is between; `progress` as `evaluated`'s."""
        self._advance(progress)
        self._stop_block()
        self._start_block()

    def evaluating(self, **progress: float) -> None:
        """Log the start of an evaluation, which ends the block of training; `progress` as `evaluated`'s."""
        if not self.ended:
            self._advance(progress)
            self._stop_block()
            self._protocol.start(keys.EVAL_START, **self._protocol.at(self._at))

    def evaluated(self, value: float | Mapping[str, float], **progress: float) -> bool:
        """Log a quality and return True if it reaches the target, which ends the run; after that nothing is logged.

        Args:
            value: of a benchmark whose quality has several parts, all of them by name.
            progress: how far the run has trained, in the benchmark's unit by name: `samples=`, `epoch=`, `tokens=` or
                `steps=`. Not needed again after `evaluating`.

        A value that the metric cannot have, such as percent of a fraction, is a warning and does not reach the target.
        Raises TrainingLoopError for another unit, or no progress since the evaluation before."""
        if self.ended:
            return self.reached
        if not self._protocol.is_open(keys.EVAL_START):
            self.evaluating(**progress)
        parts = self.benchmark.parts
        if (isinstance(value, Mapping) and set(value)) != (bool(parts) and set(parts)):
            wanted = f"a mapping of {', '.join(parts)}" if parts else "one number"
            what = f"the quality of {self.benchmark.name} is {wanted}"
            raise TrainingLoopError(f"{what}, not {value!r}; it is not logged")
        quality = {name: float(part) for name, part in value.items()} if isinstance(value, Mapping) else float(value)
        names = {"averaged_validation_loss"} & self._required
        apart = not self.benchmark.parts_in_one_event
        self._protocol.stop_evaluation(quality, self._at, names, apart=apart)
        self.reached = self._possible(quality) and self.benchmark.reached(quality, self.target)
        if self.reached:
            self._protocol.succeed(self._at)
        self._tell()
        if not self.reached:
            self._start_block()
        return self.reached

    def _possible(self, quality: float | dict[str, float]) -> bool:
        """Return True if the metric can have the value; warn, once, of one that it cannot."""
        for name, value in (quality if isinstance(quality, dict) else {self.benchmark.metric: quality}).items():
            rules = self.benchmark.parts.get(name, self.benchmark)
            most = highest(rules.target, rules.direction)
            if not 0 <= value <= most or math.isinf(value):
                percent = f"; it looks like percent: give {value / 100:g}" if most < value <= 100 else ""
                is_first = not self._impossible
                self._impossible = f"{name} is {value:g}, not a number from 0 to {most:g}{percent}"
                if is_first and self.path is not None:
                    said = f"{self.path}: {self._impossible}; it does not count as reaching the target"
                    warnings.warn(said, stacklevel=3)
                return False
        return True

    def progress(self, *, steps: int, epoch: float) -> dict[str, float]:
        """Return the progress after `steps` steps and `epoch` passes over the data, as `evaluated` takes it."""
        samples = steps * self._settings[keys.GLOBAL_BATCH_SIZE]
        tokens = samples * self._settings.get(keys.MAX_SEQUENCE_LENGTH, 1)
        counts = {"steps": steps, "samples": samples, "tokens": tokens, "epoch": round(epoch, 6)}
        return {self.benchmark.unit: counts[self.benchmark.unit]}

    def close(self, reason: str = MISSED) -> None:
        """Close the log; a run that has not ended is aborted for `reason`."""
        if not self._log.started:
            reason = f"the clock was never started; {reason}"
        if self._impossible:
            reason += f"; {self._impossible}"
        if self._protocol.is_open(keys.BLOCK_START):
            with suppress(OSError):  # which the end of the log says
                self._stop_block()
        self._log.close(reason=reason)
        self._leave_signals()

    def __enter__(self) -> Self:
        if self.path is not None and threading.current_thread() is threading.main_thread():
            for number in ENDED_BY:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._handlers[number] = signal.signal(number, self._die)
            os.register_at_fork(after_in_child=self._leave_signals)  # they are the parent's
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(MISSED if kind is None else f"{kind.__name__}: {error}".rstrip(": "))

    def _die(self, number: int, frame: FrameType | None) -> None:
        """Abort the run and die of the signal."""
        signal.signal(number, signal.SIG_DFL)
        try:
            self.close(f"interrupted by {signal.Signals(number).name}")
        finally:
            os.kill(os.getpid(), number)

    def _leave_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _advance(self, progress: Mapping[str, float]) -> None:
        unit = self.benchmark.unit
        if not self._protocol.is_open(keys.BLOCK_START):
            raise TrainingLoopError("no block of training is open: call start() first; nothing was logged")
        if list(progress) != [unit]:
            given = ", ".join(progress) or "nothing"
            raise TrainingLoopError(f"progress of {self.benchmark.name} is counted in {unit}=, not {given}")
        if not progress[unit] > self._at:
            raise TrainingLoopError(f"{unit}={progress[unit]:g} is no progress: the block began at {self._at:g}")
        self._at = float(progress[unit])

    def _start_block(self) -> None:
        self._begun = self._at
        first = self._at + 1 if self.benchmark.unit == "epoch" else int(self._at)
        self._protocol.start_block(first, self._interval, self._at)

    def _stop_block(self) -> None:
        first = None if self.benchmark.unit == "epoch" else self._at
        self._protocol.stop_block(self._at, first=first, count=self._at - self._begun)

    def _tell(self) -> None:
        """Warn of what the strict checks find wrong with the evaluations so far."""
        self._evaluations += 1
        due = self.ended or self._evaluations.bit_count() == 1  # after 1, 2, 4, 8 ...: it is on the clock
        if self.path is None or not due:
            return
        for finding in check_record(read(self.path), self.rules):
            if finding.rule in TOLD and finding.rule not in self._told:
                self._told.add(finding.rule)
                warnings.warn(f"{self.path}: {finding.rule}: {finding.message}", stacklevel=3)


def mlperf_run(benchmark: str, *, round: str, out: str | os.PathLike[str], **settings: Any) -> MLPerfRun:
    """Begin the log of a run of `benchmark` by the rules of MLPerf Training's `round` ("6.1"), in the new file `out`,
    and return the run. init_start is logged; ranks other than 0 write nothing.

    Args:
        settings: by the log's keys what only the trainer knows, such as `submission_division`, `submission_org`, `seed`
            and `global_batch_size`, the optimizer's and the learning rate's. Runs on other data give `dataset` and
            `quality_target`.

    Raises:
        UsageError: unknown round, benchmark or setting; settings that are missing or that the round does not allow.
        FileExistsError: `out` exists.
        FileNotFoundError: its folder does not exist.

    Examples:
        >>> settings = dict(submission_division="open", submission_org="Nobody", submission_platform="laptop")
        >>> settings |= dict(submission_status="onprem", cache_clear=True, seed=1, global_batch_size=64)
        >>> settings |= dict(train_samples=1437, eval_samples=360, dataset="digits", quality_target=0.97)
        >>> with mlperf_run("resnet", round="4.0", out="result_0.txt", **settings) as run:
        ...     run.start()  # no training data before
        ...     for epoch in (4, 8):
        ...         run.evaluating(epoch=epoch)
        ...         if run.evaluated(0.9 + epoch / 100):
        ...             break
        >>> run.reached
        True
    """
    return MLPerfRun(benchmark, _round_named(round), Path(out) if _rank() == 0 else None, settings)


def mlperf_preflight(benchmark: str, *, round: str, out: str | os.PathLike[str], **settings: Any) -> list[Finding]:
    """Return what the strict checks find in the log of an imagined run with the arguments of `mlperf_run`. Nothing is
    kept.

    The run is evaluated twice, where the rules say, and reaches the target. Raises as `mlperf_run`.

    Examples:
        >>> settings = dict(submission_division="open", submission_org="Nobody", submission_platform="laptop")
        >>> settings |= dict(submission_status="onprem", cache_clear=True, seed=1, global_batch_size=64)
        >>> settings |= dict(train_samples=1437, eval_samples=360, dataset="digits", quality_target=0.97)
        >>> findings = mlperf_preflight("resnet", round="4.0", out="result_0.txt", **settings)
        >>> [finding.rule for finding in findings]
        ['demonstration']
    """
    rules = _round_named(round)
    if Path(out).exists():
        raise ResultFileExists(errno.EEXIST, "result file exists and is never overwritten; choose another", str(out))
    if not Path(out).absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "folder of the result file does not exist; create it first", str(out))
    now = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks below find the same
        run = MLPerfRun(benchmark, rules, Path(folder, Path(out).name), settings, monotonic=lambda: now)
        now += MINUTE
        with run:
            run.start()
            for at, share in zip(_evaluation_points(run.benchmark, rules, settings), (0.9, 1.001), strict=False):
                now += HOUR
                run.evaluating(**{run.benchmark.unit: at})
                now += MINUTE
                run.evaluated(_quality(run, share), **{run.benchmark.unit: at})
        return check_record(read(Path(folder, Path(out).name)), rules)


def _evaluation_points(benchmark: BenchmarkRules, rules: Ruleset, settings: Mapping[str, Any]) -> Iterator[float]:
    """Yield where the rules evaluate a run, from its first evaluation on."""
    batch = settings[keys.GLOBAL_BATCH_SIZE]
    points = next((rule.points for rule in _keys_of(benchmark, rules, settings) if rule.points), None)
    interval = benchmark.evaluation_interval.at(batch) if benchmark.evaluation_interval else batch
    if points is None:
        return itertools.count(interval, interval)
    return itertools.count(points.first(batch), points.every(batch) if points.every else interval)


def _quality(run: MLPerfRun, share: float) -> float | dict[str, float]:
    """Return the quality at `share` of the target; above 1 it reaches the target, in either direction."""
    shares, rules = {">=": share, "<=": 1 / share}, run.benchmark
    if rules.parts:
        return {name: part.target * shares[part.direction] for name, part in rules.parts.items()}
    most = max(run.target, 1.0) if rules.direction == ">=" else math.inf  # no share exceeds 1
    return min(run.target * shares[rules.direction], most)


def _round_named(name: str) -> Ruleset:
    """Return the rules of the round "6.1", "v6.1" or "6.1.0"."""
    number = name.removeprefix("v")
    if (rules := RULESETS.get(number) or RULESETS.get(f"{number}.0")) is None:
        rounds = ", ".join(rules.name.removesuffix(".0") for rules in RULESETS.values() if rules.benchmarks)
        raise UsageError(f"there are no rules of a round {name!r}; known: {rounds}; no log was begun")
    return rules


def _rank() -> int:
    """Return the rank of this process, 0 outside of a distributed job."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def _keys_of(benchmark: BenchmarkRules, rules: Ruleset, settings: Mapping[str, Any]) -> list[RequiredKey]:
    """Return the rules for the settings of a run, required or not, and for what it logs itself."""
    required = rules.keys_of(benchmark.name, settings.get(keys.SUBMISSION_DIVISION), settings.get(keys.OPT_NAME))
    asked = {rule.key for rule in required}
    return [*(RequiredKey(key=key) for key in ALWAYS if key not in asked), *required]


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """Return every setting that a round has rules for, and this project's."""
    names = {*ALWAYS, *OPTIONAL}
    for rules in RULESETS.values():
        for benchmark in rules.benchmarks.values():
            for optimizer in (None, *(benchmark.closed_optimizer_keys or ())):
                for division in (keys.OPEN, keys.CLOSED):
                    for rule in rules.keys_of(benchmark.name, division, optimizer):
                        names |= {rule.key, rule.alternative or rule.key}
    return frozenset(names - COURSE)


def _checked_target(benchmark: BenchmarkRules, rules: Ruleset, settings: Mapping[str, Any]) -> float:
    """Return the quality to reach. Raise UsageError with all settings that are unknown, missing or not allowed."""
    wrong = [f"{name} is no setting of a log.{nearest(name, _known())}" for name in settings if name not in _known()]
    for rule in _keys_of(benchmark, rules, settings):
        if rule.key in COURSE:
            continue
        if rule.key in settings:
            value = settings[rule.key]
            if rule.vocabulary and value not in rule.vocabulary or rule.filled and value in ("", None):
                wrong.append(f"{rule.key} is {value!r}, not {_meaning(rule)}")
            broken = (constraint for constraint in rule.value if not constraint.holds(value, settings.get))
            wrong += [f"{rule.key} is {value!r}; it must be {constraint.words}" for constraint in broken]
        elif LEAST[rule.occurrence] and rule.alternative not in settings:
            wrong.append(f"{rule.key} is missing: {_meaning(rule)}")
    for key in (keys.SEED, keys.GLOBAL_BATCH_SIZE):
        if key in settings and (type(settings[key]) is not int or (key != keys.SEED and settings[key] < 1)):
            wrong.append(f"{key} is {settings[key]!r}, not {MEANINGS[key]}, a whole number")
    for key, value in settings.items():
        try:
            require_loggable(value, key)
        except (TypeError, ValueError) as error:
            wrong.append(str(error).removesuffix("; nothing was logged"))
    own_data = str(settings.get(keys.DATASET, benchmark.dataset)).lower() == benchmark.dataset  # as in is_demonstration
    own = settings.get(keys.QUALITY_TARGET)
    most = highest(benchmark.target, benchmark.direction)
    if not own_data and benchmark.parts:
        parts = ", ".join(benchmark.parts)
        wrong.append(f"{keys.DATASET} is other data, but one {keys.QUALITY_TARGET} cannot judge a quality of {parts}")
    elif not own_data and not (is_number(own) and own <= most):
        said, limit = "missing" if own is None else repr(own), ", at most 1" * (most == 1)
        what = f"the number to reach on other data than {benchmark.dataset}{limit}"
        wrong.append(f"{keys.QUALITY_TARGET} is {said}: {what}")
    if wrong:
        where = f"{benchmark.name} of round {rules.name}, {settings.get(keys.SUBMISSION_DIVISION, 'open')} division"
        raise UsageError(f"{where}: no log was begun; give or correct these settings:\n" + "\n".join(wrong))
    return benchmark.target if own_data else settings[keys.QUALITY_TARGET]


def _plain(value: Any) -> Any:
    """Return a number of numpy as Python's, other values as they are."""
    return value.item() if isinstance(value, Number) and hasattr(value, "item") else value


def _meaning(rule: RequiredKey) -> str:
    words = [MEANINGS[rule.key]] if rule.key in MEANINGS else []
    words += [f"one of {', '.join(rule.vocabulary)}"] if rule.vocabulary else []
    words += [constraint.words for constraint in rule.value]
    return "; ".join(words) or "the run's own value"
