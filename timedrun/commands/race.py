"""`timedrun race`: interleaved runs of several configs, and the table, checks, package and figure made of them."""

import argparse
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from judging.ground import ledger, stdio
from judging.ground.errors import ExitCode, PreflightError, UsageError
from judging.ground.result_files import ResultPaths, make_new_folder, new_folder, read_json, write_json
from mlevents.rounds import MLPERF_RULESETS
from timedrun.benchmark import Benchmark, find
from timedrun.commands.child_run import run_child, run_command
from timedrun.commands.chosen_config import take_configs
from timedrun.commands.conduct import conduct, known_race, verdict_options
from timedrun.commands.warm_runs import WarmParent
from timedrun.config import dump
from timedrun.config_choice import changes_of
from timedrun.distributed.launch_env import LaunchEnv, module_command
from timedrun.methods.reference import class_of
from timedrun.preflight import checks, machine_checks
from timedrun.provenance.system_answers import read_answers
from timedrun.racing.race_file import ALONE, COMMANDS, CONTROL, PROFILES, Comparison, Race, Turn, paths_of, side_file
from timedrun.racing.schedule import schedule
from timedrun.racing.sides import Side, ablation, sides_of
from timedrun.racing.tuning_report import TuningReport
from timedrun.run.worker import LaunchOptions
from timedrun.storage.method_sources import changes_naming, own_methods
from timedrun.training import number_formats

OPTIONS = ("ranks", "threads", "data_folder", "checkpoint_minutes", "restarts", "emulated_precision", "answers")
"""Options that race.json holds for a race that is resumed."""


def race(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Run, check, score, package, plot and compare; the last config is compared with each of the others. On SIGINT the
    current run ends as `timedrun run` does, and the report is made of the runs that finished."""
    return race_of_configs(arguments, rest, new_race)


def race_of_configs(
    arguments: argparse.Namespace,
    rest: list[str],
    new: Callable[..., tuple[Path, Race]],
    report_of: Callable[[Path, Race], TuningReport] | None = None,
) -> ExitCode:
    """Run a race that `new` plans, or the one of --resume or --report, and report on it; a tuning by `report_of`."""
    rest = take_configs(arguments, rest)
    known = arguments.resume or arguments.report
    if not known and not (arguments.benchmark and arguments.configs):
        raise UsageError("name a benchmark and configs, or the folder of a race with --resume or --report.")
    if known and (rest or not all(word.startswith("+") for word in arguments.configs)):
        raise UsageError(
            "--resume and --report take the plan from race.json; leave out configs and overrides, but name methods of"
            " the working directory (+module:Class)."
        )
    for word in arguments.configs if known else ():
        changes_of(word)
    folder, planned = (Path(known), known_race(arguments, Path(known))) if known else new(arguments, rest)
    if planned.benchmark == COMMANDS:
        option = "resume" if arguments.resume else "report"
        raise UsageError(f"{known} is a race of commands: `timedrun {planned.verb} {COMMANDS} --{option} {known}`.")
    if bool(planned.tuning) != bool(report_of):
        verb = "tune" if planned.tuning else "race"
        raise UsageError(f"{known} is of another verb: `timedrun {verb} --resume {known}`.")
    if known and arguments.benchmark not in (None, planned.benchmark):
        raise UsageError(f"{known} is a race of {planned.benchmark}, not of {arguments.benchmark}; nothing was run.")
    if arguments.resume:  # code of the working directory runs only if the user names it, not for a name in race.json
        find(planned.benchmark, working_directory=arguments.benchmark is not None)
        for side in planned.sides:
            for reference, sha256 in own_methods(read_json(side_file(folder, side))).items():
                class_of(reference, sha256)
    for name, value in planned.options.items():
        if name != "data_folder" or value is not None:
            setattr(arguments, name, value)

    parent: WarmParent | None = getattr(arguments, "parent", None)
    if parent and arguments.resume:
        expect(parent, planned.benchmark, [read_json(side_file(folder, side)) for side in planned.sides])
    if planned.ablation and not known and (interrupted := profile_methods(arguments, folder, planned, parent)):
        stdio.message(f"timedrun race: no run was made; start with `timedrun race --resume {shlex.quote(str(folder))}`")
        return ExitCode(128 + interrupted)

    def start(turn: Turn, label: str) -> tuple[int, int]:
        file, paths = side_file(folder, turn.side), paths_of(folder, turn)
        settings, ranks = read_json(file), arguments.ranks
        config = f"{file}{changes_naming(settings)}"
        command = run_command(arguments, planned.benchmark, config, results=paths, label=label, ranks=ranks)
        forks = on_cpu(settings) and ranks == 1 and not arguments.restarts  # several ranks have an agent
        code, _, interrupted = run_child([*command, "--seed", str(turn.seed)], parent=parent if forks else None)
        return code, interrupted

    return conduct(arguments, folder, planned, start, report_of(folder, planned) if report_of else None)


def on_cpu(settings: Mapping[str, Any]) -> bool:
    return settings["device"] == "cpu" or not torch.cuda.is_available()


def expect(parent: WarmParent, benchmark: str, configs: Sequence[dict[str, Any]]) -> None:
    """Let `parent` import what runs of `configs` need, or end it if all are on a GPU, whose runs are not forked."""
    on_processor = [config for config in configs if on_cpu(config)]
    for config in on_processor:
        parent.expect(benchmark, config)
    if not on_processor:
        parent.close()


def profile_methods(arguments: argparse.Namespace, folder: Path, planned: Race, parent: WarmParent | None) -> int:
    """Profile the bare config and each method alone, from which the report predicts what the methods give together;
    return the signal that came meanwhile, or 0. One process is profiled, so several ranks have no prediction."""
    if arguments.ranks > 1:
        return 0
    alone = [comparison.fast for comparison in planned.comparisons if comparison.row.endswith(ALONE)]
    files = [side_file(folder, side) for side in (planned.comparisons[0].slow, *alone)]
    settings = [read_json(file) for file in files]
    configs = [f"{file}{changes_naming(of)}" for file, of in zip(files, settings, strict=True)]
    options = f"--evaluation --positions 3 --steps 10 --skip 3 --json --threads {arguments.threads}".split()
    options += ["--data-folder", str(arguments.data_folder)] if arguments.data_folder else []
    options += ["--emulated-precision"] if arguments.emulated_precision else []
    command = module_command("timedrun", "profile", planned.benchmark, *configs, "--out", str(folder / PROFILES))
    stdio.message("timedrun race: a profile of each method alone, to predict what they give together")
    code, _, interrupted = run_child([*command, *options], parent=parent if all(map(on_cpu, settings)) else None)
    if code and not interrupted:
        stdio.message(f"timedrun race: no prediction, since the profile failed (exit code {code}); the race goes on")
    return interrupted


def new_race(arguments: argparse.Namespace, rest: list[str]) -> tuple[Path, Race]:
    """Plan a race, find everything that would fail in it, and write its folder."""
    benchmark = find(arguments.benchmark, working_directory=True)
    sides = sides_of(benchmark, arguments.configs, arguments.data, rest)
    if arguments.ablate:
        if len(sides) != 1:
            raise UsageError(f"--ablate takes one config, not {len(sides)}; name the one to extend with --base.")
        base = sides_of(benchmark, [arguments.base], arguments.data, [])[0] if arguments.base else None
        sides, comparisons = ablation(sides[0], base)
    elif arguments.base:
        raise UsageError("--base requires --ablate; leave it out.")
    else:
        names = [side.config.name for side in sides]
        comparisons = [Comparison(row=side.label, slow=side.config.name, fast=names[-1]) for side in sides[:-1]]
    spec, needed = benchmark.spec, benchmark.spec.rules.runs
    by = "MLPerf requires" if spec.ruleset in MLPERF_RULESETS else "its rules require"
    few = f"{by} {needed} runs per set, this race has {arguments.runs} (use --runs {needed})"
    no_package = "for an ablation" if arguments.ablate else "" if arguments.runs == needed else few
    options = verdict_options(arguments, len(sides))
    if arguments.control:
        if CONTROL in [side.config.name for side in sides]:
            raise UsageError(f"--control writes a folder {CONTROL}, which a config is named; rename the config.")
        sides.append(Side(label=f"{sides[0].label} (control)", config=replace(sides[0].config, name=CONTROL)))
    plan = {"comparisons": comparisons, "ablation": arguments.ablate, "no_package": no_package, **options}
    return planned_race(arguments, benchmark, sides, **plan)


def planned_race(
    arguments: argparse.Namespace, benchmark: Benchmark, sides: Sequence[Side], **plan: Any
) -> tuple[Path, Race]:
    """Write the folder of a new race of `sides` and return it with the race, of the fields `plan`. Raises
    PreflightError if a run could not finish."""
    folder = new_folder(arguments.results, Path("runs") / benchmark.name, arguments.verb)
    options = {name: getattr(arguments, name, None) for name in OPTIONS}
    if str(arguments.data_folder) == os.environ.get("TIMEDRUN_DATA"):
        options["data_folder"] = None  # of this machine; a resumption takes the variable again
    names = [side.config.name for side in sides]
    planned = Race(
        benchmark=benchmark.name,
        runs=arguments.runs,
        options={name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        sides={side.config.name: side.label for side in sides},
        tuned={side.config.name: side.tuned for side in sides if side.tuned},
        turns=schedule(
            [name for name in names if name != plan.get("control")],
            arguments.runs,
            arguments.first_seed,
            unpaired_seeds=arguments.unpaired_seeds,
            control=getattr(arguments, "control", 0),
        ),
        **plan,
    )
    if parent := getattr(arguments, "parent", None):
        expect(parent, benchmark.name, [dump(side.config) for side in sides])
    require_possible(arguments, benchmark, sides, planned, folder)
    folder = make_new_folder(arguments.results, folder.parent, arguments.verb)
    (folder / "sides").mkdir()
    ledger.place(folder).touch()  # one for all sets
    for side in sides:
        write_json(side_file(folder, side.config.name), dump(side.config))
        if number_formats.emulated(side.config.precision, side.config.device):
            planned.emulated[side.config.name] = number_formats.described(side.config.precision)
    return folder, planned


def require_possible(
    arguments: argparse.Namespace, benchmark: Benchmark, sides: Sequence[Side], planned: Race, folder: Path
) -> None:
    """Raise PreflightError, with the faults of every side, unless each can run and there is room for all runs."""
    if getattr(arguments, "answers", None):
        read_answers(arguments.answers)
    place = LaunchEnv.detect(arguments.ranks)
    last_seed = max(turn.seed for turn in planned.turns)
    failures: list[str] = []
    for side in sides:
        stdio.stage(f"timedrun {arguments.verb}: checks of {side.label}")
        options = LaunchOptions(
            paths=ResultPaths(folder / side.config.name, 0),
            threads=arguments.threads,
            data_folder=arguments.data_folder,
            checkpoint_minutes=arguments.checkpoint_minutes,
            restarts=arguments.restarts,
            emulated_precision=arguments.emulated_precision,
        )
        try:
            checks.check(benchmark, replace(side.config, seed=last_seed), options, place)
        except PreflightError as error:
            failures += [f"{side.label}: {failure}" for failure in error.failures]
    failures = failures or machine_checks.result_problems(ResultPaths(folder, 0), False, len(planned.turns))
    if failures:
        raise PreflightError(failures)
