"""`timedrun report`: a race, a sweep or result sets as one HTML file."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from judging.checking.check_report import result_lines
from judging.ground import stdio
from judging.ground.atomic_file import replace_text
from judging.ground.errors import ExitCode, TimedrunError, UsageError
from judging.ground.result_files import existing, read_json
from judging.pages import score_table
from judging.pages.plot_tradeoff import plot_tradeoff
from judging.pages.report_page import as_page, drawn, image
from judging.scoring import score as scores
from judging.scoring.run_set import sets_at
from timedrun.commands.check import check_paths
from timedrun.race import race_file
from timedrun.race.report import Report, Sets
from timedrun.race.sweep_report import SweepReport

COLUMNS: Final = 110
"""Width of tables, as wide as the page."""


def report(arguments: argparse.Namespace) -> ExitCode:
    """Write the page; exit code 1 if a check fails."""
    path = Path(arguments.path)
    if not path.is_dir() or not existing(path):
        raise UsageError(f"{path} is not a folder with logs (result_*.txt); nothing was written.")
    out = Path(arguments.out) if arguments.out else path / "report.html"
    if out.suffix != ".html":
        raise UsageError(f"--out {out}: the report is an .html file; nothing was written.")
    stdio.stage("timedrun report: checks")
    figures: dict[str, str] = {}
    failed = False
    recorded = path / race_file.RACE_FILE
    if recorded.is_file() and "race" in read_json(recorded):  # some of results/ have no schedule
        text, sets, failed = of_race(path, figures)
    else:
        text, sets, failed = of_sets(path)
    stdio.stage("timedrun report: figures")
    figures = figures or drawn(sets)  # a sweep's runs are points, not curves
    replace_text(out, as_page(f"Report on {path.resolve().name}", text, sets, figures, path))
    stdio.stage("")
    print(json.dumps({"report": str(out)}) if arguments.json else f"report: {out}")
    return ExitCode.ERROR if failed else ExitCode.OK


def of_race(path: Path, figures: dict[str, str]) -> tuple[list[str], Sets, bool]:
    """Return the report of a race or a sweep as lines, its runs by label, and True if a check fails."""
    race = race_file.load(path)
    report = SweepReport(race, path) if race.budgets else Report(race, path)
    logs = [run.path for runs in report.sets.values() for run in runs]
    if not logs:
        raise UsageError(f"no run of {path} has finished; nothing was written.")
    report.checked = check_paths(logs, None, run_official=True)
    if isinstance(report, SweepReport):
        report.checked = report.required(report.checked)
    if isinstance(report, SweepReport) and report.found:
        with TemporaryDirectory() as folder:
            plot_tradeoff(report.found, Path(folder) / "figure.svg")
            figures["Quality against time, and gains over the baseline"] = image(Path(folder) / "figure.svg")
    sets = {race.sides[side]: runs for side, runs in report.sets.items() if runs}
    width = None if isinstance(report, SweepReport) else COLUMNS  # the names in a sweep's table are not folded
    table = report.table(width)
    return [*textwrap.wrap(table[0], COLUMNS), *table[1:], "", *report.details(path)], sets, report.failed


def of_sets(path: Path) -> tuple[list[str], Sets, bool]:
    """Return scores and verdicts of the sets at `path` as lines, their runs by name, and True if a check fails."""
    sets: Sets = {}
    for (_, system, benchmark), runs in sets_at(path):
        if invalid := [str(run.path) for run in runs if not run.events]:
            raise TimedrunError(f"{', '.join(invalid)}: not an MLPerf log; nothing was written.")
        folder = runs[0].path.parent
        label = runs[0].config_name or f"{system} {benchmark}"
        sets[f"{label} ({folder})" if label in sets else label] = runs
    checked = check_paths([path], None, run_official=True)
    text = score_table.table(scores.score([path]), detailed=True, width=COLUMNS).splitlines()
    logs = [result for result in checked if result.kind == "log"]
    strict, official = (sum(getattr(log, by) == "pass" for log in logs) for by in ("strict", "official"))
    text += ["", f"checks      strict: {strict} of {len(logs)} logs pass, official: {official} of {len(logs)}"]
    failed = [result for result in checked if result.failed]
    for result in failed:
        findings = [finding for finding in result.findings if finding.level == "error"]
        text += result_lines(replace(result, findings=findings), path)
    return text, sets, bool(failed)
