"""A benchmark package: its task and rules as data, its modules, and the search for it by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from judging.ground.errors import UsageError
from mlevents.rounds import BenchmarkRules, ruleset, rulesets_of
from mlevents.rounds.own_rules import BEYOND_MLPERF
from mlevents.rounds.own_rules import benchmark_rules as benchmark_rules
from timedrun.runner.storage.benchmark_folders import (
    SHIPPED,
    config_docstrings,
    folders_in,
    nearby,
    package_text,
    parts_of,
    put_here_last,
    put_shipped_first,
)

if TYPE_CHECKING:  # `timedrun show` does not wait for torch
    from timedrun.runner.config import RunConfig

UNUSED: Final[dict[str, Any]] = {"micro_batch": 0, "precision": "fp32", "compile": False, "methods": ()}
"""Settings of every config that a training loop has to implement, and their values that need nothing of it."""

EVERYTHING: Final = frozenset({*UNUSED, "ranks"})
"""What a benchmark can support: the settings of `UNUSED`, and several ranks."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSpec:
    """Name, rules and data of one benchmark. It has either the rules of an MLPerf round, by `mlperf_benchmark` and
    `ruleset`, or its `own_rules`.

    Raises:
        ValueError: no or unknown rules, a unit that no run counts, an unknown name in `supports`.
    """

    title: str
    mlperf_benchmark: str = ""
    """MLPerf's own short name, as in `submission_benchmark`: "resnet", "bert"; with `own_rules` their name."""
    ruleset: str = BEYOND_MLPERF
    """The ruleset of the round that has this task, such as "2.0.0"."""
    own_rules: BenchmarkRules | None = None
    """Of a benchmark outside of MLPerf: `benchmark_rules(...)`. Each log records them."""
    default_data: str
    """The dataset that needs no download; `run` uses it if `--data` is not given."""
    supports: frozenset[str] = frozenset()
    """The settings of `EVERYTHING` that the training loop implements; a run with any other is refused."""

    def __post_init__(self) -> None:
        if self.own_rules is not None:
            if known := rulesets_of(self.own_rules.name):
                raise ValueError(f"ruleset {known[-1]} has rules for {self.own_rules.name}; use another name")
            object.__setattr__(self, "mlperf_benchmark", self.own_rules.name)
            object.__setattr__(self, "ruleset", BEYOND_MLPERF)
        if self.rules.unit not in ("epoch", "samples"):
            raise ValueError(
                f"a run counts epochs or samples, but the rules of {self.rules.name} count {self.rules.unit}"
            )
        if unknown := self.supports - EVERYTHING:
            raise ValueError(f"supports has {', '.join(sorted(unknown))}; known: {', '.join(sorted(EVERYTHING))}")

    @property
    def rules(self) -> BenchmarkRules:
        """The benchmark's rules: target, metric, direction, number of runs."""
        rules = self.own_rules or ruleset(self.ruleset).benchmarks.get(self.mlperf_benchmark)
        if rules is None:
            raise ValueError(
                f"ruleset {self.ruleset} has no {self.mlperf_benchmark!r}; give own_rules=benchmark_rules(...)"
            )
        return rules

    def reached(self, value: float, target: float) -> bool:
        """Return True if `value` of the metric reaches `target`. NaN reaches no target."""
        return value >= target if self.rules.direction == ">=" else value <= target

    def unsupported(self, config: RunConfig, ranks: int) -> list[str]:
        """Return an error message for each setting of `config`, and for several `ranks`, that the training loop does
        not implement: it would be recorded, and nothing else."""
        used = {name: getattr(config, name) for name, unused in UNUSED.items() if getattr(config, name) != unused}
        if "methods" in used:
            used["methods"] = ", ".join(method.name for method in used["methods"])
        if ranks > 1:
            used["ranks"] = ranks
        return [
            f"{name} is {value}, which the training loop of {config.benchmark} does not implement; leave it out, or"
            f' implement it and add "{name}" to supports of its SPEC.'
            for name, value in used.items()
            if name not in self.supports
        ]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark package: `SPEC` in its `__init__.py`, configs as functions `<data>_<name>() -> RunConfig` in
    `configs.py`, and the modules that `timedrun.runner.benchmark_modules` describes."""

    name: str
    """Import name, such as "image_classification"."""
    spec: BenchmarkSpec
    package: ModuleType
    configs: str = "configs"
    """Module of `package` with the configs."""

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self.package.__name__}.{name}")

    def hook(self, module: str, function: str) -> Callable[..., Any] | None:
        """Return a function of a submodule, or None if the benchmark does not have it."""
        if importlib.util.find_spec(f"{self.package.__name__}.{module}") is None:
            return None
        hook: Callable[..., Any] | None = getattr(self.module(module), function, None)
        return hook

    @cached_property
    def config_names(self) -> dict[str, str]:
        """The docstring of every config by its name `<data>_<name>`, in file order, read without importing it."""
        return config_docstrings(self.name, Path(self.package.__path__[0]))

    def config(self, name: str, data: str | None = None) -> RunConfig:
        """Build the config that `config_name` names."""
        full = self.config_name(name, data)
        config: RunConfig = getattr(self.module(self.configs), full)()
        if config.name != full:
            raise UsageError(f"{self.name}: config {full}() is named '{config.name}'; make them equal.")
        if not self.is_named(config.benchmark):
            raise UsageError(
                f"{self.name}: config {full}() is of benchmark={config.benchmark!r}, whose results its own"
                f" would be taken for; nothing was run. Set benchmark={self.name!r} in its {self.configs}.py."
            )
        return config

    def config_name(self, name: str, data: str | None = None) -> str:
        """Return the name of the config `<data>_<name>`, or of the one with the full name `name`, without importing
        torch. Raises UsageError, with the nearest names, if there is none."""
        wanted, names = f"{data or self.spec.default_data}_{name}", self.config_names
        if full := next((each for each in (wanted, name) if each in names), ""):
            return full
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.8)
        near = near or difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        of_data = f" of --data {data}" if data else ""
        raise UsageError(f"{self.name} has no config '{name}'{of_data}.{hint} Configs: {', '.join(names)}.")

    def is_named(self, name: object) -> bool:
        """Return True if `name` is the import name or an end of it."""
        return f".{self.name}".endswith(f".{name}")

    def require_own(self, values: dict[str, Any], path: Path) -> None:
        """Raise UsageError unless the config `values`, read from `path`, is of this benchmark.

        The name in the file is only compared: no package is imported because a file names it.
        """
        named = values.get("benchmark")
        if not self.is_named(named) and named != self.name.partition(".")[0]:
            raise UsageError(
                f"{path} is a config of benchmark {named!r}, not of {self.name}; nothing was run. Name its benchmark."
            )

    def train(self, config: RunConfig, run: Any) -> None:
        self.module("train").train(config, run)

    def plan(self, config: RunConfig, ranks: Any, data_folder: Path | None) -> Any:
        """Return the Plan of the benchmark's `run_info.plan`; raise UsageError if it has none."""
        function = self.hook("run_info", "plan")
        if function is None:
            raise UsageError(f"{self.name}.run_info has no plan(config, ranks, data_folder); add it for a dry run.")
        return function(config, ranks, data_folder)


def find(name: str, *, working_directory: bool = False) -> Benchmark:
    """Import the benchmark package `name`: an import path, or the last component of a name that `nearby` lists.

    A package is not imported before its `__init__.py` is known to mention a SPEC: other people's configs name some.

    Args:
        working_directory: search it too, after the import path: for a name that the user gave. A name that a file
            holds imports nothing from there.

    Raises:
        UsageError: no such package, it cannot be imported or has no SPEC, or several nested benchmarks have this name.
    """
    top = name.partition(".")[0]
    if top in SHIPPED and top not in sys.modules:
        put_shipped_first(top)
    if working_directory and any(folder.name == top for folder in folders_in(Path.cwd())):
        put_here_last()
    package_name, spec_name, configs = parts_of(name)
    text = package_text(package_name)
    if text is None:
        known = nearby()
        nested = [path for path in known if path.rpartition(".")[2] == name]
        if len(nested) == 1 and nested != [name]:
            return find(nested[0], working_directory=working_directory)
        ends = {"bert": "language_model", "resnet": "image_classification"}  # MLPerf's names of their tasks
        ends |= {end: path for path in known for end in (path.rpartition(".")[2], path)}
        near = nested or [ends[end] for end in difflib.get_close_matches(name, ends, n=1, cutoff=0.5)]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        if name in known:
            hint = f" It is in {known[name].parent}: set PYTHONPATH={known[name].parent}, or install it."
        elif not near:
            way = "run this in the folder that holds it, " if working_directory else ""
            hint = f" If it is your own, {way}set PYTHONPATH to the folder that holds it, or install it."
        raise UsageError(f"no benchmark package '{name}' on the import path.{hint} Benchmarks: {', '.join(known)}.")
    try:
        package = importlib.import_module(package_name) if "SPEC" in text else None
    except Exception as error:
        raise UsageError(
            f"benchmark package '{name}' cannot be imported ({type(error).__name__}: {error}); nothing was run."
        ) from error
    spec = getattr(package, spec_name, None)
    if package is None or not isinstance(spec, BenchmarkSpec):
        raise UsageError(
            f"package '{name}' is not a benchmark: its __init__.py defines no SPEC"
            " (a timedrun.runner.benchmark.BenchmarkSpec)."
        )
    return Benchmark(name, spec, package, configs)
