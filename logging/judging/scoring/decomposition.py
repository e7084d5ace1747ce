"""Decomposition of a ratio of times to train into samples, samples per second of training, and the rest of the time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from judging.scoring.interval import Interval
from mlevents import keys
from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary

SAMPLES: Final = "samples"
EPOCHS: Final = "epochs"
STEPS: Final = "steps"
COUNTED: Final = {keys.EPOCH_NUM: None, keys.SAMPLES_COUNT: SAMPLES, keys.STEP_NUM: STEPS}
"""Unit of the progress by the name of its metadata; None: the benchmark's own."""

LEAST_COLD_START: Final = 0.02  # share of the time to train by which a slow first epoch is worth a note


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """Time to train of one run, the part of it that is training, and the amount of training.

    Training is the time to train without start-up, from run_start to the first epoch or block, and without evaluation,
    from each eval_start to its eval_stop. An evaluation that the log does not mark counts as training
    (`evaluation_marked` is False if there is none marked), and so do checkpoints and a slow first epoch."""

    minutes: float
    training_minutes: float
    amounts: Mapping[str, float]  # of training until the evaluation that ended the run, by unit, preferred unit first
    evaluation_marked: bool


@dataclass(frozen=True, kw_only=True)
class TimeParts:
    """Mean time to train of a set as a product, exact up to rounding:

        60 * minutes = samples / samples_per_second / training_share

    The means of time, of samples and of training time are of one kind over the same runs: arithmetic over those that a
    score averages, or geometric. `samples_per_second` are of training alone, without evaluation and start-up, and
    `training_share`, 0..1, is its part of the time to train. `unit` is that of `samples`, if these could not be
    computed from the logs' epochs or steps."""

    minutes: float
    samples: float
    unit: str
    samples_per_second: float
    training_share: float
    evaluation_marked: bool


@dataclass(frozen=True)
class Decomposition:
    """Ratio of two sets' times to train as a product of three ratios, exact up to rounding:

        ratio = samples * samples_per_second * evaluation_and_startup

    `samples` is the first set's samples / the second's, `samples_per_second` the second's / the first's, and
    `evaluation_and_startup` the second's training share / the first's; above 1 if it makes the second set faster."""

    first: TimeParts
    second: TimeParts
    ratio: float
    samples: Interval
    samples_per_second: Interval
    evaluation_and_startup: Interval

    @property
    def per_sample(self) -> float:
        """The first set's time per sample / the second's, with evaluation and start-up."""
        return self.ratio / self.samples.value

    @property
    def product(self) -> str:
        """The product as text, as "2.144x = 3.826 (samples) x 0.628 (samples/s) x 0.892 (evaluation, start-up)"."""
        factors = (self.samples, self.samples_per_second, self.evaluation_and_startup)
        names = (self.first.unit, f"{self.first.unit}/s", "evaluation, start-up")
        texts = (f"{factor.value:.3f} ({name})" for factor, name in zip(factors, names, strict=True))
        return f"{self.ratio:.3f}x = {' x '.join(texts)}"


def run_parts(run: RunSummary, rules: BenchmarkRules | None) -> RunParts | None:
    """Return the parts of the time to train of a run that reached its target, or None if its log lacks the time or the
    progress of its last evaluation."""
    name = next((key for key in (rules.progress if rules else keys.EPOCH_NUM, *COUNTED) if key in run.converged_at), "")
    progress = run.converged_at.get(name, 0.0)
    if not run.minutes or progress <= 0:
        return None
    training = run.minutes * (1 - (run.evaluation_share or 0.0)) - (run.startup_minutes or 0.0)
    if training <= 0:
        return None
    unit = COUNTED[name] or (rules.unit if rules else EPOCHS)
    unit = EPOCHS if unit == "epoch" else unit
    each = {EPOCHS: _epoch_samples(run, rules), STEPS: run.global_batch_size}.get(unit)
    amounts, marked = {SAMPLES: progress * each} if each else {}, run.evaluation_share is not None
    amounts |= {unit: progress}
    return RunParts(minutes=run.minutes, training_minutes=training, amounts=amounts, evaluation_marked=marked)


def shared_unit(runs: Sequence[RunParts]) -> str | None:
    """Return the unit in which all of `runs` are counted, samples if possible; None without one."""
    return next((unit for unit in runs[0].amounts if all(unit in run.amounts for run in runs)), None)


def time_parts(runs: Sequence[RunParts], unit: str, mean: Callable[[Sequence[float]], float] = fmean) -> TimeParts:
    """Return the mean parts of `runs`, none of which lacks `unit`."""
    minutes, training = mean([run.minutes for run in runs]), mean([run.training_minutes for run in runs])
    amount = mean([run.amounts[unit] for run in runs])
    return TimeParts(
        minutes=minutes,
        samples=amount,
        unit=unit,
        samples_per_second=amount / training / 60,
        training_share=training / minutes,
        evaluation_marked=all(run.evaluation_marked for run in runs),
    )


def decomposition(
    first: TimeParts, second: TimeParts, bounds: Sequence[tuple[float | None, float | None]] = ((None, None),) * 3
) -> Decomposition:
    """Return the ratio of two sets, counted in one unit, as a product; `bounds` are of the factors."""
    speed, share = second.samples_per_second / first.samples_per_second, second.training_share / first.training_share
    ratios = (first.samples / second.samples, speed, share)
    factors = (Interval(ratio, *bound) for ratio, bound in zip(ratios, bounds, strict=True))
    return Decomposition(first, second, first.minutes / second.minutes, *factors)


def training_caveats(sets: Sequence[Sequence[RunParts]], first_epoch_shares: Sequence[float | None]) -> list[str]:
    """Return the reason why two sets are not decomposed, and what counts as training in one and may not in the other.
    `sets`: parts of the first and of the second set's runs; empty for a set with a log that lacks them.
    `first_epoch_shares`: of the time to train, what each set's first epoch took longer than later ones."""
    if not all(sets):
        return ["not decomposed: a log lacks the progress of its last evaluation"]
    notes = []
    if shared_unit([run for runs in sets for run in runs]) is None:
        notes.append("not decomposed: the sets count their training in different units")
    for name, runs, share in zip(("first", "second"), sets, first_epoch_shares, strict=True):
        if not all(run.evaluation_marked for run in runs):
            notes.append(f"logs of the {name} set mark no evaluation, which counts as training there")
        if share is not None and share >= LEAST_COLD_START:
            notes.append(
                f"{share:.1%} of the {name} set's time is its first epoch's excess over later ones (cold caches, "
                "compilation), which counts as training"
            )
    return notes


def _epoch_samples(run: RunSummary, rules: BenchmarkRules | None) -> float | None:
    """Return the samples of an epoch, or None if they are unknown: logs of some benchmarks have other counts in
    train_samples, so that of a benchmark's own data must be one that its rules allow."""
    if rules is None or run.is_demonstration or run.train_samples is None:
        return run.train_samples
    least, most = rules.samples.get(keys.TRAIN_SAMPLES, (math.inf, 0.0))
    return run.train_samples if least <= run.train_samples <= most else None
