"""`timedrun tradeoff`: curves of quality against time, and what each gains over the baseline's."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from judging.comparison.answers import Budget, at_budget, at_quality
from judging.comparison.extrapolation import Rates, extrapolated
from judging.comparison.tradeoff import Comparison, Curve, direction, runs_of
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError, nearest
from judging.pages.answer_table import as_json as answer_json
from judging.pages.answer_table import best, headline
from judging.pages.answer_table import report as answer_report
from judging.pages.score_table import NOTICE
from judging.pages.tradeoff_table import as_json, grouped, report
from judging.scoring.cost import cost, prices_of
from timedrun.racing.sweep_curves import compared, curves_at


def tradeoff(arguments: argparse.Namespace) -> ExitCode:
    """Print the curves of all runs at the paths, the gains over the baseline and the verdicts; with profiles of other
    machines, those of each machine."""
    stdio.stage("timedrun tradeoff: reading logs")
    asked: float | Budget | None = Budget.parse(arguments.budget) if arguments.budget else arguments.quality
    price = next(iter(prices_of([arguments.price], arguments.prices)), None)
    curves = curves_at(map(Path, arguments.paths))
    names, baseline = [curve.label for curve in curves], arguments.baseline
    if baseline is not None and baseline not in names:
        raise UsageError(f"there is no curve {baseline!r}.{nearest(baseline, names)} Curves: {', '.join(names)}.")
    curves.sort(key=lambda curve: baseline is not None and curve.label != baseline)
    machines: dict[str, tuple[list[Curve], list[str]]] = {"": (curves, [])}
    if arguments.profile:
        machines = extrapolated(curves, [profile_of(text) for text in arguments.profile], price)
    elif price is not None:
        runs = [next(iter(next(iter(curve.budgets.values())).values())) for curve in curves]
        priced = [replace(curve, hourly=cost(run.path, 60.0, price)) for curve, run in zip(curves, runs, strict=True)]
        machines = {"": (priced, [])}
    if arguments.out and len(machines) > 1:
        raise UsageError(f"--out draws one machine; these are {'; '.join(machines)}. Draw each from its own --profile.")
    values, lines = [], list[str]()
    for machine, (of_machine, notes) in machines.items():
        if of_machine and baseline not in (None, of_machine[0].label):
            raise UsageError(f"--baseline {baseline}: no profile of {machine} extrapolates it; {'; '.join(notes)}.")
        comparisons = compared(of_machine)
        if asked is None:
            answer = headline(of_machine)
            known = as_json(comparisons) | {"answer": answer}
            text = [*report(comparisons, stdio.terminal_columns(sys.stdout)), *[stdio.fitted(answer, 4)] * bool(answer)]
        else:
            known, text = _answered(of_machine, comparisons, asked)
        values.append(known | ({"notes": notes} if notes else {}))
        before_notice = text.index(NOTICE)
        text[before_notice:before_notice] = [stdio.fitted(f"note: {note}", 4) for note in notes]
        lines += [*([""] * bool(lines) + [f"On {machine}, extrapolated:"] if len(machines) > 1 else []), *text]
    figure = ""
    if arguments.out:
        from judging.pages.plot_tradeoff import plot_tradeoff

        plot_tradeoff(comparisons, Path(arguments.out))
        figure = arguments.out
    stdio.stage("")
    if arguments.json:
        of = [{"machine": machine} | value for machine, value in zip(machines, values, strict=True)]
        shown = {"verified": False, "notice": NOTICE, "machines": of} if len(of) > 1 else values[0]
        print(json.dumps(shown | ({"figure": figure} if figure else {}), indent=2))
        return ExitCode.OK
    stdio.show("\n".join([*lines, *[f"figure: {figure}"] * bool(figure)]))
    return ExitCode.OK


def _answered(
    curves: Sequence[Curve], comparisons: Sequence[Comparison], asked: float | Budget
) -> tuple[dict[str, Any], list[str]]:
    """Return the answer for each curve as values and as lines."""
    answers = at_budget(curves, asked) if isinstance(asked, Budget) else at_quality(curves, asked)
    winner = best(answers, lower_is_better=direction(runs_of(curves)) < 0)
    lines = answer_report(answers, asked, winner, stdio.terminal_columns(sys.stdout))
    lines[-2:-2] = [
        *grouped("time: extrapolated to", {curve.label: [curve.extrapolated] for curve in curves}),
        *grouped("warning:", {curve.label: curve.warnings for curve in comparisons[1:]}),
    ]
    return {"verified": False, "notice": NOTICE, **answer_json(answers, asked, winner)}, lines


def profile_of(text: str) -> tuple[str, Rates]:
    """Parse [LABEL=]FILE into the label of a curve, "" without one, and the profile in the file."""
    label, _, file = ("", "", text) if Path(text).is_file() else text.rpartition("=")
    return label, Rates.read(Path(file))
