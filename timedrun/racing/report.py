"""The report on a race, of the runs that are there: table, checks, package and figure. A step that fails is a line of
the report and never undoes another."""

import math
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from judging.checking.check_report import CheckResult, group_lines
from judging.checking.verdicts import check_paths
from judging.comparison.compare import MOST_NAMED, attempts_of, compare_sets, pairs_of, why_missed
from judging.comparison.composition import run_seconds, together
from judging.comparison.expected_time import Attempts, ExpectedTime, expected_time
from judging.comparison.extrapolation import Rates
from judging.comparison.quality_test import Quality, compare_quality
from judging.comparison.speedup_ratio import Ratio
from judging.ground import stdio
from judging.ground.errors import describe
from judging.ground.result_files import read_json
from judging.pages import plot
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from judging.scoring.clocks import Clocks, clocks, start_up
from judging.scoring.interval import Interval, as_values
from judging.scoring.power import energy_text, shared_energy
from mlevents.rounds.own_rules import BEYOND_MLPERF, NOT_APPLICABLE
from mlevents.run_status import reached
from mlevents.summary import RunSummary
from mlevents.terminal_escape import printable
from timedrun.racing.command_side import side_in
from timedrun.racing.decision import KeepIf, as_json, control_words, time_words
from timedrun.racing.race_file import ALONE, COMMANDS, LEFT_OUT, PROFILES, Comparison, Race, paths_of, side_file
from timedrun.runner.storage import source_copies

T = TypeVar("T")

MISSED = {"target-reached", "status-success", "log-fails"}
"""Rules that the log of a run that missed its target breaks, and its set."""
EQUAL = 0.8  # shares of the longest time of tuning from here on count as equal
SHORT, RESOLUTION = 0.1, 0.004
"""Seconds of a run below which the clock counts, and its resolution: lines are read by a thread of a busy process."""
FEW, FAR = 4, 2.0
"""Runs of which the first one is compared with the others, and the factor beyond them that is named."""
Sets = dict[str, list[RunSummary]]
Packager = Callable[[Race, Path], tuple[str, bool, dict[str, Any]]]
"""Packages the sides of a race in its folder; returns the lines to print, True if a check of the package failed, and
what race.json holds of it."""


class Report:
    """Results of a race, computed step by step; `problems` are the steps that failed."""

    def __init__(self, race: Race, folder: Path) -> None:
        self.race = race
        self.folder = folder
        self.sets: Sets = {side: race.finished(folder, side) for side in race.sides}
        self.ratios: dict[Comparison, Ratio] = {}
        self.control: Ratio | None = None
        self.problems: list[str] = []
        self.checked: list[CheckResult] = []
        self.package = ""
        self.package_failed = False
        self.figure = ""
        self.compare()

    def make(self, package: Packager, no_package: str, no_figure: str) -> None:
        """Save times and ratios, check the logs, and make the package and the figure unless there is a reason against
        them; race.json is written after each step."""
        self.race.report = {
            "runs_seconds": {self.race.sides[side]: [seconds(run) for run in runs] for side, runs in self.sets.items()},
            "training_seconds": {
                label: [time and 60 * time for time in clock.speedrun_runs] for label, clock in self.clocks.items()
            },
            "missed": dict(self.missed),
            "expected_seconds": {label: asdict(of_side) for label, of_side in self.expected.items()},
            "steps": {label: clock.steps_runs for label, clock in self.clocks.items()},
            "ratios": {
                f"{self.race.sides[comparison.slow]} / {self.race.sides[comparison.fast]}": as_values(ratio)
                | {"verdict": ratio.verdict, "row": comparison.row}
                | {"predicted_per_sample": self.predicted.get(comparison)}
                for comparison, ratio in self.ratios.items()
            },
            "energy": {"of": self.energy[0], "joules": self.energy[1]},
            "control": as_values(self.control) if self.control else None,
            "tuning": self.tuning_words,
            "verdicts": [],
            "package": self.race.report.get("package", ""),
            "notice": NOTICE,
        }
        self.race.save(self.folder)
        complete = all(len(self.race.of_side(side, "finished")) == self.race.runs for side in self.race.racing)
        finished = [run.path for runs in self.sets.values() for run in runs]
        paths = [self.folder / side for side in self.race.racing] if complete else finished
        if complete:  # the control is no whole set
            paths += [run.path for run in self.sets.get(self.race.control, [])]
        if finished:
            self.checked = self.guarded("check failed", lambda: self.check(paths)) or []
        self.note("verdicts", [asdict(result) for result in self.checked])
        reason = no_package or ("" if complete else "not every run of every side finished")
        if (self.folder / "package").exists():
            self.package = f"{self.folder / 'package'} already exists"
        elif reason:
            self.package = f"skipped: {reason}"
            self.note("package", self.package)
        else:
            made = self.guarded("package failed", lambda: package(self.race, self.folder))
            if made:
                self.package, self.package_failed, verdicts = made
                self.note("package", verdicts)
        if no_figure or not any(run.quality for run in sum(self.sets.values(), [])):
            self.figure = f"skipped: {no_figure or 'no run logged an evaluation'}"
        else:
            self.guarded("figure failed", self.plot)
        if self.race.keep_if:
            self.note("decision", as_json(self.keep_if, self.decision, *self.last))
        self.note("problems", self.problems)

    def check(self, paths: list[Path]) -> list[CheckResult]:
        """Return the results of the checks of result sets and logs."""
        return check_paths(paths, None, run_official=True)

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
            self.problems.append(f"{name}: {words}")
            return None

    def compare(self) -> None:
        """Compute every comparison's ratio, of finished pairs. All intervals hold at once (95 %, Bonferroni)."""
        for comparison in self.race.comparisons:
            slow, fast = pairs_of(self.sets[comparison.slow], self.sets[comparison.fast])
            sides = (comparison.slow, comparison.fast)
            name = " against ".join(self.race.sides[side] for side in sides)
            if empty := [side for side in sides if not self.sets[side]]:
                ends = [turn for turn in self.race.turns if turn.side == empty[0] and turn.why]
                why = next((f": run {turn.number} {turn.status}, {turn.why}" for turn in ends), "")
                self.problems.append(f"{name}: {self.race.sides[empty[0]]} has no finished run{why}")
                continue
            attempts = [self._attempts(side) for side in sides]
            pairs = partial(compare_sets, slow, fast, paired=True, confidence=self.race.confidence, attempts=attempts)
            if ratio := self.guarded(name, pairs):
                self.ratios[comparison] = self.resolved(ratio, *sides)
        if self.race.control:
            first = next(iter(self.race.sides))
            again, runs = pairs_of(self.sets[self.race.control], self.sets[first])
            if len(runs) > 1 and (ratio := self.guarded("control", partial(compare_sets, again, runs, paired=True))):
                self.control = self.resolved(ratio, first, self.race.control)

    def _attempts(self, side: str) -> Attempts:
        """Return the seconds of the runs of a side that reached the target, and of the others, failed ones included."""
        hits, missed = attempts_of(self.sets[side])
        return Attempts(hits, [*missed, *(turn.seconds for turn in self.race.of_side(side, "failed"))])

    @property
    def expected(self) -> dict[str, ExpectedTime]:
        """Expected seconds to a success of each side with runs, by its label."""
        known = [(label, self._attempts(side)) for side, label in self.race.sides.items()]
        return {label: expected_time(runs, self.race.confidence) for label, runs in known if any(runs)}

    @property
    def missed(self) -> list[tuple[str, str]]:
        """The finished runs that missed the target, and how."""
        return [
            (f"{label}, run {turn.number}", why)
            for side, label in self.race.sides.items()
            for turn, run in zip(self.race.of_side(side, "finished"), self.sets[side], strict=True)
            if (why := why_missed(run))
        ]

    @cached_property
    def predicted(self) -> dict[Comparison, float]:
        """Speed-ups per sample of an ablation by Amdahl's law, from the profiles of each method alone; {} without them,
        or if the sides differ in more than methods."""
        if not self.race.ablation or not (self.folder / PROFILES).is_file():
            return {}
        bare, full = self.race.comparisons[0].slow, self.race.comparisons[0].fast
        profiles = read_json(self.folder / PROFILES)["profiles"]
        rates = {profile["config"]: Rates.of(profile) for profile in profiles}
        rows = {each: each.row.removesuffix(ALONE) for each in self.race.comparisons if each.row.endswith(ALONE)}
        alone = {name: rates[each.fast] for each, name in rows.items()}
        predicted = {each: run_seconds(rates[bare]) / run_seconds(alone[name]) for each, name in rows.items()}
        settings = [read_json(side_file(self.folder, side)) for side in (bare, full)]
        methods = [values.pop("methods") for values in settings]
        first, second = ({name: values[name] for name in values.keys() - {"name", "notes"}} for values in settings)
        if first != second or len(methods[0]) + len(alone) != len(methods[1]):
            return predicted
        for each in self.race.comparisons:
            left_out = alone if each.slow == bare else [each.row.removesuffix(LEFT_OUT)]
            if each.row.endswith(LEFT_OUT) and {*left_out} <= alone.keys():
                rest = [of_method for name, of_method in alone.items() if name not in left_out]
                seconds = [run_seconds(together(rates[bare], some)) for some in (rest, [*alone.values()])]
                predicted[each] = seconds[0] / seconds[1]
        return predicted

    @property
    def decided(self) -> bool:
        """True if every comparison is decided with the misses of its sides, or the condition's time is. Quality is
        tested once, at the end: its test allows for no looks."""
        if self.race.keep_if:
            return self.keep_if.time_holds(self.last[0]) is not None
        decided = [ratio.decided for ratio in self.ratios.values()]
        return len(decided) == len(self.race.comparisons) and all(decided)

    @property
    def keep_if(self) -> KeepIf:
        return KeepIf.parsed(self.race.keep_if)

    @property
    def last(self) -> tuple[Ratio | None, Quality]:
        """The last comparison: ratio of the times, and qualities."""
        comparison = self.race.comparisons[-1]
        return self.ratios.get(comparison), self.quality(comparison)

    @property
    def decision(self) -> str:
        """ "keep", "discard", as for a last side with a failed run, or "inconclusive", if `doubtful` or not ended."""
        if self.doubtful:
            return "inconclusive"
        if self.race.of_side(self.race.comparisons[-1].fast, "failed"):
            return "discard"
        if any(turn.status in ("planned", "running", "interrupted") for turn in self.race.turns):
            return "inconclusive"
        return self.keep_if.decide(*self.last)

    def quality(self, comparison: Comparison) -> Quality:
        """Compare the qualities of two sides, with the margin of the condition, if there is one."""
        sides = (comparison.slow, comparison.fast)
        slow, fast = (len(self.sets[side]) + len(self.race.of_side(side, "failed")) for side in sides)
        margin = (self.keep_if.margin if self.race.keep_if else None) or 0.0
        sets = self.sets[comparison.slow], self.sets[comparison.fast]
        at_target: bool | None = True
        if self.race.benchmark == COMMANDS:
            side = side_in(side_file(self.folder, comparison.slow))
            lengths = {len(run.quality) for runs in sets for run in runs}
            at_target = False if side.stop and not side.stop_at_target and len(lengths) == 1 else side.ends_at_target
        return compare_quality(*sets, (slow, fast), margin, at_target)

    def plot(self) -> None:
        out = self.folder / "quality_over_time.png"
        drawn = {self.race.sides[side]: runs for side, runs in self.sets.items() if runs}
        shown = dict(list(drawn.items())[: len(plot.COLOURS)])
        plot.plot_quality(shown, out, confidence=self.race.confidence)
        self.figure = str(out) + (f" (the first {len(shown)} of {len(drawn)} sides)" if len(shown) < len(drawn) else "")

    @property
    def tuning_words(self) -> list[str]:
        """Sentences on the tuning of the sides: the time of each, and what makes the times no equal ones."""
        if self.race.ablation or self.race.budgets or len(self.race.racing) < 2:
            return []
        if not self.race.tuned:
            return ["not recorded of any side: its baseline may not be tuned (`timedrun tune`)"]
        named = [(label, self.race.tuned.get(side)) for side, label in self.race.racing.items()]
        lines = ["; ".join(f"{label} {record.words if record else 'not recorded'}" for label, record in named)]
        longest = max((record.minutes, label) for label, record in named if record)
        lines += [
            f"unequal: {label} for {record.minutes / longest[0] if record else 0:.2g} of the time of {longest[1]}"
            for label, record in named
            if not record or record.minutes < EQUAL * longest[0]
        ]
        for side, label in self.race.racing.items():
            record, runs = self.race.tuned.get(side), self.sets[side]
            if record and runs and record.split == runs[0].dataset:
                lines.append(f"{label} was tuned on {record.split}, the data that decides this race")
        return lines

    @property
    def clocks(self) -> dict[str, Clocks]:
        """Return the clocks beside MLPerf's of each side's runs that reached the target, by the side's label."""
        return {
            self.race.sides[side]: clocks([run if reached(run) else None for run in runs], None)
            for side, runs in self.sets.items()
        }

    @property
    def energy(self) -> tuple[str, dict[str, list[float]]]:
        """Return what the joules of the runs are of, or why there are none, and those of each side, by its label."""
        successful = {self.race.sides[side]: [run for run in runs if reached(run)] for side, runs in self.sets.items()}
        what, used = shared_energy(sum(successful.values(), []))
        return what, {label: [used[run.path] for run in runs] for label, runs in successful.items() if used}

    @property
    def doubtful(self) -> bool:
        """True if a check failed but for a missed target: such logs are no evidence."""
        failed = [result for result in self.checked if result.failed]
        rules = {finding.rule for result in failed for finding in result.findings if finding.level == "error"}
        return bool(rules - MISSED) or (self.package_failed and not failed)

    @property
    def failed(self) -> bool:
        """True if a run, a check, a comparison or a step of the report failed."""
        runs = any(turn.status in ("failed", "left out") for turn in self.race.turns)
        return runs or self.package_failed or any(result.failed for result in self.checked) or bool(self.problems)

    @property
    def answers(self) -> list[str]:
        """The verdict on the time and the quality of each comparison, of an ablation on all methods, as a sentence."""
        known = [*self.ratios.items()][: 1 if self.race.ablation else None]
        return [f"{time_words(ratio)}; {self.quality(comparison).finding}." for comparison, ratio in known]

    def table(self, width: int | None) -> list[str]:
        """Return caption and table as lines, folded at `width`."""
        caption, table = self.captioned()
        return [stdio.fitted(caption, 0), *table.lines(width)]

    @property
    def verdicts(self) -> list[str]:
        """The verdict on each comparison as a sentence, or why there is none; an ablation's are in its table."""
        return self.problems + [ratio.sentence for ratio in self.ratios.values() if not self.race.ablation]

    def captioned(self) -> tuple[str, Table]:
        """Return the caption and the table, a row a comparison and then the sides that have none."""
        rows = [
            (comparison.row, comparison.fast if comparison.row.endswith(ALONE) else comparison.slow, comparison)
            for comparison in self.race.comparisons
        ]
        rest = {side: label for side, label in self.race.sides.items() if side not in [side for _, side, _ in rows]}
        last = self.race.comparisons[0].fast if self.race.comparisons else ""
        caption = f"Time to train (unverified), {'interleaved ' * (len(self.sets) > 1)}runs on this machine."
        if self.race.ablation:
            caption += (
                " Speed-up by a method, from pairs of runs: of the full config over the one without it, and of it alone"
                " over the bare config."
            )
            if self.predicted:
                caption += " Per sample: measured, and predicted from profiles of each method alone (Amdahl's law)."
        elif last:
            caption += f" Speed-up: of {self.race.sides[last]} over the one of the row, from pairs of runs."
        if len(self.race.comparisons) > 1:
            caption += f" The {len(self.race.comparisons)} intervals hold all at once with 95 % (Bonferroni)."
        verdict = "method makes it" if self.race.ablation else "verdict"
        header = ["config", f"speed-up [{100 * self.race.confidence:.4g} %]", verdict, "reached", "median", "range"]
        header += ["by medians", *["per sample, predicted"] * bool(self.predicted)]
        cells = [self.row(*row) for row in [*rows, *((label, side, None) for side, label in rest.items())]]
        if not self.race.comparisons:
            header, *cells = ([row[0], *row[3:6]] for row in (header, *cells))
        return caption, Table(header, cells)

    def row(self, name: str, side: str, comparison: Comparison | None) -> list[str]:
        def times_of(side: str) -> list[float]:
            return [time for run in self.sets[side] if (time := seconds(run)) is not None]

        times, middle, spread = times_of(side), "-", "-"
        if times:
            middle, low, high = (f"{text} s" for text in Interval(median(times), min(times), max(times)).digits(3))
            spread = f"{low} - {high}"
        failed = len(self.race.of_side(side, "failed"))
        ratio = self.ratios.get(comparison) if comparison else None
        by_medians = "-"
        if comparison and ratio and (fast := median(times_of(comparison.fast))):
            # of the medians in the table: `ratio`'s are of pairs, of which some may lack a run
            by_medians = f"{median(times_of(comparison.slow)) / fast:.2f}x"
        return [
            name,
            ratio.text() if ratio else "-",
            ratio.verdict if ratio else "not comparable" if comparison else "-",
            f"{len(times)} of {len(self.sets[side]) + failed}" + (f", {failed} failed" if failed else ""),
            middle,
            spread,
            by_medians,
            *[", ".join(self.per_sample(comparison)) if comparison else "-"] * bool(self.predicted),
        ]

    def resolved(self, ratio: Ratio, slow: str, fast: str) -> Ratio:
        """Return a ratio with its sides' labels; of short runs of commands, their clock widens its interval."""
        ratio = replace(ratio, slow=self.race.sides[slow], fast=self.race.sides[fast])
        shortest = 60 * min(ratio.minutes_slow or math.inf, ratio.minutes_fast or math.inf)
        if self.race.benchmark != COMMANDS or shortest >= SHORT or ratio.low is None or ratio.high is None:
            return ratio
        factor = 1 + RESOLUTION / shortest
        return replace(ratio, low=ratio.low / factor, high=ratio.high * factor, p=None)

    def doubts(self, side: str) -> list[str]:
        """Return lines on what the times of a side do not show: seeds without effect, a cache, and a coarse clock."""
        label, runs, lines = self.race.sides[side], self.sets[side], list[str]()
        curves = {tuple(point.value for point in run.quality) for run in runs}
        if len(curves) == 1 < len({run.seed for run in runs}) and (len(runs) > 2 or len(min(curves)) > 1):
            what = "the seed changes none of them"
            if self.race.benchmark == COMMANDS:
                command = side_in(side_file(self.folder, side))
                files = source_copies.copies_in(paths_of(self.folder, self.race.of_side(side, "finished")[0]).side)
                what = f"{command.seed_variable} changes none of them"
                if not command.names_seed(files):
                    what = f"{command.seed_variable} is not read; the interval is the machine's alone"
            lines.append(f"seeds       {label}: every run has the same qualities: {what}")
        times = [time for run in runs if (time := seconds(run)) is not None]
        if len(times) >= FEW and not min(times[1:]) / FAR <= times[0] <= max(times[1:]) * FAR:
            ratio = times[0] / median(times[1:])
            lines.append(
                f"first run   {label}: {times[0]:.3g} s, {ratio:.2g} times the others ({min(times[1:]):.3g} to"
                f" {max(times[1:]):.3g} s), as with a cache: warm it up before, or clear it in each run"
            )
        if times and min(times) < SHORT and self.race.benchmark == COMMANDS:
            lines.append(
                f"short       {label}: a run of {1000 * min(times):.0f} ms; a line's time is {1000 * RESOLUTION:.0f} ms"
                f" exact, so let runs take {1000 * SHORT:.0f} ms or more"
            )
        return lines

    def per_sample(self, comparison: Comparison) -> tuple[str, str]:
        """Return the measured and the predicted speed-up per sample of a comparison as text."""
        parts = self.ratios[comparison].decomposition if comparison in self.ratios else None
        predicted = self.predicted.get(comparison)
        return f"{parts.per_sample:.2f}x" if parts else "-", f"{predicted:.2f}x" if predicted else "-"

    @property
    def disturbed(self) -> list[str]:
        """A line with the number of runs that other load disturbed, [] if it disturbed none."""
        runs = sum(self.sets.values(), [])
        busy = sum(bool(run.disturbances) for run in runs)
        return [f"disturbed   {busy} of {len(runs)} runs (--verbose names them)"] if busy else []

    @property
    def explanation(self) -> list[str]:
        """Lines on what a ratio is made of, on other clocks and energy, and on each disturbed run."""
        runs, lines = sum(self.sets.values(), []), list[str]()
        busy = [run for run in runs if run.disturbances]
        for run in busy[:MOST_NAMED]:
            name = f"{run.path.parent.name}/{run.path.name}"
            lines.append(printable(f"disturbed   {name}: {'; '.join(run.disturbances)}"))
        if len(busy) > MOST_NAMED:
            lines.append(f"disturbed   {len(busy) - MOST_NAMED} more runs, named in race.json")
        for label, clock in self.clocks.items():
            times = [60 * time for time in clock.speedrun_runs if time is not None]
            steps = [count for count in clock.steps_runs if count is not None]
            if times and steps:
                alone = f"{median(times):.3g} s of training alone (the speedrun's clock)"
                lines.append(f"clocks      {label}: {alone}, {median(steps):,.0f} steps (medians)")
        what, joules = self.energy
        used = {label: energy_text(median(of_side)) for label, of_side in joules.items() if of_side}
        lines += [f"energy      {label}: {text} of {what} (median)" for label, text in used.items()]
        if what and not joules:
            lines.append(printable(f"energy      not measured: {what}"))
        lines += filter(None, [start_up(runs)])
        for comparison, ratio in self.ratios.items():
            if ratio.portable and not self.race.ablation:
                lines.append(f"portable    {ratio.portable_text}")
            if comparison in self.predicted and comparison is self.race.comparisons[0]:
                measured, predicted = self.per_sample(comparison)
                lines.append(f"predicted   all methods: {predicted} per sample (Amdahl's law), measured {measured}")
            if ratio.decomposition:
                lines.append(f"parts       {ratio.slow} / {ratio.fast}: {ratio.decomposition.product}")
        return lines

    def details(self, shown: Path, *, verbose: bool = True) -> list[str]:
        """Return the lines below the table; paths are relative to `shown`. verbose: with what explains the answer, and
        the disturbed runs by name."""
        lines = self.explanation if verbose else self.disturbed
        undisturbed = [ratio for ratio in self.ratios.values() if ratio.undisturbed]
        lines += [f"undisturbed {ratio.slow} / {ratio.fast}: {ratio.without_disturbed}" for ratio in undisturbed]
        lines += [NOTICE]
        lines += [printable(f"command     {command} ({name})") for name, command in self.race.commands.items()]
        for side, label in self.race.sides.items():
            of_side = [turn for turn in self.race.turns if turn.side == side and turn.status != "not needed"]
            for why in dict.fromkeys(turn.why for turn in of_side if turn.why):
                alike = [turn for turn in of_side if turn.why == why]
                numbers = f"run{'s' * (len(alike) > 1)} {', '.join(str(turn.number) for turn in alike)}"
                lines.append(printable(f"{alike[0].status:<11} {label}, {numbers}: {why}"))
        if not self.race.budgets:  # whose runs end with their schedule
            lines += [printable(f"missed      {name}: {why}") for name, why in self.missed[:MOST_NAMED]]
            if len(self.missed) > MOST_NAMED:
                lines.append(f"missed      {len(self.missed) - MOST_NAMED} more runs, named in race.json")
            if any(of_side.missed for of_side in self.expected.values()):
                known = self.expected.items()
                lines += [printable(f"expected    {label}: {of.text}, misses included") for label, of in known]
        if ended := next((turn.why for turn in self.race.turns if turn.status == "not needed"), ""):
            lines.append(f"ended       {ended} of at most {self.race.runs}")
        for side, what in self.race.emulated.items():
            lines.append(printable(f"emulated    {self.race.sides[side]}: {what}; its ratios hold on such CPUs only"))
        lines += [printable(words) for side in self.race.sides for words in self.doubts(side)]
        lines += [printable(f"tuning      {words}") for words in self.tuning_words]
        lines += map(printable, self.race.differences)
        for number in range(self.race.runs):
            sessions = {turn.session for turn in self.race.turns if (turn.number, turn.status) == (number, "finished")}
            if len(sessions) > 1:
                lines.append(f"note        the race was stopped within round {number}: its pairs are not adjacent")
        logs, failed = [result for result in self.checked if result.kind == "log"], list[CheckResult]()
        strict, official = (sum(getattr(log, by) == "pass" for log in logs) for by in ("strict", "official"))
        ran = any(log.official != "not run" for log in logs)
        whys = (finding.message for log in logs for finding in log.findings if f"({finding.rule})" in log.checker)
        why = next(whys, "")
        by_official = f"{official} of {len(logs)}" if ran else printable(f"not run{why and f': {why}'}")
        if logs and all(log.ruleset == BEYOND_MLPERF for log in logs):
            by_official = NOT_APPLICABLE
        lines.append(f"checks      strict: {strict} of {len(logs)} logs pass, official: {by_official}")
        told = set[str]() if self.race.budgets else MISSED  # by the rows of misses
        for result in self.checked:
            errors = [finding for finding in result.findings if finding.level == "error" and finding.rule not in told]
            failed += [replace(result, findings=errors)] if errors else []
        lines += (f"    {line}" for line in group_lines(failed, shown))
        if self.control:
            lines.append(printable(f"control     {control_words(self.control, self.race.runs)}"))
        if self.race.keep_if:
            lines.append(printable(f"decision    {self.decision}: {self.race.keep_if}"))
        lines += ["", *(f"problem     {printable(problem)}" for problem in self.problems)]
        made = {"package": self.package, "figure": self.figure}
        lines += [f"{name:<11} {words}" for name, words in made.items() if words]
        folders = [f"{side} ({label})" for side, label in self.race.sides.items() if side != label]
        lines += [printable(f"folders     {', '.join(folders)}")] if folders else []
        return [*lines, f"logs        {self.folder}/<folder>/result_N.txt; all numbers are in race.json"]


def seconds(run: RunSummary) -> float | None:
    """Return the time to train in seconds, None if the target was not reached."""
    return run.minutes * 60 if reached(run) and run.minutes is not None else None
