"""Scores as a table, with details, as JSON and as CSV, each marked as unverified."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from judging.pages.table import Table, number
from judging.scoring.score import Score
from judging.scoring.target_test import LEVEL, POWER, TargetTest
from mlevents.terminal_escape import printable, shortened

UNVERIFIED: Final = "unverified"
NOTICE: Final = "Result not verified by MLCommons Association."
FORMULA_PREFIXES: Final = ("=", "+", "-", "@")
DEMONSTRATION: Final = "A demonstration used data other than its benchmark's: do not compare it with MLPerf results."
NAME_WIDTH: Final = 32  # characters of a longer name in the table; the details show all of it


def label(one: Score) -> str:
    """Format a score in minutes, as MLPerf does, below one also in seconds, always marked as unverified."""
    kind = f"{UNVERIFIED}, demonstration" if one.demonstration else UNVERIFIED
    if one.scaling_factor is not None:
        kind += f", scaled by {one.scaling_factor:.4f}"
    if one.score_minutes is None:
        return f"no score ({kind})"
    return f"{_time(one.score_minutes)} ({kind})"


def as_json(scores: Sequence[Score]) -> str:
    return json.dumps([{"verified": False, "notice": NOTICE} | asdict(one) for one in scores], indent=2) + "\n"


def as_csv(scores: Sequence[Score]) -> str:
    """Format scores as CSV with a header, one row per set; numbers in a cell are joined by " ", texts by "; "."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = [{"verified": False, "notice": NOTICE} | asdict(one) for one in scores]
    if rows:
        writer.writerow(rows[0])
    for row in rows:
        writer.writerow([_cell(value) for value in row.values()])
    return text.getvalue()


def table(scores: Sequence[Score], *, detailed: bool = False, width: int | None = None) -> str:
    """Format scores as a plain text table, followed by the reasons for missing scores and MLCommons' notice.

    Args:
        detailed: print `details` of each score below the table.
        width: columns of the terminal; a table that does not fit has fewer and shorter ones. Default: any width.
    """
    systems, benchmarks = distinct([one.system for one in scores]), distinct([one.benchmark for one in scores])
    names = {"submitter": distinct([one.submitter for one in scores])} if len({s.submitter for s in scores}) > 1 else {}
    names |= {"system": systems, "benchmark": benchmarks}
    header = [*names, "runs", "score", "95 % of the mean"]
    rows = [[*name, *_row(one)] for *name, one in zip(*names.values(), scores, strict=True)]
    if width is not None and Table(header, rows).width > width:
        header[-2:] = [f"score, {UNVERIFIED}"]
        short = [label(one).replace(f"{UNVERIFIED}, ", "").replace(f" ({UNVERIFIED})", "") for one in scores]
        rows = [[*row[:-2], cell] for row, cell in zip(rows, short, strict=True)]
    lines = Table(header, rows).lines(width)
    if detailed:
        for one in scores:
            lines.append("")
            for text in details(one):
                lines += textwrap.wrap(text, width or len(text) + 1, subsequent_indent=" " * 11)
        lines.append("")
    else:
        lines += [f"{_name(one)}: no score: {printable(one.reason)}." for one in scores if one.reason]
        lines += [f"{_name(one)}: cost {printable(str(one.cost))}." for one in scores if one.cost]
        lines += [
            f"{_name(one)}: faster than the reference; MLCommons' package checker scales it to"
            f" {one.score_minutes * factor:.3f} min (x {factor:.6f}), here it has no scaling.json."
            for one in scores
            if one.score_minutes is not None and (factor := one.unapplied_factor) is not None
        ]
    if any(one.demonstration for one in scores):
        lines.append(DEMONSTRATION)
    return "\n".join([*lines, NOTICE, ""])


def details(one: Score) -> list[str]:
    """Format everything known of one set as lines."""
    rules = f"rules {one.ruleset}" if one.ruleset else "no rules"
    lines = [f"{printable(one.submitter)} {_name(one)} ({printable(one.division)}, {printable(one.dataset)}, {rules})"]

    def line(name: str, text: str) -> None:
        lines.append(f"  {name:<8} {text}")

    line("score", f"none: {printable(one.reason)}" if one.reason else label(one))
    scale, unit = (60.0, "s") if one.mean is not None and one.mean < 1 else (1.0, "min")
    times = " ".join("-" if time is None else f"{time * scale:.3f}" for time in one.runs)
    line("runs", f"{times} {unit}")
    for name, text in _other_clocks(one):
        line(name, text)
    if one.untestable is not None:
        line("test", f"none: {printable(one.untestable)}")
    if one.target_test is not None:
        line("test", tested(one.target_test))
    if one.cost is not None:
        line("cost", f"{one.cost} ({UNVERIFIED})" if one.cost.usd is not None else str(one.cost))
    if one.window is not None:
        line("window", f"{', '.join(map(printable, one.window))}: the median of {one.windows} consecutive windows")
    if one.fastest or one.slowest:
        dropped = [f"{printable(name)} (fastest)" for name in one.fastest]
        line("dropped", ", ".join([*dropped, *(f"{printable(name)} (slowest)" for name in one.slowest)]))
    for name, why in one.failures.items():
        line("failed", f"{printable(name)} {printable(why)}")
    for name, why in one.disturbances.items():
        line("load", f"{printable(name)}: {why}")
    if one.disturbances and one.score_minutes is not None:
        count = len(one.window or one.runs) - len(one.disturbances)
        quiet = f"{_time(one.undisturbed_minutes)} ({UNVERIFIED})" if one.undisturbed_minutes else "no score"
        line("quiet", f"{quiet} of the {count} undisturbed runs alone" if count else "no run was undisturbed")
    if one.mean is not None and one.median is not None:
        spread = f", standard deviation {one.deviation * scale:.3f}" if one.deviation is not None else ""
        line("spread", f"mean {one.mean * scale:.3f}, median {one.median * scale:.3f}{spread} {unit}")
    if one.quality is not None:
        wanted = f", target {one.target:g}" if one.target is not None else ""
        line("quality", f"{one.quality:.5f} at the end (geometric mean{wanted})")
    if span := _progress(one):
        line("to reach", span)
    shares = [("evaluation", one.evaluation_share), ("cold first epoch", one.first_epoch_share)]
    if texts := [f"{what} {share:.1%}" for what, share in shares if share is not None]:
        line("share", ", ".join(texts))
    if one.first_throughput is not None:
        later = f", later {one.later_throughput:,.1f}" if one.later_throughput is not None else ""
        line("training", f"first epoch or block {one.first_throughput:,.1f} samples/s{later}")
    if (parts := one.parts) is not None:
        done = f"{number(parts.samples)} {parts.unit} at {number(parts.samples_per_second)}/s"
        line("parts", f"{done} are {parts.training_share:.1%} of the mean time, the rest is evaluation and start-up")
    caches = [] if one.caches_dropped is None else ["dropped" if one.caches_dropped else "not dropped"]
    if one.page_cache_resident is not None:
        caches.append(f"{one.page_cache_resident:.1%} of the data in the page cache before the clock")
    if caches:
        line("caches", ", ".join(caches))
    outside = [("initialization", one.init_minutes), ("gap before run_start", one.gap_minutes)]
    if texts := [f"{what} {minutes:.3f} min" for what, minutes in outside if minutes is not None]:
        line("untimed", ", ".join(texts))
    if one.energy_joules is not None:
        line("energy", f"{one.energy_joules:,.0f} J ({UNVERIFIED})")
    for note in one.notes:
        line("note", printable(note))
    return lines


def _other_clocks(one: Score) -> list[tuple[str, str]]:
    """Return lines of the speedrun's clock and of the steps with their names: the runs' values and the mean."""
    if all(time is None for time in one.speedrun_runs):
        speedrun = "- (no complete blocks of training in the logs)"
    else:
        seconds = max(time for time in one.speedrun_runs if time is not None) < 1
        scale, unit = (60.0, "s") if seconds else (1.0, "min")
        each = " ".join("-" if time is None else f"{time * scale:.3f}" for time in one.speedrun_runs)
        mean = f", mean {one.speedrun_minutes * scale:.3f} {unit}" if one.speedrun_minutes is not None else ""
        speedrun = f"{each} {unit}{mean} of training alone, no MLPerf time ({UNVERIFIED})"
    found = [("speedrun", speedrun)]
    if any(step is not None for step in one.steps_runs):
        each = " ".join("-" if step is None else f"{step:,}" for step in one.steps_runs)
        mean = f", mean {one.steps:,.1f}" if one.steps is not None else ""
        how = "as counted" if one.steps_counted else "computed from progress and batch, without incomplete batches"
        found.append(("steps", f"{each}{mean} optimizer steps, {how}"))
    return found


def tested(one: TargetTest) -> str:
    """Format a test of the target."""
    verdict = "is shown to reach" if one.passed else "is not shown to reach"
    needed = "no number of runs shows it at this mean and spread"
    if one.runs_needed is not None:
        needed = f"{one.runs_needed} runs pass with probability {POWER:g} at this mean and spread"
    return (
        f"the mean of {one.runs} runs, {one.mean:.5f} (standard deviation {one.deviation:.5f}), {verdict}"
        f" {one.target:g}: t test p = {one.p_t:.2g} (level {LEVEL:g}), sign test p = {one.p_sign:.2g}"
        f" ({one.reached} of {one.runs} runs at the target); {needed}"
    )


def _time(minutes: float) -> str:
    return f"{minutes:.3f} min" if minutes >= 1 else f"{minutes:.4f} min, {minutes * 60:.2f} s"


def _row(one: Score) -> list[str]:
    finished = [time for time in one.runs if time is not None]
    scale, unit = (60.0, "s") if one.mean is not None and one.mean < 1 else (1.0, "min")
    interval = f"{one.interval[0] * scale:.3f} to {one.interval[1] * scale:.3f} {unit}" if one.interval else ""
    return [
        f"{len(finished)} of {len(one.runs)}" + (f", {len(one.disturbances)} disturbed" if one.disturbances else ""),
        label(one),
        interval,
    ]


def _progress(one: Score) -> str:
    steps = [step for step in one.progress if step is not None]
    if not steps:
        return ""
    span = " to ".join(f"{step:,.0f}" for step in sorted({min(steps), max(steps)}))
    return f"{span} {'epochs' if one.unit == 'epoch' and span != '1' else one.unit}"


def _name(one: Score) -> str:
    return f"{printable(one.system)} {printable(one.benchmark)}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return `names` shortened to `NAME_WIDTH` characters, or to as many as keep different names different."""
    longest = max(map(len, map(printable, names)), default=0)
    for width in range(NAME_WIDTH, max(NAME_WIDTH, longest) + 1):
        shown = {name: shortened(name, width) for name in names}
        if len({*shown.values()}) == len(shown):
            break
    return [shown[name] for name in names]


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return inert("; ".join(f"{name} {why}" for name, why in value.items()))
    if isinstance(value, list | tuple):
        if any(isinstance(item, str) for item in value):
            return inert("; ".join("" if item is None else str(item) for item in value))
        return " ".join("" if item is None else str(item) for item in value)
    return "" if value is None else inert(value) if isinstance(value, str) else value


def inert(text: str) -> str:
    """Escape text from logs so that no spreadsheet evaluates it as a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(FORMULA_PREFIXES) else shown
