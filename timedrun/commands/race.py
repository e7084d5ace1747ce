"""`timedrun race`: interleaved runs of several configs, and the table, checks, package and figure made of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from mlevents.mlcommons import checker_version
from mlevents.rounds import MLPERF_RULESETS, ruleset
from timedrun import stdio
from timedrun.benchmark import Benchmark, BenchmarkSpec, find
from timedrun.commands.check import check_paths
from timedrun.commands.child_run import run_child, run_command
from timedrun.commands.show import print_table
from timedrun.config import RunConfig, dump
from timedrun.distributed.launch_env import LaunchEnv
from timedrun.errors import ExitCode, PreflightError, UsageError
from timedrun.preflight import checks
from timedrun.provenance.system_answers import read_answers
from timedrun.race import race_file
from timedrun.race.race_file import RACE_FILE, Comparison, Race, Turn, paths_of
from timedrun.race.report import Report
from timedrun.race.schedule import Start, plan_again, run_all, schedule, settle
from timedrun.race.sides import ablation, sides_of
from timedrun.run.worker import LaunchOptions
from timedrun.storage import ledger
from timedrun.storage.result_files import ResultPaths, new_folder, write_json
from timedrun.submission.check_report import CheckResult

OPTIONS = ("ranks", "threads", "data_folder", "checkpoint_minutes", "restarts", "answers")
"""Options that race.json holds for a race that is resumed."""


def race(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run, check, score, package, plot and compare; the last config is compared with each of the others.

    On SIGINT the current run ends as `timedrun run` does, and the report is made of the runs that finished.
    """
    known = arguments.resume or arguments.report
    if known and (arguments.benchmark or rest):
        raise UsageError("--resume and --report take the plan from race.json; leave out benchmark, configs, overrides.")
    if known:
        folder, planned = Path(known), race_file.load(Path(known))
        benchmark = find(planned.benchmark)
    else:
        folder, benchmark, planned = new_race(arguments, rest)
    for name, value in planned.options.items():
        setattr(arguments, name, Path(value) if name in ("data_folder", "answers") and value else value)
    with race_file.locked(folder):
        no_package = package_obstacle(benchmark.spec, planned)
        no_figure = "" if find_spec("matplotlib") else "matplotlib is missing; pip install 'timedrun[report]'"
        interrupted = False
        settle(planned, folder)
        if not arguments.report:
            notes(benchmark.spec, no_package, no_figure)
            if known:
                plan_again(planned, folder)
            interrupted = run_all(planned, folder, starter(arguments, benchmark, folder))
        report = Report(planned, folder)
        report.make(check_logs, "the race was interrupted" if interrupted else no_package, no_figure)
    if arguments.json:
        print((folder / RACE_FILE).read_text(), end="")
    else:
        print_report(report)
    if interrupted or any(turn.status in ("planned", "interrupted") for turn in planned.turns):
        stdio.message(f"timedrun race: not every run was made; continue with `timedrun race --resume {folder}`")
    return ExitCode.INTERRUPTED if interrupted else ExitCode.ERROR if report.failed else ExitCode.OK


def new_race(arguments: argparse.Namespace, rest: list[str]) -> tuple[Path, Benchmark, Race]:
    """Plan a race, find everything that would fail in it, and write its folder."""
    if not arguments.benchmark or not arguments.configs:
        raise UsageError("give a benchmark and configs, or --resume FOLDER or --report FOLDER of an earlier race.")
    benchmark = find(arguments.benchmark)
    sides = sides_of(benchmark, arguments.configs, arguments.data, rest)
    if arguments.ablate:
        if len(sides) != 1:
            raise UsageError(f"--ablate takes one config, not {len(sides)}; give the bare one with --base.")
        base = sides_of(benchmark, [arguments.base], arguments.data, []) if arguments.base else [None]
        sides, comparisons = ablation(sides[0], base[0])
    elif arguments.base:
        raise UsageError("--base is for --ablate; leave it out.")
    else:
        last = sides[-1]
        comparisons = [Comparison(row=side.label, slow=side.config.name, fast=last.config.name) for side in sides[:-1]]
    folder = new_folder(arguments.results, Path("runs") / benchmark.name, "race")
    options = {name: getattr(arguments, name) for name in OPTIONS}
    names = [side.config.name for side in sides]
    planned = Race(
        benchmark=benchmark.name,
        runs=arguments.runs,
        options={name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        sides={side.config.name: side.label for side in sides},
        comparisons=comparisons,
        ablation=arguments.ablate,
        turns=schedule(names, arguments.runs, arguments.first_seed, unpaired_seeds=arguments.unpaired_seeds),
    )
    require_possible(arguments, benchmark, [side.config for side in sides], planned, folder)
    (folder / "sides").mkdir(parents=True)
    ledger.place(folder).touch()  # one for all sets
    for side in sides:
        write_json(side_file(folder, side.config.name), dump(side.config))
    planned.save(folder)
    return folder, benchmark, planned


def require_possible(
    arguments: argparse.Namespace, benchmark: Benchmark, configs: Sequence[RunConfig], planned: Race, folder: Path
) -> None:
    """Raise PreflightError, with the faults of every side, unless each can run and there is room for all runs."""
    if arguments.answers:
        read_answers(arguments.answers)
    place = LaunchEnv.detect(arguments.ranks)
    last_seed = max(turn.seed for turn in planned.turns)
    failures: list[str] = []
    for config in configs:
        stdio.stage(f"timedrun race: checks of {planned.sides[config.name]}")
        options = LaunchOptions(
            paths=ResultPaths(folder / config.name, 0),
            threads=arguments.threads,
            data_folder=arguments.data_folder,
            checkpoint_minutes=arguments.checkpoint_minutes,
            restarts=arguments.restarts,
        )
        try:
            checks.check(benchmark, replace(config, seed=last_seed), options, place)
        except PreflightError as error:
            failures += [f"{planned.sides[config.name]}: {one}" for one in error.failures]
    failures = failures or checks.result_problems(ResultPaths(folder, 0), False, len(planned.turns))
    if failures:
        raise PreflightError(failures)


def package_obstacle(spec: BenchmarkSpec, planned: Race) -> str:
    """Return why the sides make no package, or "" if they make one."""
    rules = ruleset(spec.ruleset).benchmarks.get(spec.mlperf_benchmark)
    if spec.ruleset not in MLPERF_RULESETS or rules is None:
        return f"{spec.mlperf_benchmark} is not an MLPerf benchmark"
    if planned.ablation:
        return "the sides of an ablation are not packaged"
    few = f"MLPerf requires {rules.runs} runs per set, this race has {planned.runs} (use --runs {rules.runs})"
    return "" if planned.runs == rules.runs else few


def notes(spec: BenchmarkSpec, no_package: str, no_figure: str) -> None:
    """Say before the first run which parts of the report will be missing."""
    checker = checker_version() if spec.ruleset in MLPERF_RULESETS else ""
    missing = {
        "official verdicts": f"{checker}; pip install mlperf-logging" if "not installed" in checker else "",
        "package": no_package,
        "figure": no_figure,
    }
    for what, why in missing.items():
        if why:
            stdio.message(f"timedrun race: no {what}: {why}")


def side_file(folder: Path, side: str) -> Path:
    return folder / "sides" / f"{side}.json"


def starter(arguments: argparse.Namespace, benchmark: Benchmark, folder: Path) -> Start:
    """Return the function that runs a turn in a process of its own."""

    def start(turn: Turn, label: str) -> tuple[int, bool]:
        config, paths = str(side_file(folder, turn.side)), paths_of(folder, turn)
        command = run_command(arguments, benchmark.name, config, results=paths, label=label, ranks=arguments.ranks)
        code, _, interrupted = run_child([*command, "--seed", str(turn.seed)])
        return code, interrupted

    return start


def check_logs(paths: list[Path]) -> list[CheckResult]:
    return check_paths(paths, None, run_official=True)


def print_report(report: Report) -> None:
    stdio.show("\n" + "\n".join(stdio.fitted(line, 0) for line in report.caption()))
    print_table(*report.table())
    stdio.show("\n".join(report.details(Path.cwd())))
