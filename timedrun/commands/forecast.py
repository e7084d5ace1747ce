"""`timedrun forecast`: the probability that a set passes the check of reference convergence."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from mlevents.checks.convergence import number
from mlevents.checks.log_check import usual_ruleset
from mlevents.record import read
from mlevents.rounds import ruleset
from mlevents.summary import summarize
from mlevents.terminal_escape import printable
from timedrun.errors import ExitCode, UsageError
from timedrun.storage.result_files import existing, require_ruleset
from timedrun.submission.forecast import MOST_RUNS, Forecast, forecast_reference, forecast_runs

COLUMNS = 100


def forecast(arguments: argparse.Namespace) -> ExitCode:
    """Print the forecast for a benchmark's reference or for runs."""
    require_ruleset(arguments.ruleset)
    subjects, asked = arguments.subjects, ruleset(arguments.ruleset) if arguments.ruleset else None
    if len(subjects) == 1 and not Path(subjects[0]).exists() and "/" not in subjects[0]:
        if arguments.batch_size is None:
            raise UsageError(f"a forecast for {subjects[0]} needs --batch-size.")
        found = forecast_reference(subjects[0], arguments.batch_size, asked, arguments.runs)
    else:
        files = [file for name in subjects for file in existing(Path(name))]
        if not files:
            raise UsageError(f"no result_*.txt in {', '.join(subjects)}.")
        runs = [summarize(read(file)) for file in files]
        rules = asked or ruleset(usual_ruleset(runs[0]))
        found = forecast_runs(runs, arguments.batch_size, rules, arguments.runs)
    print(json.dumps(asdict(found), indent=2) if arguments.json else "\n".join(report(found)))
    return ExitCode.OK


def report(one: Forecast) -> list[str]:
    """Format a forecast as lines of at most 100 columns."""
    return [
        line for text in _paragraphs(one) for line in textwrap.wrap(printable(text), COLUMNS, subsequent_indent="    ")
    ]


def _paragraphs(one: Forecast) -> Iterator[str]:
    def amount(mean: float, deviation: float) -> str:
        return f"{number(mean)} {one.unit} (standard deviation {number(deviation)})"

    yield f"{one.benchmark}, rules {one.ruleset}, batch {one.batch_size}"
    smallest = (
        "" if one.reference_batch_size == one.batch_size else f", of batch {one.reference_batch_size}, the smallest"
    )
    minimum = f"a set may need {number(one.reference_minimum)} or more"
    yield f"  reference  {amount(one.reference_mean, one.reference_deviation)}; {minimum}{smallest}"
    if one.given_runs is None:
        yield "  runs       assumed to converge like the reference"
    else:
        bounds = f"; 95 % of the mean: {number(one.interval[0])} to {number(one.interval[1])}" if one.interval else ""
        yield f"  {f'{one.given_runs} runs':<9}  {amount(one.mean, one.deviation)}{bounds}"
    factor = "" if one.mean_factor is None else f" (by {one.mean_factor:.4f} on average)"
    yield f"A set of {one.runs} such runs, each a draw from one normal distribution:"
    yield f"  {one.unscaled:7.2%}  passes, unscaled"
    yield f"  {one.scaled:7.2%}  passes, its score scaled{factor}"
    what = "fails" if one.reference_batch_size == one.batch_size else "needs reference runs of its own"
    yield f"  {one.fails:7.2%}  {what}"
    yield "Runs that show, in 95 of 100 cases (one-sided t-test at 5 %), that the mean is"
    for reference, name, runs in (
        (one.reference_mean, "reference's mean", one.runs_to_tell_mean),
        (one.reference_minimum, "minimum", one.runs_to_tell_minimum),
    ):
        side = "below" if one.mean < reference else "above"
        if one.mean == reference:
            yield f"  off the {name}: no number, they are equal"
        else:
            yield f"  {side} the {name}: {f'more than {MOST_RUNS:,}' if runs is None else f'{runs:,}'}"
    if one.differing_settings:
        yield f"Faster than the reference. Settings that differ (the reference's): {one.differing_settings}"
    for note in one.notes:
        yield f"note: {note}"
