"""`timedrun race`: configs run against each other, interleaved, from the first run to the table that compares them."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mlevents.record import read, result_files
from mlevents.rounds import MLPERF_RULESETS, ruleset
from mlevents.summary import RunSummary, summarize
from mlevents.terminal_escape import printable
from timedrun.benchmark import BenchmarkSpec, find
from timedrun.commands.check import Checked, check_paths, finding_line, verdict_line
from timedrun.commands.show import print_table
from timedrun.distributed import parent_death_signal
from timedrun.distributed.launcher import module_command
from timedrun.errors import ExitCode, TimedrunError, UsageError
from timedrun.run.worker import ROOT
from timedrun.storage.result_files import new_folder, write_json
from timedrun.submission import compare, plot
from timedrun.submission.packaging import package
from timedrun.submission.scoring import score


def race(arguments: argparse.Namespace) -> ExitCode:
    """Run, check, score, package, draw, compare. The last config named is compared with each of the others."""
    benchmark = find(arguments.benchmark)
    configs = [benchmark.config(name, arguments.data) for name in arguments.configs]
    names = [config.name for config in configs]
    if len(set(names)) != len(names):
        raise UsageError(f"a config can race only once: {', '.join(names)}.")
    folder = new_folder(arguments.results, Path("runs") / benchmark.name, "race")
    for number, round_names in enumerate(interleaved(names, arguments.runs)):
        for name in round_names:
            run_one(arguments, name, folder / name, number, arguments.first_seed + number)
    sets = {name: [summarize(read(path)) for path in result_files(folder / name)] for name in names}
    figure = folder / "quality_over_time.png"
    plot.plot_quality(sets, figure)
    spec = benchmark.spec
    asked = runs_asked_for(spec)
    report = None
    if arguments.runs == asked and spec.ruleset in MLPERF_RULESETS:
        organization = configs[0].submission.organization
        report = package.package(
            [folder / name for name in names], folder / "package", submitter=organization, source=ROOT
        )
    checked = check_paths([folder / name for name in names], None, run_official=True)
    ratios = compared(sets)
    write_json(
        folder / "race.json",
        {
            "runs_seconds": {name: [seconds(one) for one in runs] for name, runs in sets.items()},
            "ratios": {f"{slow} / {names[-1]}": asdict(ratio) for slow, ratio in ratios.items()},
            "verdicts": [asdict(one) for one in checked],
            "package": {"official": report.official.verdict, "strict": report.strict}
            if report
            else not_packaged(spec, arguments.runs),
            "notice": score.NOTICE,
        },
    )
    if arguments.json:
        print((folder / "race.json").read_text(), end="")
    else:
        print_report(sets, ratios, checked, report, folder, figure)
        if report is None:
            print(f"package     {not_packaged(spec, arguments.runs)}")
    unfit = report is not None and not report.passed
    failed = unfit or any(one.failed for one in checked) or len(ratios) < len(names) - 1
    return ExitCode.ERROR if failed else ExitCode.OK


def runs_asked_for(spec: BenchmarkSpec) -> int:
    """How many runs a set of this benchmark has by its round's rules."""
    return ruleset(spec.ruleset).benchmarks[spec.mlperf_benchmark].runs


def not_packaged(spec: BenchmarkSpec, runs: int) -> str:
    """Why a race of so many runs a set makes no package."""
    if spec.ruleset not in MLPERF_RULESETS:
        return f"not made: {spec.mlperf_benchmark} is no benchmark of MLPerf"
    return f"not made: a set has {runs} runs, MLPerf's rules ask for {runs_asked_for(spec)}"


def interleaved(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The order of configs in each round, turned round every time (A B, B A, A B ...), so that a machine that slows
    down or speeds up favours none."""
    return [list(names if number % 2 == 0 else reversed(names)) for number in range(rounds)]


def run_one(arguments: argparse.Namespace, name: str, folder: Path, number: int, seed: int) -> None:
    """One run in a process of its own, its progress shown.

    Raises:
        TimedrunError: it was aborted or stopped (a target not reached is a result and goes on).
    """
    command = [
        *module_command("timedrun", "run", arguments.benchmark, name),
        *("--results", str(folder), "--number", str(number), "--seed", str(seed)),
        *(
            "--ranks",
            str(arguments.ranks),
            "--threads",
            str(arguments.threads),
            "--label",
            f"{name} {number + 1}/{arguments.runs}",
        ),
    ]
    command += ["--checkpoint-minutes", str(arguments.checkpoint_minutes), "--restarts", str(arguments.restarts)]
    if arguments.data_folder:
        command += ["--data-folder", arguments.data_folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=parent_death_signal.environment()) as run:
        try:
            run.wait()
        except KeyboardInterrupt:  # the run has it too and stops in its own way
            run.wait()
            raise
    if run.returncode not in (ExitCode.OK, ExitCode.TARGET_NOT_REACHED):
        raise TimedrunError(f"run {number} of {name} ended with exit code {run.returncode}; see {folder}.")


def seconds(run: RunSummary) -> float | None:
    """Time to train in seconds, None where the target was not reached."""
    return run.minutes * 60 if score.reached(run) and run.minutes is not None else None


def compared(sets: dict[str, list[RunSummary]]) -> dict[str, compare.Ratio]:
    """How much sooner the last set reaches the target than each of the others, paired by round; where a set cannot be
    compared, why is said on standard error."""
    fast = list(sets)[-1]
    ratios = {}
    for slow in list(sets)[:-1]:
        try:
            ratios[slow] = compare.compare_sets(sets[slow], sets[fast], paired=True)
        except compare.NotComparable as error:
            print(f"{slow} against {fast}: {error}", file=sys.stderr)
    return ratios


def print_report(
    sets: dict[str, list[RunSummary]],
    ratios: dict[str, compare.Ratio],
    checked: list[Checked],
    report: package.PackageReport | None,
    folder: Path,
    figure: Path,
) -> None:
    """The one table of a race, its verdicts, and where everything lies."""
    fast = list(sets)[-1]
    rows = []
    for name, runs in sets.items():
        times = [time for run in runs if (time := seconds(run)) is not None]
        mine = [one for one in checked if Path(one.path).parent == folder / name]
        ratio = ratios.get(name)
        rows.append(
            [
                name,
                f"{len(times)} of {len(runs)}",
                f"{statistics.median(times):.2f} s" if times else "-",
                f"{min(times):.2f} - {max(times):.2f} s" if times else "-",
                f"{ratio.ratio_of_medians:.2f}x" if ratio else ("1" if name == fast else "-"),
                f"{ratio.ratio:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
                if ratio and ratio.low and ratio.high
                else "-",
                f"{sum(one.strict == 'pass' for one in mine)} of {len(mine)}",
                f"{sum(one.official == 'pass' for one in mine)} of {len(mine)}",
            ]
        )
    print("\nTime to train (unverified), interleaved runs on this machine")
    print_table(
        ["config", "reached", "median", "range", f"median / {fast}", "paired ratio [95 %]", "strict", "official"], rows
    )
    print(score.NOTICE)
    for one in checked:
        if one.failed:
            print(verdict_line(one))
            for finding in one.findings:
                if finding.level == "error":
                    print(f"    {finding_line(finding, one.path)}")
    print()
    if report is not None:
        verdicts = f"strict {report.strict}, official {report.official.verdict} by {report.official.checker}"
        print(f"package     {verdicts}: {folder / 'package'}")
        if not report.passed:
            said = (*report.official.messages, *map(str, report.findings))
            print("\n".join(f"    {printable(message)}" for message in said))
    print(f"figure      {figure}")
    print(f"logs        {folder}/<config>/result_N.txt, each with run_N/ beside it; figures of this table in race.json")
