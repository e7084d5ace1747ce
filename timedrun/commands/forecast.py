"""Forecast of the probability that a set passes the check of reference convergence: `timedrun score --forecast`."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from judging.checking import forecast as forecasts
from judging.checking.check_report import wrapped
from judging.checking.forecast import Forecast
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import require_log, require_ruleset
from judging.scoring.olympic import mean_interval
from judging.scoring.target_test import MOST_RUNS
from mlevents.checks.convergence import number
from mlevents.checks.log_check import usual_ruleset
from mlevents.record import read, result_files
from mlevents.rounds import ruleset
from mlevents.summary import RunSummary, summarize


def forecast(arguments: argparse.Namespace) -> ExitCode:
    """Print the forecast for runs as those of the given logs, or as the reference's of a benchmark."""
    require_ruleset(arguments.ruleset)
    subjects, rules = arguments.paths, ruleset(arguments.ruleset) if arguments.ruleset else None
    runs: list[RunSummary] = []
    benchmark = subjects[0]
    if len(subjects) > 1 or Path(benchmark).exists() or "/" in benchmark:
        for name in subjects:
            require_log(Path(name))
        runs = [summarize(read(file)) for name in subjects for file in result_files(Path(name))]
        if not runs:
            raise UsageError(f"no result_*.txt in {', '.join(subjects)}.")
        benchmark, rules = runs[0].benchmark or "", rules or ruleset(usual_ruleset(runs[0]))
    elif arguments.batch_size is None:
        raise UsageError(f"a forecast for {benchmark} needs --batch-size.")
    estimate = forecasts.forecast(benchmark, arguments.batch_size, rules, runs)
    lines = [line for text in _paragraphs(estimate) for line in wrapped(text, "", "    ")]
    print(json.dumps(asdict(estimate), indent=2) if arguments.json else "\n".join(lines))
    return ExitCode.OK


def _paragraphs(estimate: Forecast) -> Iterator[str]:
    def amount(mean: float, deviation: float) -> str:
        return f"{number(mean)} {estimate.unit} (standard deviation {number(deviation)})"

    reference, interval = estimate.reference, mean_interval(estimate.progress)
    alike = reference.batch_size == estimate.batch_size
    yield f"{estimate.benchmark}, rules {estimate.ruleset}, batch {estimate.batch_size}"
    smallest = "" if alike else f", of batch {reference.batch_size}, the smallest"
    minimum = f"a set may need {number(reference.minimum)} or more"
    yield f"  reference  {amount(reference.mean, reference.deviation)}; {minimum}{smallest}"
    if interval is None:
        yield "  runs       assumed to converge like the reference"
    else:
        bounds = f"95 % of the mean: {number(interval[0])} to {number(interval[1])}"
        yield f"  {f'{len(estimate.progress)} runs':<9}  {amount(estimate.mean, estimate.deviation)}; {bounds}"
    factor = "" if estimate.mean_factor is None else f" (by {estimate.mean_factor:.4f} on average)"
    yield f"A set of {estimate.runs} such runs, each a draw from one normal distribution:"
    yield f"  {estimate.unscaled:7.2%}  passes, unscaled"
    yield f"  {estimate.scaled:7.2%}  passes, its score scaled{factor}"
    yield f"  {estimate.fails:7.2%}  {'fails' if alike else 'needs reference runs of its own'}"
    yield "Runs needed to show, in 95 of 100 cases (one-sided t-test at 5 %), that the mean is"
    for bound, name, runs in (
        (reference.mean, "reference's mean", estimate.runs_to_tell_mean),
        (reference.minimum, "minimum", estimate.runs_to_tell_minimum),
    ):
        side = "below" if estimate.mean < bound else "above"
        if estimate.mean == bound:
            yield f"  off the {name}: no number, they are equal"
        else:
            yield f"  {side} the {name}: {f'more than {MOST_RUNS:,}' if runs is None else f'{runs:,}'}"
    if estimate.differing_settings:
        yield f"Faster than the reference. Settings that differ (the reference's): {estimate.differing_settings}"
    for note in estimate.notes:
        yield f"note: {note}"
