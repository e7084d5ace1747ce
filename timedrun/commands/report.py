"""`timedrun report`: a race, a sweep, a tuning or result sets as one HTML file."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from judging.checking.check_report import group_lines
from judging.checking.verdicts import check_paths
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import existing, write_output
from judging.pages import score_table
from judging.pages.plot import labelled_sets
from judging.pages.plot_tradeoff import plot_tradeoff
from judging.pages.report_page import Findings, as_page, drawn, image
from judging.scoring import score as scores
from timedrun.racing import race_file
from timedrun.racing.report import Report
from timedrun.racing.search import Search
from timedrun.racing.sweep_report import SweepReport
from timedrun.racing.tuning_report import TuningReport


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
    race = race_file.planned(path)
    findings = of_race(race, path, figures) if race else of_sets(path)
    stdio.stage("timedrun report: figures")
    figures = figures or drawn(findings.sets, findings.confidence)  # a sweep's runs are points, not curves
    write_output(out, as_page(f"Report on {path.resolve().name}", findings, figures, path))
    stdio.stage("")
    print(json.dumps({"report": str(out)}) if arguments.json else f"report: {out}")
    return ExitCode.ERROR if findings.failed else ExitCode.OK


def of_race(race: race_file.Race, path: Path, figures: dict[str, str]) -> Findings:
    """Return the report of a race, a sweep or a tuning; add a sweep's figure to `figures`."""
    if race.tuning:
        tuned = TuningReport(race, path, Search(race, path), lambda *_: {})
        if not (shown := tuned.given_and_chosen):
            raise UsageError(f"no run of {path} has finished; nothing was written.")
        caption, table = tuned.captioned()
        return Findings(tuned.found, caption, table, tuned.details(path), shown, tuned.failed)
    report = SweepReport(race, path) if race.budgets else Report(race, path)
    logs = [run.path for runs in report.sets.values() for run in runs]
    if not logs:
        raise UsageError(f"no run of {path} has finished; nothing was written.")
    report.checked = report.check(logs)
    if isinstance(report, SweepReport) and report.found:
        with TemporaryDirectory() as folder:
            plot_tradeoff(report.found, Path(folder) / "figure.svg")
            figures["Quality against time, and gains over the baseline"] = image(Path(folder) / "figure.svg")
    sets = {race.sides[side]: runs for side, runs in report.sets.items() if runs}
    caption, table = report.captioned()
    return Findings(report.verdicts, caption, table, report.details(path), sets, report.failed, report.confidence)


def of_sets(path: Path) -> Findings:
    """Return scores and verdicts of the sets at `path`."""
    sets = labelled_sets([str(path)])
    checked = check_paths([path], None, run_official=True)
    known = scores.score([path])
    logs = [result for result in checked if result.kind == "log"]
    strict, official = (sum(getattr(log, by) == "pass" for log in logs) for by in ("strict", "official"))
    verdict = f"Checks: strict: {strict} of {len(logs)} logs pass, official: {official} of {len(logs)}."
    text = [line for score in known for line in [*score_table.details(score), ""]]
    failed = [result for result in checked if result.failed]
    errors = [replace(one, findings=[found for found in one.findings if found.level == "error"]) for one in failed]
    text += group_lines(errors, path.absolute(), "rule")
    return Findings([verdict], "", score_table.rows(known), text, sets, bool(failed))
