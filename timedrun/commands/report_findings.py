"""Findings of a report, whether of a race, a sweep, a tuning or result sets: `timedrun report`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from judging.checking.check_report import group_lines
from judging.checking.verdicts import check_paths
from judging.ground.errors import UsageError
from judging.pages import score_table
from judging.pages.plot import labelled_sets, ratio_of, reference_of, relabelled
from judging.pages.plot_tradeoff import plot_tradeoff
from judging.pages.report_page import image
from judging.pages.report_text import Findings
from judging.scoring import score as scores
from mlevents.terminal_escape import printable
from timedrun.racing import race_file
from timedrun.racing.decision import time_words
from timedrun.racing.report import Report
from timedrun.racing.search import Search
from timedrun.racing.sweep_report import SweepReport
from timedrun.racing.tuning_report import TuningReport


def of_race(race: race_file.Race, path: Path, figures: dict[str, str], labels: Mapping[str, str]) -> Findings:
    """Return the report of a race, a sweep or a tuning, whose sides `labels` renames by label or folder; add a sweep's
    figure to `figures`."""
    named = {race.sides.get(name, name): label for name, label in labels.items()}
    first = next(iter(race.sides.values()))
    if race.control and first in named:
        named.setdefault(race.sides[race.control], f"{named[first]} (control)")
    race.commands = {}  # the report has those that the runs recorded
    race.comparisons = [replace(each, row=named.get(each.row, each.row)) for each in race.comparisons]
    race.sides = dict(zip(race.sides, relabelled([*race.sides.values()], named), strict=True))
    if race.tuning:
        tuned = TuningReport(race, path, Search(race, path), lambda *_: {})
        if not (shown := tuned.given_and_chosen):
            raise UsageError(f"no run of {path} has finished; nothing was written.")
        caption, table = tuned.captioned()
        return Findings(tuned.answers, caption, table, tuned.details(path), shown, tuned.failed)
    report = SweepReport(race, path) if race.budgets else Report(race, path)
    logs = [run.path for runs in report.sets.values() for run in runs]
    if not logs:
        raise UsageError(f"no run of {path} has finished; nothing was written.")
    report.checked = report.check(logs)
    if isinstance(report, SweepReport) and report.found:
        with TemporaryDirectory() as folder:
            plot_tradeoff(report.found, Path(folder) / "figure.svg", sum(report.sets.values(), []))
            figures["Quality against time, and gains over the baseline"] = image(Path(folder) / "figure.svg")
    sets = {race.sides[side]: runs for side, runs in report.sets.items() if runs}
    caption, table = report.captioned()
    details = [*(printable(f"verdict     {answer}") for answer in report.answers), *report.details(path)]
    ratios = [*report.ratios.values()]
    return Findings(report.verdicts, caption, table, details, sets, report.failed, race.confidence, ratios)


def of_sets(path: Path, labels: Mapping[str, str]) -> Findings:
    """Return scores and verdicts of the sets at `path`, and the speed-ups of comparable ones over the baseline."""
    sets = labelled_sets([str(path)], labels)
    checked = check_paths([path], None, run_official=True)
    known = scores.score([path])
    logs = [result for result in checked if result.kind == "log"]
    strict, official = (sum(getattr(log, by) == "pass" for log in logs) for by in ("strict", "official"))
    verdict = f"Checks: strict: {strict} of {len(logs)} logs pass, official: {official} of {len(logs)}."
    text = [line for score in known for line in [*score_table.details(score), ""]]
    failed = [result for result in checked if result.failed]
    errors = [replace(one, findings=[found for found in one.findings if found.level == "error"]) for one in failed]
    text += group_lines(errors, path.absolute())
    first, confidence = reference_of(sets), 1 - 0.05 / max(1, len(sets) - 1)
    pairs = {name: ratio_of(sets[first], runs, confidence) for name, runs in sets.items() if name != first}
    ratios = [replace(ratio, slow=first, fast=name) for name, ratio in pairs.items() if ratio]
    said = [*(f"{time_words(ratio)}." for ratio in ratios), score_table.sentence(known), verdict]
    return Findings(said, "", score_table.rows(known), text, sets, bool(failed), confidence, ratios)
