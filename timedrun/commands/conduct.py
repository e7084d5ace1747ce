"""Conduct of a race or a sweep, whatever its sides are: runs in turn, then table, checks, package and figure."""

import argparse
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from judging.checking.verdicts import check_paths
from judging.comparison.sequential import FIRST_LOOK
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.race_labels import RACE_FILE
from mlevents.mlcommons import checker_version
from timedrun.racing import race_file
from timedrun.racing.decision import EXIT_CODES, KeepIf
from timedrun.racing.race_file import CONTROL, Race, Turn
from timedrun.racing.report import Report
from timedrun.racing.schedule import Start, plan_again, run_all, settle
from timedrun.racing.sweep_report import SweepReport
from timedrun.racing.tuning_report import TuningReport
from timedrun.storage.method_sources import named_by_user


def conduct(
    arguments: argparse.Namespace, folder: Path, planned: Race, start: Start, report_on: TuningReport | None = None
) -> ExitCode:
    """Run what is planned in `folder`, each run by `start`, and report on it. On a signal the current run ends, and the
    report is made of the runs that finished. A tuning plans its next run by the search of its report, `report_on`."""
    methods = "".join(f" +{reference}" for reference in named_by_user())
    again = f"timedrun {arguments.verb} {planned.benchmark}{methods} --resume {shlex.quote(str(folder))}"
    with race_file.locked(folder):
        missing = missing_parts(planned)
        settle(planned, folder)
        interrupted = 0
        if not arguments.report:
            for what, why in ({} if report_on else missing).items():
                stdio.message(f"timedrun {arguments.verb}: no {what}: {why}")
            plan_again(planned, folder)

            def note(turn: Turn) -> None:
                if report_on:
                    report_on.search.plan_next()
                else:
                    end_if_decided(planned, folder, turn)
                planned.save(folder)

            try:
                if report_on:
                    report_on.search.plan_next()
                interrupted = run_all(planned, folder, start, note, arguments.verb)
            except OSError:
                stdio.message(f"timedrun {arguments.verb}: finished runs are kept; continue with `{again}`")
                raise
        no_package = "the race was interrupted" if interrupted else missing.get("package", "")
        report = report_on or (SweepReport(planned, folder) if planned.budgets else Report(planned, folder))
        if not arguments.json:  # the checks, the package and the figure take seconds
            stdio.show("\n".join(["", *report.table(stdio.terminal_columns(sys.stdout))]))
        stdio.stage(f"timedrun {arguments.verb}: checks, package and figure")
        report.make(
            lambda paths: check_paths(paths, None, run_official=True), no_package, no_figure=missing.get("figure", "")
        )
    if arguments.json:
        stdio.stage("")
        print((folder / RACE_FILE).read_text(), end="")
    else:
        stdio.show("\n".join(stdio.fitted(line, 12) for line in report.details(Path.cwd())))
    if interrupted or any(turn.status in ("planned", "interrupted") for turn in planned.turns):
        stdio.message(f"timedrun {arguments.verb}: some runs are missing; continue with `{again}`")
    elif not arguments.json and any(turn.status == "finished" for turn in planned.turns):
        raced = report_on and not report_on.problems  # every side has a file
        stdio.next_command(*(report_on.next_words if report_on and raced else ("report", folder)))
    if interrupted:
        return ExitCode(128 + interrupted)
    if planned.keep_if and not report.doubtful:
        return EXIT_CODES[report.decision]
    return ExitCode.ERROR if report.failed else ExitCode.OK


def known_race(arguments: argparse.Namespace, folder: Path) -> Race:
    """Return the race in `folder`, of --resume or --report. Raises UsageError for an option that differs from its
    plan."""
    planned = race_file.load(folder)
    used = {"runs": planned.runs, "data_folder": getattr(arguments, "data_folder", None)}
    used |= {name: value for name, value in planned.options.items() if value is not None}
    for option in arguments.parser._actions:
        given, usual = getattr(arguments, option.dest, option.default), option.default
        known = not option.option_strings or option.dest in ("json", "resume", "report")
        if not known and str(given) not in (str(usual), str(used.get(option.dest, usual))):
            name = option.option_strings[0]
            raise UsageError(f"--resume and --report take the plan from race.json; leave out {name}.")
    return planned


def verdict_options(arguments: argparse.Namespace, sides: int) -> dict[str, Any]:
    """Return what a race of as many sides records of --until-decided, --control and --keep-if; raise UsageError for
    what cannot be done."""
    if arguments.until_decided and arguments.runs < FIRST_LOOK:
        raise UsageError(f"--until-decided looks after {FIRST_LOOK} pairs for the first time; give more --runs.")
    if arguments.control > arguments.runs:
        raise UsageError(f"--control {arguments.control} is more than the {arguments.runs} rounds; give more --runs.")
    if arguments.keep_if is not None:
        if sides != 2:
            raise UsageError(f"--keep-if compares two sides, here are {sides}; nothing was run.")
        if KeepIf.parsed(arguments.keep_if).time is None and arguments.until_decided:
            raise UsageError("--until-decided looks at times only; add `time < 1x` to --keep-if, or leave it out.")
    control = CONTROL if arguments.control else ""
    return {"until_decided": arguments.until_decided, "control": control, "keep_if": arguments.keep_if or ""}


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
