"""Comparison of curves of quality against time, and what each gains over the baseline's: `timedrun compare SWEEP`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from judging.comparison.answers import Budget
from judging.comparison.extrapolation import Rates, extrapolated
from judging.comparison.tradeoff import Curve, runs_of
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError, nearest
from judging.pages.answer_table import answered, headline
from judging.pages.score_table import NOTICE
from judging.pages.tradeoff_table import as_json, report
from timedrun.racing.sweep_curves import compared, curves_at


def compare_curves(arguments: argparse.Namespace) -> ExitCode:
    """Print the curves of all runs at the paths, the gains over the baseline and the verdicts; with profiles of other
    machines, those of each machine."""
    stdio.stage("timedrun compare: reading logs")
    asked: float | Budget | None = Budget.parse(arguments.budget) if arguments.budget else arguments.quality
    if len(arguments.price) > 1 or arguments.paired is not None or arguments.allow:
        raise UsageError("curves have one --price, no pairs and nothing to --allow; leave these out.")
    price = next(iter(arguments.price), None)
    curves = curves_at(map(Path, arguments.paths))
    names, baseline = [curve.label for curve in curves], arguments.baseline
    if baseline is not None and baseline not in names:
        raise UsageError(f"there is no curve {baseline!r}.{nearest(baseline, names)} Curves: {', '.join(names)}.")
    curves.sort(key=lambda curve: baseline is not None and curve.label != baseline)
    machines: dict[str, tuple[list[Curve], list[str]]]
    if arguments.profile:
        machines = extrapolated(curves, [profile_of(text) for text in arguments.profile], price)
    else:
        machines = {"": ([replace(curve, hourly=price) for curve in curves], [])}
    if arguments.out and len(machines) > 1:
        raise UsageError(f"--out draws one machine; these are {'; '.join(machines)}. Draw each from its own --profile.")
    values, lines = [], list[str]()
    for machine, (of_machine, left_out) in machines.items():
        if of_machine and baseline not in (None, of_machine[0].label):
            raise UsageError(f"--baseline {baseline}: no profile of {machine} extrapolates it; {'; '.join(left_out)}.")
        comparisons, notes = compared(of_machine), [stdio.fitted(f"note: {note}", 4) for note in left_out]
        if asked is None:
            answer = headline(of_machine)
            known = as_json(comparisons) | {"answer": answer}
            text = [stdio.verdict(answer)] * bool(answer)
            text += report(comparisons, stdio.terminal_columns(sys.stdout), notes)
        else:
            known, text = answered(of_machine, comparisons, asked, notes)
        values.append(known | ({"notes": left_out} if left_out else {}))
        lines += [*([""] * bool(lines) + [f"On {machine}, extrapolated:"] if len(machines) > 1 else []), *text]
    several = [{"machine": machine} | value for machine, value in zip(machines, values, strict=True)]
    told = {"verified": False, "notice": NOTICE, "machines": several} if len(several) > 1 else values[0]
    if arguments.out:
        from judging.pages.plot_tradeoff import plot_tradeoff

        plot_tradeoff(comparisons, Path(arguments.out), runs_of(curves))
        told["figure"] = arguments.out
        lines.append(f"figure: {arguments.out}")
    stdio.report("\n".join(lines), told, as_json=arguments.json)
    return ExitCode.OK


def profile_of(text: str) -> tuple[str, Rates]:
    """Parse [LABEL=]FILE into the label of a curve, "" without one, and the profile in the file."""
    label, _, file = ("", "", text) if Path(text).is_file() else text.rpartition("=")
    return label, Rates.read(Path(file))
