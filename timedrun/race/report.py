"""The report on a race, of the runs that are there: table, checks, package and figure. A step that fails is a line of
the report and never undoes another."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from mlevents.record import read
from mlevents.run_status import reached
from mlevents.summary import RunSummary, summarize
from mlevents.terminal_escape import printable
from timedrun.errors import describe
from timedrun.provenance.system_answers import read_answers
from timedrun.race.race_file import Comparison, Race, paths_of
from timedrun.run.worker import ROOT
from timedrun.submission import plot
from timedrun.submission.check_report import CheckResult, result_lines
from timedrun.submission.compare import compare_sets, pairs_of
from timedrun.submission.packaging import package
from timedrun.submission.scoring.score_table import NOTICE
from timedrun.submission.speedup_ratio import NotComparable, Ratio, holm, rounded

T = TypeVar("T")
SIGNIFICANT = 0.05
Sets = dict[str, list[RunSummary]]


class Report:
    """Results of a race, computed step by step; `problems` are the steps that failed."""

    def __init__(self, race: Race, folder: Path) -> None:
        self.race = race
        self.folder = folder
        self.sets: Sets = {
            side: [summarize(read(paths_of(folder, turn).log)) for turn in race.of_side(side, "finished")]
            for side in race.sides
        }
        self.ratios: dict[Comparison, Ratio] = {}
        self.verdicts: dict[Comparison, str] = {}
        self.problems: list[str] = []
        self.checked: list[CheckResult] = []
        self.package = ""
        self.package_failed = False
        self.figure = ""

    def make(self, check: Callable[[list[Path]], list[CheckResult]], no_package: str, no_figure: str) -> None:
        """Compute the ratios, `check` the logs, and make the package and the figure unless there is a reason against
        them; race.json is written after each step."""
        self.compare()
        self.race.report = {
            "runs_seconds": {self.race.sides[side]: [seconds(run) for run in runs] for side, runs in self.sets.items()},
            "ratios": {
                f"{self.race.sides[one.slow]} / {self.race.sides[one.fast]}": asdict(ratio)
                | {"verdict": self.verdicts[one], "row": one.row}
                for one, ratio in self.ratios.items()
            },
            "verdicts": [],
            "package": self.race.report.get("package", ""),
            "notice": NOTICE,
        }
        self.race.save(self.folder)
        complete = all(map(self.race.complete, self.race.sides))
        finished = [run.path for runs in self.sets.values() for run in runs]
        paths = [self.folder / side for side in self.race.sides] if complete else finished
        if finished:
            self.checked = self.guarded("check", lambda: check(paths)) or []
        self.note("verdicts", [asdict(result) for result in self.checked])
        reason = no_package or ("" if complete else "not every run of every side finished")
        if (self.folder / "package").exists():
            self.package = f"{self.folder / 'package'} is there already"
        elif reason:
            self.package = f"skipped: {reason}"
            self.note("package", self.package)
        else:
            self.guarded("package", self.make_package)
        if no_figure or not any(run.quality for run in sum(self.sets.values(), [])):
            self.figure = f"skipped: {no_figure or 'no run logged an evaluation'}"
        else:
            self.guarded("figure", self.plot)
        self.note("problems", self.problems)

    def note(self, name: str, value: Any) -> None:
        self.race.report[name] = value
        self.race.save(self.folder)

    def guarded(self, name: str, step: Callable[[], T]) -> T | None:
        """Return what `step` returns; None, and a line in `problems`, if it fails."""
        try:
            return step()
        except Exception as error:
            said = describe(error)
            words = said[1] if said else "".join(traceback.format_exception(error)[-2:]).strip()
            self.problems.append(f"{name} failed: {words}")
            return None

    def compare(self) -> None:
        """Compute the ratio of every comparison, of the pairs that finished. Those of an ablation are many: their
        intervals hold all at once (Bonferroni), and their verdicts are those of Holm's test."""
        rows = self.race.comparisons
        confidence = 1 - SIGNIFICANT / len(rows) if self.race.ablation else 1 - SIGNIFICANT
        for one in rows:
            slow, fast = pairs_of(self.sets[one.slow], self.sets[one.fast])
            try:
                ratio = compare_sets(slow, fast, paired=True, confidence=confidence)
            except NotComparable as error:
                self.problems.append(f"{self.race.sides[one.slow]} against {self.race.sides[one.fast]}: {error}")
                continue
            names = {"slow": self.race.sides[one.slow], "fast": self.race.sides[one.fast]}
            self.ratios[one] = replace(ratio, **names)  # type: ignore[arg-type]
            self.verdicts[one] = ratio.verdict
        if self.race.ablation:
            enough = [one for one, ratio in self.ratios.items() if ratio.bounds is not None]
            for one, p in zip(enough, holm([self.ratios[one].p or 0.0 for one in enough]), strict=True):
                word = "faster" if self.ratios[one].ratio > 1 else "slower"
                self.verdicts[one] = word if p <= SIGNIFICANT else "no difference shown"
                self.ratios[one] = replace(self.ratios[one], p=p)

    def make_package(self) -> None:
        answers = self.race.options.get("answers")
        made = package.package(
            [self.folder / side for side in self.race.sides],
            self.folder / "package",
            submitter=next(iter(self.sets.values()))[0].organization or "",
            source=ROOT,
            answers=read_answers(Path(answers)) if answers else None,
        )
        self.package_failed = not made.passed
        by = f"strict {made.strict}, official {made.official.verdict} by {made.official.checker}"
        messages = () if made.passed else (*made.official.messages, *map(str, made.findings))
        self.package = "\n".join([f"{by}: {self.folder / 'package'}", *(f"    {printable(one)}" for one in messages)])
        self.note("package", {"official": made.official.verdict, "strict": made.strict})

    def plot(self) -> None:
        out = self.folder / "quality_over_time.png"
        drawn = {self.race.sides[side]: runs for side, runs in self.sets.items() if runs}
        shown = dict(list(drawn.items())[: len(plot.COLOURS)])
        plot.plot_quality(shown, out)
        self.figure = str(out) + (f" (the first {len(shown)} of {len(drawn)} sides)" if len(shown) < len(drawn) else "")

    @property
    def failed(self) -> bool:
        """True if a run, a check, a comparison or a step of the report failed."""
        runs = any(turn.status in ("failed", "left out") for turn in self.race.turns)
        return runs or self.package_failed or bool(self.problems) or any(result.failed for result in self.checked)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and rows of the table: a row a comparison, and the sides that no row is of."""
        rows = [(one.row, one.fast if one.row.endswith("alone") else one.slow, one) for one in self.race.comparisons]
        named = {side for _, side, _ in rows}
        others = [(label, side, None) for side, label in self.race.sides.items() if side not in named]
        last = self.race.sides[[*self.race.sides][-1]]
        verdict = "the method makes it" if self.race.ablation else f"{last} is"
        header = ["config", f"speed-up [{self._percent}]", verdict, "reached", "median", "range"]
        header += ["strict", "official", "by medians"]
        return header, [self.row(*row) for row in [*rows, *others]]

    @property
    def _percent(self) -> str:
        some = next(iter(self.ratios.values()), None)
        return f"{100 * (some.confidence if some else 0.95):.4g} %"

    def row(self, name: str, side: str, one: Comparison | None) -> list[str]:
        runs = self.sets[side]
        times = [time for run in runs if (time := seconds(run)) is not None]
        middle = low = high = ""
        if times:
            middle, low, high = rounded((median(times), min(times), max(times)), (min(times), max(times)), least=3)
        failed = len(self.race.of_side(side, "failed"))
        logs = [result for result in self.checked if Path(result.path).parent == self.folder / side]
        ratio = self.ratios.get(one) if one else None
        return [
            name,
            ratio.text if ratio else "-",
            self.verdicts[one] if one and ratio else "not comparable" if one else "-",
            f"{len(times)} of {len(runs)}" + (f", {failed} failed" if failed else ""),
            f"{middle} s" if times else "-",
            f"{low} - {high} s" if times else "-",
            f"{sum(log.strict == 'pass' for log in logs)} of {len(logs)}",
            f"{sum(log.official == 'pass' for log in logs)} of {len(logs)}",
            f"{ratio.ratio_of_medians:.2f}x" if ratio else "-",
        ]

    def caption(self) -> list[str]:
        """Return the lines above the table, which say what its columns mean."""
        lines = ["Time to train (unverified), interleaved runs on this machine"]
        count = len(self.race.comparisons)
        if self.race.ablation:
            lines.append(
                "Speed-up by a method: of all methods over none, of the full config over the one without it, and of it"
                f" alone over none; from pairs of runs. The {count} intervals hold all at once with 95 % (Bonferroni);"
                " verdicts by Holm's test at 5 %, which finds more: an interval may then include 1."
            )
        elif count:
            last = self.race.sides[self.race.comparisons[0].fast]
            lines.append(f"Speed-up: of {last} over the config of the row, from pairs of runs (geometric mean)")
        return lines

    def details(self, shown: Path) -> list[str]:
        """Return the lines below the table; paths are relative to `shown`."""
        lines = [NOTICE]
        for side, label in self.race.sides.items():
            for turn in (one for one in self.race.turns if one.side == side and one.why):
                lines.append(printable(f"{turn.status:<11} {label}, run {turn.number}: {turn.why}"))
            for run in (one for one in self.sets[side] if one.disturbances):
                lines.append(printable(f"disturbed   {side}/{run.path.name}: {'; '.join(run.disturbances)}"))
        for ratio in self.ratios.values():
            if ratio.disturbances:
                lines.append(f"undisturbed {ratio.slow} / {ratio.fast}: {ratio.without_disturbed}")
        for number in range(self.race.runs):
            sessions = {one.session for one in self.race.turns if (one.number, one.status) == (number, "finished")}
            if len(sessions) > 1:
                lines.append(f"note        the race was stopped within round {number}: the runs of its pairs lie apart")
        for result in self.checked:
            if result.failed:
                errors = [finding for finding in result.findings if finding.level == "error"]
                lines += result_lines(replace(result, findings=errors), shown)
        lines += ["", *(f"problem     {printable(one)}" for one in self.problems)]
        lines += [f"package     {self.package}"] * bool(self.package) + [f"figure      {self.figure}"] * bool(
            self.figure
        )
        return [*lines, f"logs        {self.folder}/<config>/result_N.txt; all numbers are in race.json"]


def seconds(run: RunSummary) -> float | None:
    """Return the time to train in seconds, None if the target was not reached."""
    return run.minutes * 60 if reached(run) and run.minutes is not None else None
