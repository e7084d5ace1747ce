"""The report on a sweep, of the runs that are there: curves, verdicts, checks and figure."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from judging.checking.check_report import CheckResult, verdict
from judging.pages.answer_table import headline
from judging.pages.plot_tradeoff import plot_tradeoff
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from judging.pages.tradeoff_table import as_json, captions, report, table, verdicts
from timedrun.racing.race_file import Race
from timedrun.racing.report import Packager, Report
from timedrun.racing.sweep_curves import compared, curves_of

ABOUT_THE_TARGET: Final = ("target-reached", "status-success")
"""Rules that a run of a sweep need not keep: it ends with its schedule."""


class SweepReport(Report):
    """Results of a sweep. race.json gets them as `tradeoff`."""

    def __init__(self, race: Race, folder: Path) -> None:
        super().__init__(race, folder)
        curves = curves_of(race, folder)
        baseline = next(iter(race.budgets.values())).curve
        measured = any(curve.label == baseline for curve in curves)
        self.found = (self.guarded("comparison failed", lambda: compared(curves)) if measured else None) or []
        self.answer = headline(curves) if self.found else ""

    def make(self, package: Packager, no_package: str, no_figure: str) -> None:
        super().make(package, no_package, no_figure)
        if self.found:
            self.note("tradeoff", as_json(self.found) | {"answer": self.answer})

    def check(self, paths: list[Path]) -> list[CheckResult]:
        """Return the results of the checks of logs, without the rules that a sweep's runs need not keep."""
        logs = super().check([run.path for runs in self.sets.values() for run in runs])
        kept = [[finding for finding in log.findings if finding.rule not in ABOUT_THE_TARGET] for log in logs]
        return [replace(log, findings=found, strict=verdict(found)) for log, found in zip(logs, kept, strict=True)]

    def plot(self) -> None:
        if self.found:
            plot_tradeoff(self.found, self.folder / "tradeoff.png", sum(self.sets.values(), []))
            self.figure = str(self.folder / "tradeoff.png")

    def table(self, width: int | None) -> list[str]:
        """Return curves and verdicts as lines."""
        lines = report(self.found, width) if self.found else self.verdicts
        return [line for line in lines if line != NOTICE]  # which the details have, too

    @property
    def answers(self) -> list[str]:
        return [self.answer] * bool(self.answer)

    @property
    def verdicts(self) -> list[str]:
        if not self.found:
            return ["No run of the baseline finished: nothing is compared."]
        return [*[self.answer] * bool(self.answer), *verdicts(self.found)]

    def captioned(self) -> tuple[str, Table]:
        if not self.found:
            return "", Table([], [])
        return " ".join(captions(self.found)), table(self.found)
