"""The interface between timedrun and a benchmark package, and the search for benchmarks by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mlevents.rounds.own_rules import benchmark_rules as benchmark_rules
from timedrun.benchmark_spec import EVERYTHING as EVERYTHING
from timedrun.benchmark_spec import BenchmarkSpec as BenchmarkSpec
from timedrun.errors import UsageError
from timedrun.storage.benchmark_folders import (
    SHIPPED,
    config_docstrings,
    folders_in,
    installed,
    nearby,
    on_path,
    package_text,
    put_shipped_first,
)

if TYPE_CHECKING:  # `timedrun list` does not wait for torch
    from torch import Tensor, nn

    from timedrun.analysis.loader_benchmark import BenchOptions, LoaderComparison
    from timedrun.config import RunConfig
    from timedrun.distributed.process_group import ProcessGroup
    from timedrun.preflight.plan import Plan
    from timedrun.run.timed_run import TimedRun

ConfigT = TypeVar("ConfigT", bound="RunConfig", contravariant=True)
"""The benchmark's own subclass of `RunConfig`."""


class TrainModule(Protocol[ConfigT]):
    """`train.py`, required: the timed run."""

    def train(self, config: ConfigT, run: TimedRun) -> None:
        """Train to `config.evaluation.target` or to the end of the schedule: build, `run.track`, `run.warm_up`,
        `run.start_clock`, and only then read data."""


class RunInfoModule(Protocol[ConfigT]):
    """`run_info.py`, needed by `preflight`: the metadata that `train` logs before the clock starts."""

    def plan(self, config: ConfigT, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
        """Return the run info and the length of a run from a model on the meta device; sizes of data that are missing
        are those the benchmark declares."""


class DatasetsModule(Protocol[ConfigT]):
    """`datasets.py`, optional: the data before and after the run."""

    def preflight(self, config: ConfigT, folder: Path | None, ranks: int) -> list[str]:
        """Return an error message for each fault of `config` and its data, without reading a sample."""

    def data_digest(self, config: ConfigT, folder: Path | None) -> dict[str, str]:
        """Return the "sha256" of the data and a description "of" what it covers. Called after run_stop: it may read
        the data."""


class HardwareModule(Protocol[ConfigT]):
    """`datasets.py` of a benchmark with requirements on the device, optional."""

    def unavailable(self, config: ConfigT) -> list[str]:
        """Return those messages of `preflight` that are about this machine only; without the config's device here,
        they are notes and not errors."""


class TokensModule(Protocol[ConfigT]):
    """`datasets.py` of a benchmark of text, optional."""

    def tokens_per_sample(self, config: ConfigT, folder: Path | None) -> float:
        """Return the mean number of tokens of a training sample without padding, for `timedrun bench step`."""


class PrepareModule(Protocol):
    """`prepare.py`, needed by `timedrun prepare`."""

    @property
    def prepare(self) -> Callable[..., dict[str, Any]]:
        """Take (config, folder, *, decode, workers) and those of images, validation_labels, skip_broken, text,
        evaluation_text, vocabulary and merges that the benchmark uses; make or check the data and return the facts."""


class StepMemoryModule(Protocol[ConfigT]):
    """`step_memory.py`, needed by `preflight --memory`."""

    def build_step(self, config: ConfigT) -> tuple[nn.Module, Callable[[int], Tensor]]:
        """Return the model of a run with its methods, and a function that makes a micro-batch of so many samples and
        returns its loss. Both are called without data: on the meta device, then under torch's fake tensors."""


class ShardedStepMemoryModule(Protocol[ConfigT]):
    """`step_memory.py` of a benchmark whose ranks may shard their model, optional."""

    def sharded_layers(self, config: ConfigT, model: nn.Module) -> Iterable[nn.Module]:
        """Return the layers that several ranks shard one by one, before the rest of the model; none: not sharded."""


class BenchModule(Protocol[ConfigT]):
    """`bench.py`, needed by `timedrun bench loader`."""

    def loader(self, config: ConfigT, options: BenchOptions) -> LoaderComparison:
        """Measure the rates of the benchmark's data loaders, interleaved."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark package: `SPEC` in its `__init__.py`, configs as functions `<data>_<name>() -> RunConfig` in
    `configs.py`, and the modules that the protocols of this file describe."""

    name: str
    """Import name, such as "image_classification"."""
    spec: BenchmarkSpec
    package: ModuleType

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self.name}.{name}")

    def hook(self, module: str, function: str) -> Callable[..., Any] | None:
        """Return a function of a submodule, or None if the benchmark does not have it."""
        if importlib.util.find_spec(f"{self.name}.{module}") is None:
            return None
        found: Callable[..., Any] | None = getattr(self.module(module), function, None)
        return found

    @property
    def config_names(self) -> dict[str, str]:
        """The docstring of every config by its name `<data>_<name>`, in file order, read from the source without
        importing it."""
        return config_docstrings(Path(self.package.__path__[0]))

    def config(self, name: str, data: str | None = None) -> RunConfig:
        """Build the config `<data>_<name>`, or the one with the full name `name`; raise UsageError, with the nearest
        names, if there is none."""
        wanted = f"{data or self.spec.default_data}_{name}"
        names = self.config_names
        for candidate in (wanted, name):
            if candidate in names:
                config: RunConfig = getattr(self.module("configs"), candidate)()
                if config.name != candidate:
                    raise UsageError(f"{self.name}: config {candidate}() is named '{config.name}'; make them equal.")
                return config
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.8)
        near = near or difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        of_data = f" of --data {data}" if data else ""
        raise UsageError(f"{self.name} has no config '{name}'{of_data}.{hint} Configs: {', '.join(names)}.")

    def require_own(self, values: dict[str, Any], path: Path) -> None:
        """Raise UsageError unless the config `values`, read from `path`, is of this benchmark.

        The name in the file is only compared: no package is imported because a file names it.
        """
        named = values.get("benchmark")
        if named != self.name and not self.name.endswith(f".{named}") and named != self.name.partition(".")[0]:
            raise UsageError(
                f"{path} is a config of benchmark {named!r}, not of {self.name}; nothing was run. Name its benchmark."
            )

    def train(self, config: RunConfig, run: TimedRun) -> None:
        self.module("train").train(config, run)

    def plan(self, config: RunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
        """Return the benchmark's `run_info.plan`; raise UsageError if it has none."""
        function = self.hook("run_info", "plan")
        if function is None:
            raise UsageError(
                f"{self.name}.run_info has no plan(config, ranks, data_folder), so no dry run was made; add it."
            )
        plan: Plan = function(config, ranks, data_folder)
        return plan


def find(name: str, *, working_directory: bool = False) -> Benchmark:
    """Import the benchmark package `name`: an import path, the name of an entry point of the group
    `timedrun.benchmarks`, or the last component of a name that `nearby` lists.

    A package is not imported before its `__init__.py` is known to mention a SPEC: names come from config files of
    other people, too.

    Args:
        working_directory: search it too, after the import path: for a name that the user gave. A name that a file
            holds imports nothing from there.

    Raises:
        UsageError: no such package, it cannot be imported or has no SPEC, or several nested benchmarks have this name.
    """
    top = name.partition(".")[0]
    if top in SHIPPED and top not in sys.modules:
        put_shipped_first(top)
    here = Path.cwd()
    if working_directory and any(folder.name == top for folder in folders_in(here)) and not on_path(here):
        sys.path.append(str(here))  # last, so that nothing in it hides a module
    text = package_text(name)
    if not text or "SPEC" not in text:
        entries = {entry.name: entry.module for entry in installed()}
        if entries.get(name, name) != name:
            return find(entries[name])
    if text is None:
        known = nearby()
        nested = [path for path in known if path.rpartition(".")[2] == name]
        if len(nested) == 1 and nested != [name]:
            return find(nested[0], working_directory=working_directory)
        near = nested or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        if name in known:
            hint = f" It is in {known[name].parent}: set PYTHONPATH={known[name].parent}, or install it."
        elif (here / name / "configs.py").is_file():
            hint = f" {here / name}/__init__.py does not define SPEC = BenchmarkSpec(...)."
        elif not near:
            way = "run this in the folder that holds it, " if working_directory else ""
            hint = f" If it is your own, {way}set PYTHONPATH to the folder that holds it, or install it."
        raise UsageError(f"no benchmark package '{name}' on the import path.{hint} Benchmarks: {', '.join(known)}.")
    try:
        package = importlib.import_module(name) if "SPEC" in text else None
    except Exception as error:
        raise UsageError(
            f"benchmark package '{name}' cannot be imported ({type(error).__name__}: {error}); nothing was run."
        ) from error
    spec = getattr(package, "SPEC", None)
    if package is None or not isinstance(spec, BenchmarkSpec):
        raise UsageError(
            f"package '{name}' is not a benchmark: its __init__.py defines no SPEC"
            " (a timedrun.benchmark.BenchmarkSpec)."
        )
    return Benchmark(name, spec, package)
