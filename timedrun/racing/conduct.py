"""Conduct of a race, a sweep or a tuning: runs in turn, then table, checks, package and figure."""

import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from judging.comparison.sequential import FIRST_LOOK
from judging.ground import stdio
from judging.ground.errors import ExitCode
from judging.ground.race_labels import RACE_FILE
from mlevents.mlcommons import checker_version
from mlevents.terminal_escape import printable
from timedrun.racing import race_file
from timedrun.racing.decision import EXIT_CODES
from timedrun.racing.race_file import Race, Start, Turn
from timedrun.racing.report import Packager, Report
from timedrun.racing.sweep_report import SweepReport
from timedrun.racing.tuning_report import TuningReport
from timedrun.racing.turns import plan_again, run_all, settle
from timedrun.runner.storage.method_sources import named_by_user


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """Carry out a race, whatever its sides are.

    start: runs a turn. package: makes the package of a whole race. tuning: the report of a tuning, whose search plans
    its runs. as_json: print race.json. verbose: print what explains the answer, too.
    """

    start: Start
    package: Packager
    tuning: TuningReport | None = None
    as_json: bool = False
    verbose: bool = False

    def run(self, race: Race, folder: Path) -> ExitCode:
        """Run what is planned in `folder`, and report on it; after a signal, on the runs that have finished."""
        methods = "".join(f" +{reference}" for reference in named_by_user())
        again = f"timedrun {race.verb} {race.benchmark}{methods} --resume {shlex.quote(str(folder))}"
        with race_file.locked(folder):
            missing = missing_parts(race)
            settle(race, folder)
            for what, why in ({} if self.tuning else missing).items():
                stdio.message(f"timedrun {race.verb}: no {what}: {why}")
            plan_again(race, folder)
            interrupted = self._run_all(race, folder, again)
            no_package = "the race was interrupted" if interrupted else missing.get("package", "")
            report = self.tuning or (SweepReport(race, folder) if race.budgets else Report(race, folder))
            if not self.as_json:  # the checks, the package and the figure take seconds
                answers = [f"\n{stdio.verdict(printable(answer))}" for answer in report.answers]
                stdio.show("\n".join([*answers, "", *report.table(stdio.terminal_columns(sys.stdout))]))
            stdio.stage(f"timedrun {race.verb}: checks, package and figure")
            report.make(self.package, no_package, no_figure=missing.get("figure", ""))
        if self.as_json:
            stdio.stage("")
            print((folder / RACE_FILE).read_text(), end="")
        else:
            stdio.show("\n".join(stdio.fitted(line, 12) for line in report.details(Path.cwd(), verbose=self.verbose)))
        if interrupted or any(turn.status in ("planned", "interrupted") for turn in race.turns):
            stdio.message(f"timedrun {race.verb}: some runs are missing; continue with `{again}`")
        elif not self.as_json and any(turn.status == "finished" for turn in race.turns):
            raced = self.tuning and not self.tuning.problems  # every side has a file
            stdio.next_command(*(self.tuning.next_words if self.tuning and raced else ("report", folder)))
        if interrupted:
            return ExitCode(128 + interrupted)
        if race.keep_if and not report.doubtful:
            return EXIT_CODES[report.decision]
        return ExitCode.ERROR if report.failed else ExitCode.OK

    def _run_all(self, race: Race, folder: Path, again: str) -> int:
        """Run what is planned; return the signal that ended it, or 0."""
        received: list[int] = []
        try:
            if self.tuning:
                self.tuning.search.plan_next()
            for turn in run_all(race, folder, self.start, received):
                if self.tuning:
                    self.tuning.search.plan_next()
                else:
                    end_if_decided(race, folder, turn)
                race.save(folder)
        except OSError:
            stdio.message(f"timedrun {race.verb}: finished runs are kept; continue with `{again}`")
            raise
        return received[0] if received else 0


def end_if_decided(planned: Race, folder: Path, last: Turn) -> None:
    """Mark the runs that are left as not needed if a race until it is decided is, by the whole rounds so far."""
    left = [turn for turn in planned.turns if turn.status == "planned"]
    pairs = last.number + 1
    if not planned.until_decided or last.status == "running" or pairs < FIRST_LOOK or not left:
        return
    if left[0].number == last.number or not Report(planned, folder).decided:
        return
    for turn in left:
        turn.status, turn.why = "not needed", f"decided after {pairs} pairs"


def missing_parts(planned: Race) -> dict[str, str]:
    """Return the parts that the report will not have, each with the reason."""
    checker = checker_version()
    missing = {
        "figure": "" if find_spec("matplotlib") else "matplotlib is missing; pip install 'timedrun[report]'",
        "official verdicts": f"{checker}; pip install mlperf-logging" if "not installed" in checker else "",
        "package": planned.no_package,
    }
    return {what: why for what, why in missing.items() if why}
