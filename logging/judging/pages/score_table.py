"""Scores as a table, with details and as JSON, each marked as unverified."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from judging.ground import stdio
from judging.ground.result_files import json_text
from judging.pages.table import Table, number
from judging.scoring.power import KINDS
from judging.scoring.score import Score
from judging.scoring.target_test import LEVEL, POWER, TargetTest, unseen
from mlevents.event import listed
from mlevents.terminal_escape import printable, shortened

UNVERIFIED: Final = "unverified"
NOTICE: Final = "Result not verified by MLCommons Association."
MOST_DISTURBED: Final = 4  # runs that are named
FORMULA_PREFIXES: Final = ("=", "+", "-", "@")
DEMONSTRATION: Final = "A demonstration used data other than its benchmark's: do not compare it with MLPerf results."
NAME_WIDTH: Final = 32  # characters of a longer name in the table; the details show all of it


def label(score: Score) -> str:
    """Format a score in minutes, as MLPerf does, below one also in seconds, always marked as unverified."""
    kind = f"{UNVERIFIED}, demonstration" if score.demonstration else UNVERIFIED
    if score.scaling_factor is not None:
        kind += f", scaled by {score.scaling_factor:.4f}"
    return f"{'no score' if score.score_minutes is None else _time(score.score_minutes)} ({kind})"


def as_json(scores: Sequence[Score]) -> str:
    values = [{"verified": False, "notice": NOTICE} | asdict(score) for score in scores]
    return json_text(values, indent=2) + "\n"


def table(scores: Sequence[Score], *, detailed: bool = False, width: int | None = None) -> str:
    """Format scores as text: the verdict, a table, the reasons for missing scores and MLCommons' notice.
    `detailed`: print `details` of each score below the table. `width`: columns of the terminal, at which the table is
    folded. Default: any width."""
    lines = [f"verdict     {sentence(scores)}", "", *rows(scores, width).lines(width)]
    if detailed:
        for score in scores:
            lines.append("")
            for text in details(score):
                lines += textwrap.wrap(text, width or len(text) + 1, subsequent_indent=" " * 11)
        lines.append("")
    else:
        lines += [f"{_name(score)}: no score: {printable(score.reason)}." for score in scores if score.reason]
        lines += [f"{_name(score)}: cost {printable(str(score.cost))}." for score in scores if score.cost]
        lines += [f"{_name(score)}: {tested(score.target_test)}." for score in scores if score.target_test is not None]
        untested = {_name(score): score.untestable for score in scores if score.untestable is not None}
        lines += [f"{name}: no test: {printable(reason)}." for name, reason in untested.items()]
        lines += [f"{_name(score)}: {printable(note)}" for score in scores for note in score.notes]
        lines += [
            f"{_name(score)}: faster than the reference; MLCommons' package checker scales it to"
            f" {score.score_minutes * factor:.3f} min (x {factor:.6f}), here it has no scaling.json."
            for score in scores
            if score.score_minutes is not None and (factor := score.unapplied_factor) is not None
        ]
    if any(score.demonstration for score in scores):
        lines.append(DEMONSTRATION)
    return "\n".join([stdio.fitted(lines[0], 12) if width else lines[0], *lines[1:], NOTICE, ""])


def sentence(scores: Sequence[Score]) -> str:
    """Return the score of one set, or how many sets have one, as a sentence."""
    if len(scores) != 1:
        return f"{sum(score.score_minutes is not None for score in scores)} of {len(scores)} sets have a score."
    (score,) = scores
    interval, reached = _row(score)[-1], sum(time is not None for time in score.runs)
    within = f", mean within {interval} (95 %)" if interval else ""
    why = f": {printable(score.reason)}" if score.reason else ""
    return f"{_name(score)}: {label(score)}{within}; {reached} of {len(score.runs)} runs reach the target{why}."


def rows(scores: Sequence[Score], width: int | None = None) -> Table:
    """Return the table of scores, with a shorter column of scores if it does not fit `width`."""
    identity = ("submitter", "system", "benchmark", "label")
    names = {field: distinct([getattr(score, field) for score in scores]) for field in identity}
    if len({*names["submitter"]}) < 2:
        del names["submitter"]
    if not any(names["label"]):
        del names["label"]
    header = [*names, "runs", "score", "95 % of the mean"]
    cells = [[*name, *_row(score)] for *name, score in zip(*names.values(), scores, strict=True)]
    if width is not None and Table(header, cells).width > width:
        header[-2] = f"score, {UNVERIFIED}"
        short = [label(score).replace(f"{UNVERIFIED}, ", "").replace(f" ({UNVERIFIED})", "") for score in scores]
        cells = [[*row[:-2], cell, row[-1]] for row, cell in zip(cells, short, strict=True)]
    return Table(header, cells)


def details(score: Score) -> list[str]:
    """Format everything known of one set as lines."""
    rules = f"rules {score.ruleset}" if score.ruleset else "no rules"
    side = f"{printable(score.label)}, " if score.label else ""
    about = f"{side}{printable(score.division)}, {printable(score.dataset)}, {rules}"
    lines = [f"{printable(score.submitter)} {_name(score)} ({about})"]

    def line(name: str, text: str) -> None:
        lines.append(f"  {name:<8} {text}")

    line("score", f"none: {printable(score.reason)}" if score.reason else label(score))
    scale, unit = unit_of(score.mean)
    line("runs", f"{_times(score.runs, scale)} {unit}")
    for name, text in _other_clocks(score):
        line(name, text)
    if score.untestable is not None:
        line("test", f"none: {printable(score.untestable)}")
    if score.target_test is not None:
        line("test", tested(score.target_test))
    if score.cost is not None:
        line("cost", f"{score.cost} ({UNVERIFIED})" if score.cost.usd is not None else str(score.cost))
    if score.window is not None:
        line("window", f"{', '.join(map(printable, score.window))}: the median of {score.windows} consecutive windows")
    if score.fastest or score.slowest:
        dropped = [f"{printable(name)} (fastest)" for name in score.fastest]
        line("dropped", ", ".join([*dropped, *(f"{printable(name)} (slowest)" for name in score.slowest)]))
    for name, why in score.failures.items():
        line("failed", f"{printable(name)} {printable(why)}")
    loads = [f"{printable(name)}: {why}" for name, why in score.disturbances.items()]
    for load in listed(loads, MOST_DISTURBED, "\n").split("\n") if loads else ():
        line("load", load)
    if score.disturbances and score.score_minutes is not None:
        count = len(score.window or score.runs) - len(score.disturbances)
        quiet = f"{_time(score.undisturbed_minutes)} ({UNVERIFIED})" if score.undisturbed_minutes else "no score"
        line("quiet", f"{quiet} of the {count} undisturbed runs alone" if count else "no run was undisturbed")
    if score.mean is not None and score.median is not None:
        spread = f", standard deviation {score.deviation * scale:.3f}" if score.deviation is not None else ""
        line("spread", f"mean {score.mean * scale:.3f}, median {score.median * scale:.3f}{spread} {unit}")
    if score.quality is not None:
        wanted = f", target {score.target:g}" if score.target is not None else ""
        line("quality", f"{score.quality:.5f} at the end (geometric mean{wanted})")
    if span := _progress(score):
        line("to reach", span)
    shares = [("evaluation", score.evaluation_share), ("cold first epoch", score.first_epoch_share)]
    if texts := [f"{what} {share:.1%}" for what, share in shares if share is not None]:
        line("share", ", ".join(texts))
    if (parts := score.parts) is not None:
        done = f"{number(parts.samples)} {parts.unit} at {number(parts.samples_per_second)}/s"
        line("parts", f"{done} are {parts.training_share:.1%} of the mean time, the rest is evaluation and start-up")
    outside = [("initialization", score.init_minutes), ("gap before run_start", score.gap_minutes)]
    if texts := [f"{what} {minutes:.3f} min" for what, minutes in outside if minutes is not None]:
        line("untimed", ", ".join(texts))
    energies = zip(KINDS.values(), (score.gpu_joules, score.cpu_joules), strict=True)
    if texts := [f"{joules:,.0f} J of the {what}" for what, joules in energies if joules is not None]:
        line("energy", f"{', '.join(texts)} ({UNVERIFIED})")
    if score.unmeasured:
        line("energy", f"not measured: {printable(score.unmeasured)}")
    for note in score.notes:
        line("note", printable(note))
    return lines


def _other_clocks(score: Score) -> list[tuple[str, str]]:
    """Return lines of the speedrun's clock and of the steps with their names: the runs' values and the mean."""
    if all(time is None for time in score.speedrun_runs):
        speedrun = "- (no complete blocks of training in the logs)"
    else:
        scale, unit = unit_of(max(time for time in score.speedrun_runs if time is not None))
        each = _times(score.speedrun_runs, scale)
        mean = f", mean {score.speedrun_minutes * scale:.3f} {unit}" if score.speedrun_minutes is not None else ""
        speedrun = f"{each} {unit}{mean} of training alone, no MLPerf time ({UNVERIFIED})"
    clocks = [("speedrun", speedrun)]
    if any(step is not None for step in score.steps_runs):
        each = " ".join("-" if step is None else f"{step:,}" for step in score.steps_runs)
        mean = f", mean {score.steps:,.1f}" if score.steps is not None else ""
        how = "as counted" if score.steps_counted else "computed from progress and batch, without incomplete batches"
        clocks.append(("steps", f"{each}{mean} optimizer steps, {how}"))
    return clocks


def tested(test: TargetTest) -> str:
    """Format a test of the target."""
    verdict = "is shown to reach" if test.passed else "is not shown to reach"
    needed = "no number of runs shows it at this mean and spread"
    if test.runs_needed is not None:
        needed = f"{test.runs_needed} runs pass with probability {POWER:g} at this mean and spread"
    return (
        f"the mean of {test.runs} runs, {test.mean:.5f} (standard deviation {test.deviation:.5f}), {verdict}"
        f" {test.target:g}: t test p = {test.p_t:.2g} (level {LEVEL:g}), sign test p = {test.p_sign:.2g}"
        f" ({test.reached} of {test.runs} runs at the target); {needed}. The t test assumes qualities near to normal:"
        f" {unseen(test.runs)}"
    )


def unit_of(minutes: float | None) -> tuple[float, str]:
    """Return the unit of times of that order, in minutes, and its name."""
    return (60.0, "s") if minutes is not None and minutes < 1 else (1.0, "min")


def _times(minutes: Sequence[float | None], scale: float) -> str:
    return " ".join("-" if time is None else f"{time * scale:.3f}" for time in minutes)


def _time(minutes: float) -> str:
    return f"{minutes:.3f} min" if minutes >= 1 else f"{minutes:.4f} min, {minutes * 60:.2f} s"


def _row(score: Score) -> list[str]:
    finished = [time for time in score.runs if time is not None]
    scale, unit = unit_of(score.mean)
    interval = f"{score.interval[0] * scale:.3f} to {score.interval[1] * scale:.3f} {unit}" if score.interval else ""
    disturbed = f", {len(score.disturbances)} disturbed" if score.disturbances else ""
    return [f"{len(finished)} of {len(score.runs)}{disturbed}", label(score), interval]


def _progress(score: Score) -> str:
    steps = [step for step in score.progress if step is not None]
    if not steps:
        return ""
    span = " to ".join(f"{step:,.0f}" for step in sorted({min(steps), max(steps)}))
    return f"{span} {'epochs' if score.unit == 'epoch' and span != '1' else score.unit}"


def _name(score: Score) -> str:
    return f"{printable(score.system)} {printable(score.benchmark)}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return `names` shortened to `NAME_WIDTH` characters, or to as many as keep different names different."""
    longest = max(map(len, map(printable, names)), default=0)
    for width in range(NAME_WIDTH, max(NAME_WIDTH, longest) + 1):
        shown = {name: shortened(name, width) for name in names}
        if len({*shown.values()}) == len(shown):
            break
    return [shown[name] for name in names]


def inert(text: str) -> str:
    """Escape text from logs so that no spreadsheet evaluates it as a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(FORMULA_PREFIXES) else shown
