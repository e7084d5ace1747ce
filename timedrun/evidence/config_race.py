"""Races of configs: what makes their sides, what is checked before the first run, and what starts the runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from judging.ground import stdio
from judging.ground.errors import PreflightError
from judging.ground.result_files import ResultPaths, new_folder, read_json
from mlevents.rounds import MLPERF_RULESETS
from timedrun.evidence.config_sides import ConfigSide, ablation, sides_of
from timedrun.evidence.preflight import checks, machine_checks
from timedrun.evidence.warm_parent import WarmParent
from timedrun.methods.training import number_formats
from timedrun.racing.child_run import run_child
from timedrun.racing.plan import RacePlan, Rounds
from timedrun.racing.race_file import ALONE, PROFILES, Comparison, Race, Turn, paths_of, side_file
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.method_reference import class_of
from timedrun.runner.process.launch_env import Launch, LaunchEnv, module_command
from timedrun.runner.provenance.system_answers import read_answers
from timedrun.runner.run.worker import LaunchOptions
from timedrun.runner.storage.method_sources import changes_naming, own_methods


@dataclass(frozen=True, kw_only=True)
class ConfigRequest:
    """Request for a race of configs, a sweep or a tuning of them."""

    verb: str
    benchmark: str
    configs: Sequence[str]
    data: str | None = None
    overrides: Sequence[str] = ()
    ablate: bool = False
    rounds: Rounds
    results: str | None = None
    launch: Launch = field(default_factory=Launch)
    answers: Path | None = None

    def find(self) -> Benchmark:
        return find(self.benchmark, working_directory=True)

    def sides(self, benchmark: Benchmark, overrides: Sequence[str] | None = None) -> list[ConfigSide]:
        return sides_of(benchmark, self.configs, self.data, self.overrides if overrides is None else overrides)


def new_race(request: ConfigRequest, parent: WarmParent | None) -> tuple[Path, Race]:
    """Plan a race of the last config with each of the others, find what would fail in it, and write its folder."""
    benchmark = request.find()
    sides = request.sides(benchmark)
    if request.ablate:
        sides, comparisons = ablation(sides)
    else:
        names = [side.config.name for side in sides]
        comparisons = [Comparison(row=side.label, slow=side.config.name, fast=names[-1]) for side in sides[:-1]]
    spec, runs = benchmark.spec, request.rounds.runs
    by = "MLPerf requires" if spec.ruleset in MLPERF_RULESETS else "its rules require"
    most = "at most " * request.rounds.until_decided
    few = f"{by} {spec.rules.runs} runs per set, this race has {most}{runs} (use --runs {spec.rules.runs})"
    no_package = "for an ablation" if request.ablate else few if runs != spec.rules.runs else ""
    return planned_race(
        request, benchmark, sides, parent, comparisons=comparisons, ablation=request.ablate, no_package=no_package
    )


def planned_race(
    request: ConfigRequest, benchmark: Benchmark, sides: Sequence[ConfigSide], parent: WarmParent | None, **plan: Any
) -> tuple[Path, Race]:
    """Write the folder of a new race of `sides`, of the fields `plan`, and return it with the race. Raises
    PreflightError if a run could not finish."""
    emulated = {
        side.config.name: number_formats.described(side.config.precision)
        for side in sides
        if number_formats.emulated(side.config.precision, side.config.device)
    }
    options = request.launch.recorded() | {"answers": request.answers and str(request.answers)}
    facts = {"benchmark": benchmark.name, "options": options, "emulated": emulated, **plan}
    planned = RacePlan.of([side.planned for side in sides], request.rounds, **facts)
    if parent:
        expect(parent, benchmark.name, [side.settings for side in planned.sides])
    require_possible(request, benchmark, sides, planned.race)
    return planned.make_folder(request.results), planned.race


def require_possible(request: ConfigRequest, benchmark: Benchmark, sides: Sequence[ConfigSide], race: Race) -> None:
    """Raise PreflightError, with the faults of every side, unless each can run and there is room for all runs."""
    if request.answers:
        read_answers(request.answers)
    folder = new_folder(request.results, Path("runs") / benchmark.name, request.verb)
    place = LaunchEnv.detect(request.launch.ranks)
    last_seed = max(turn.seed for turn in race.turns)
    failures: list[str] = []
    for side in sides:
        stdio.stage(f"timedrun {request.verb}: checks of {side.label}")
        options = LaunchOptions(paths=ResultPaths(folder / side.config.name, 0), **vars(request.launch))
        try:
            checks.check(benchmark, replace(side.config, seed=last_seed), options, place)
        except PreflightError as error:
            failures += [f"{side.label}: {failure}" for failure in error.failures]
    failures = failures or machine_checks.result_problems(ResultPaths(folder, 0), False, len(race.turns))
    if failures:
        raise PreflightError(failures)


def go_on(race: Race, folder: Path, parent: WarmParent | None, *, benchmark_named: bool) -> None:
    """Let `parent` import what the runs that are left need. Raises UsageError unless the user named what they would run
    of the working directory: its benchmark, and methods of their own. A name in race.json runs no code."""
    find(race.benchmark, working_directory=benchmark_named)
    configs = [read_json(side_file(folder, side)) for side in race.sides]
    for config in configs:
        for reference, sha256 in own_methods(config).items():
            class_of(reference, sha256)
    if parent:
        expect(parent, race.benchmark, configs)


@dataclass(frozen=True, kw_only=True)
class ConfigRuns:
    """Runs of sides that are configs, each `timedrun run BENCHMARK sides/NAME.json`; `parent` forks those on a CPU."""

    benchmark: str
    folder: Path
    launch: Launch
    parent: WarmParent | None

    def config(self, side: str) -> str:
        """Return the config of a side as a command line names it, with the methods that the user named here."""
        file = side_file(self.folder, side)
        return f"{file}{changes_naming(read_json(file))}"

    def start(self, turn: Turn, label: str) -> tuple[int, int]:
        """Run a turn to its end; return the exit code, and the signal that came, or 0."""
        config, results = self.config(turn.side), paths_of(self.folder, turn)
        command = self.launch.run_command(self.benchmark, config, results, turn.seed)
        code, _, interrupted = run_child(command, label, parent=self.parent_of(turn.side))
        return code, interrupted

    def parent_of(self, *sides: str) -> WarmParent | None:
        """Return what forks runs of `sides`, None if they are started: several ranks have an agent."""
        alone = self.launch.ranks == 1 and not self.launch.restarts
        return self.parent if alone and all(on_cpu(read_json(side_file(self.folder, side))) for side in sides) else None


def on_cpu(settings: Mapping[str, Any]) -> bool:
    return settings["device"] == "cpu" or not torch.cuda.is_available()


def expect(parent: WarmParent, benchmark: str, configs: Sequence[Mapping[str, Any]]) -> None:
    """Let `parent` import what runs of `configs` need, or end it if all are on a GPU, whose runs are not forked."""
    on_processor = [config for config in configs if on_cpu(config)]
    for config in on_processor:
        parent.expect(benchmark, dict(config))
    if not on_processor:
        parent.close()


def profile_methods(runs: ConfigRuns, race: Race) -> int:
    """Profile the bare config and each method alone, from which the report predicts what the methods give together;
    return the signal that came meanwhile, or 0. One process is profiled, so several ranks have no prediction."""
    if runs.launch.ranks > 1:
        return 0
    alone = [comparison.fast for comparison in race.comparisons if comparison.row.endswith(ALONE)]
    sides = [race.comparisons[0].slow, *alone]
    options = f"--evaluation --steps 6 --json --threads {runs.launch.threads}".split()
    options += ["--data-folder", str(runs.launch.data_folder)] if runs.launch.data_folder else []
    command = module_command("timedrun", "profile", race.benchmark, *map(runs.config, sides))
    command += ["--out", str(runs.folder / PROFILES), *options]
    stdio.message("timedrun race: a profile of each method alone, to predict what they give together")
    code, _, interrupted = run_child(command, parent=runs.parent_of(*sides))
    if code and not interrupted:
        stdio.message(f"timedrun race: no prediction, since the profile failed (exit code {code}); the race goes on")
    return interrupted
