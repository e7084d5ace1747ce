"""`timedrun race`: interleaved runs of several configs, and the table, checks, package and figure made of them."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mlevents.record import read
from mlevents.rounds import MLPERF_RULESETS
from mlevents.run_status import reached
from mlevents.summary import RunSummary, summarize
from mlevents.terminal_escape import printable
from timedrun import stdio
from timedrun.benchmark import BenchmarkSpec, find
from timedrun.commands.check import check_paths
from timedrun.commands.child_run import run_child, run_command
from timedrun.commands.show import print_table
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.run.worker import ROOT
from timedrun.storage import ledger
from timedrun.storage.result_files import ResultPaths, new_folder, write_json
from timedrun.submission import plot
from timedrun.submission.check_report import CheckResult, result_lines
from timedrun.submission.compare import compare_sets
from timedrun.submission.packaging import package
from timedrun.submission.scoring.score_table import NOTICE
from timedrun.submission.speedup_ratio import NotComparable, Ratio


def race(arguments: argparse.Namespace) -> ExitCode:
    """Run, check, score, package, plot and compare; the last config is compared with each of the others.

    On SIGINT the current run ends as `timedrun run` does, and the report is made of the runs that finished.
    """
    benchmark = find(arguments.benchmark)
    configs = [benchmark.config(name, arguments.data) for name in arguments.configs]
    names = [config.name for config in configs]
    if len(set(names)) != len(names):
        raise UsageError(f"a config can race only once: {', '.join(names)}.")
    folder = new_folder(arguments.results, Path("runs") / benchmark.name, "race")
    sets, interrupted = run_all(arguments, names, folder)
    if not sets:
        raise KeyboardInterrupt
    figure = folder / "quality_over_time.png"
    plot.plot_quality(sets, figure)
    why_no_package = "the race was interrupted" if interrupted else package_obstacle(benchmark.spec, arguments.runs)
    report = None
    if not why_no_package:
        report = package.package(
            [folder / name for name in names],
            folder / "package",
            submitter=configs[0].submission.organization,
            source=ROOT,
        )
    finished = [run.path for runs in sets.values() for run in runs]
    checked = check_paths(finished if interrupted else [folder / name for name in names], None, run_official=True)
    ratios = compared(sets, names[-1])
    write_json(
        folder / "race.json",
        {
            "runs_seconds": {name: [seconds(run) for run in runs] for name, runs in sets.items()},
            "ratios": {f"{slow} / {names[-1]}": asdict(ratio) for slow, ratio in ratios.items()},
            "verdicts": [asdict(result) for result in checked],
            "package": {"official": report.official.verdict, "strict": report.strict}
            if report
            else f"not made: {why_no_package}",
            "notice": NOTICE,
        },
    )
    if arguments.json:
        print((folder / "race.json").read_text(), end="")
    else:
        print_report(sets, names[-1], ratios, checked)
        if report is not None:
            print_package(report, folder / "package")
        else:
            print(f"package     not made: {why_no_package}")
        print(f"figure      {figure}")
        print(f"logs        {folder}/<config>/result_N.txt, files of run N in run_N/; all numbers are in race.json")
    if interrupted:
        return ExitCode.INTERRUPTED
    failed = (report is not None and not report.passed) or any(result.failed for result in checked)
    return ExitCode.ERROR if failed or len(ratios) < len(names) - 1 else ExitCode.OK


def interleaved(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return the order of configs in each round, reversed every other time (A B, B A, A B ...), so that a machine
    which slows down or speeds up favours none."""
    return [list(names if number % 2 == 0 else reversed(names)) for number in range(rounds)]


def run_all(
    arguments: argparse.Namespace, names: Sequence[str], folder: Path
) -> tuple[dict[str, list[RunSummary]], bool]:
    """Run every config in every round, each run in a process of its own; return the finished runs by config, in the
    order of `names`, and whether SIGINT interrupted the race. Raise TimedrunError if a run failed; one that does not
    reach its target is a result, and the race continues."""
    finished: dict[str, list[RunSummary]] = {name: [] for name in names}
    folder.mkdir(parents=True)
    ledger.place(folder).touch()  # one for all sets
    interrupted = False
    for number, order in enumerate(interleaved(names, arguments.runs)):
        for name in order:
            if interrupted:
                break
            results = ResultPaths(folder / name, number)
            label = f"{name} {number + 1}/{arguments.runs}"
            command = run_command(
                arguments, arguments.benchmark, name, results=results, label=label, ranks=arguments.ranks
            )
            code, _, interrupted = run_child([*command, "--seed", str(arguments.first_seed + number)])
            if code in (ExitCode.OK, ExitCode.TARGET_NOT_REACHED):
                finished[name].append(summarize(read(results.log)))
            elif interrupted:
                stdio.write(
                    f"timedrun race: run {number} of {name} was interrupted (exit code {code}) and is not counted;"
                    f" its files are in {results.folder}\n"
                )
            else:
                raise TimedrunError(f"run {number} of {name} ended with exit code {code}; see {results.folder}.")
    return {name: runs for name, runs in finished.items() if runs}, interrupted


def package_obstacle(spec: BenchmarkSpec, runs: int) -> str:
    """Return why sets of `runs` runs make no package, or "" if they make one."""
    if spec.ruleset not in MLPERF_RULESETS:
        return f"{spec.mlperf_benchmark} is not an MLPerf benchmark"
    needed = spec.rules.runs
    return "" if runs == needed else f"a set has {runs} runs, MLPerf's rules require {needed}"


def seconds(run: RunSummary) -> float | None:
    """Return the time to train in seconds, None if the target was not reached."""
    return run.minutes * 60 if reached(run) and run.minutes is not None else None


def compared(sets: dict[str, list[RunSummary]], fast: str) -> dict[str, Ratio]:
    """Return the speed-up of the set `fast` over each of the others, paired by round; report on standard error why a
    set cannot be compared."""
    ratios = {}
    rounds = min(map(len, sets.values()))  # an interrupted round may lack some configs
    for slow in (name for name in sets if name != fast):
        try:
            ratios[slow] = compare_sets(sets[slow][:rounds], sets.get(fast, [])[:rounds], paired=True)
        except NotComparable as error:
            print(f"{slow} against {fast}: {error}", file=sys.stderr)
    return ratios


def print_report(
    sets: dict[str, list[RunSummary]], fast: str, ratios: dict[str, Ratio], checked: Sequence[CheckResult]
) -> None:
    """Print the table of times, then the findings of checks that failed."""
    rows = []
    for name, runs in sets.items():
        times = [time for run in runs if (time := seconds(run)) is not None]
        folder = runs[0].path.parent
        logs = [result for result in checked if Path(result.path).parent == folder]
        ratio = ratios.get(name)
        paired = "-"
        if ratio and ratio.low and ratio.high:
            paired = f"{ratio.ratio:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
        rows.append(
            [
                name,
                f"{len(times)} of {len(runs)}",
                f"{statistics.median(times):.2f} s" if times else "-",
                f"{min(times):.2f} - {max(times):.2f} s" if times else "-",
                f"{ratio.ratio_of_medians:.2f}x" if ratio else ("1" if name == fast else "-"),
                paired,
                f"{sum(log.strict == 'pass' for log in logs)} of {len(logs)}",
                f"{sum(log.official == 'pass' for log in logs)} of {len(logs)}",
            ]
        )
    print("\nTime to train (unverified), interleaved runs on this machine")
    header = ["config", "reached", "median", "range", f"median / {fast}", "paired ratio [95 %]", "strict", "official"]
    print_table(header, rows)
    print(NOTICE)
    for name, runs in sets.items():
        for run in (one for one in runs if one.disturbances):
            print(printable(f"disturbed   {name}/{run.path.name}: {'; '.join(run.disturbances)}"))
    for slow, ratio in ratios.items():
        if ratio.disturbances:
            print(f"undisturbed {slow} / {fast}: {ratio.without_disturbed}")
    for result in checked:
        if result.failed:
            errors = [finding for finding in result.findings if finding.level == "error"]
            print("\n".join(result_lines(replace(result, findings=errors), Path.cwd())))
    print()


def print_package(report: package.PackageReport, folder: Path) -> None:
    verdicts = f"strict {report.strict}, official {report.official.verdict} by {report.official.checker}"
    print(f"package     {verdicts}: {folder}")
    if not report.passed:
        messages = (*report.official.messages, *map(str, report.findings))
        print("\n".join(f"    {printable(message)}" for message in messages))
