"""What a benchmark says of itself, as data, and how one is found by its import name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from timedrun.errors import UsageError

if TYPE_CHECKING:
    from timedrun.config import RunConfig
    from timedrun.run.timed_run import TimedRun


@dataclass(frozen=True, kw_only=True)
class BenchmarkSpec:
    """One benchmark: its MLPerf name and rules, and the data it can run on."""

    title: str
    mlperf_benchmark: str
    """MLPerf's own short name, as in `submission_benchmark`: "resnet", "bert"."""
    ruleset: str
    """The ruleset of the round whose task this is, such as "2.0.0"."""
    dataset: str
    """The benchmark's own dataset; a run on any other is a demonstration."""
    metric: str
    direction: Literal[">=", "<="] = ">="
    """On which side of the target the metric's good values lie."""
    unit: Literal["epoch", "samples"]
    """What `epoch_num` counts in the log."""
    default_data: str
    """The dataset that needs nothing but the package: what `run` takes when `--data` is not given."""

    def reached(self, value: float, target: float) -> bool:
        """Whether `value` of the metric reaches `target`. NaN reaches nothing."""
        return value >= target if self.direction == ">=" else value <= target


@dataclass(frozen=True)
class Benchmark:
    """A benchmark package that was found: its card and its three modules."""

    name: str
    spec: BenchmarkSpec
    package: ModuleType

    def spec_of(self, config: RunConfig) -> BenchmarkSpec:
        """The spec of the task that `config` trains: the package's only one, or what its own `spec_of` says."""
        choose: Callable[[RunConfig], BenchmarkSpec] | None = getattr(self.package, "spec_of", None)
        return choose(config) if choose else self.spec

    def module(self, name: str) -> ModuleType:
        """The benchmark's submodule `name`, imported on first use."""
        return importlib.import_module(f"{self.name}.{name}")

    @property
    def config_functions(self) -> dict[str, Callable[[], RunConfig]]:
        """Every config that `configs.py` defines, or takes from a `configs.py` deeper in the package, by its name
        `<data>_<config>`, in the order of the file."""
        return {
            name: function
            for name, function in vars(self.module("configs")).items()
            if inspect.isfunction(function)
            and function.__module__.startswith(f"{self.name}.")
            and function.__module__.endswith(".configs")
            and not name.startswith("_")
        }

    def config(self, name: str, data: str | None = None) -> RunConfig:
        """The config `<data>_<name>`, or the one whose whole name is given.

        Raises:
            UsageError: there is none; the nearest valid names are in the message.
        """
        functions = self.config_functions
        for candidate in (f"{data or self.spec.default_data}_{name}", name):
            if candidate in functions:
                return functions[candidate]()
        wanted = f"{data or self.spec.default_data}_{name}"
        near = difflib.get_close_matches(wanted, functions, n=3, cutoff=0.5)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(f"{self.name} has no config '{wanted}'.{meant} There are: {', '.join(functions)}.")

    @property
    def train(self) -> Callable[[RunConfig, TimedRun], None]:
        """The benchmark's `train(config, run)`."""
        function: Callable[[RunConfig, TimedRun], None] = self.module("train").train
        return function


def find(name: str) -> Benchmark:
    """Import the benchmark package `name` (`image_classification`, or anyone's own on the import path).

    Nothing of a package is imported before its `__init__.py` is seen to speak of a SPEC: names come from configs that
    others wrote, too.

    Raises:
        UsageError: no such package, or it has no SPEC.
    """
    text = _package_text(name)
    if text is None:
        near = difflib.get_close_matches(name, nearby(), n=1, cutoff=0.4)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"no benchmark package '{name}' on the import path.{meant} There are: {', '.join(nearby())}.")
    package = importlib.import_module(name) if "SPEC" in text else None
    spec = getattr(package, "SPEC", None)
    if package is None or not isinstance(spec, BenchmarkSpec):
        older = " CARD is now SPEC and Card is BenchmarkSpec: rename them." if "CARD" in text else ""
        raise UsageError(
            f"package '{name}' is not a benchmark: its __init__.py defines no SPEC"
            f" (a timedrun.benchmark.BenchmarkSpec).{older}"
        )
    return Benchmark(name, spec, package)


def nearby() -> list[str]:
    """Import names of the benchmark folders beside this package and in the working directory, found without import."""
    folders = [Path(__file__).resolve().parent.parent, Path.cwd(), *(Path(entry) for entry in sys.path if entry)]
    names = {
        candidate.parent.name
        for folder in dict.fromkeys(folders)
        if folder.is_dir()
        for candidate in folder.glob("*/configs.py")
        if (candidate.parent / "train.py").exists() and "SPEC" in _text(candidate.parent / "__init__.py")
    }
    return sorted(names)


def _package_text(name: str) -> str | None:
    """What the `__init__.py` of package `name` says, found without importing it or what it lies in; "" for a module or
    a package without one, None where there is neither."""
    top, *below = name.split(".")
    if not all(part.isidentifier() for part in (top, *below)):
        return None
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module that lies in no file, such as __main__
        return ""
    if spec is None:
        return None
    places = [Path(place, *below) for place in spec.submodule_search_locations or ()]
    if below and not any(place.is_dir() for place in places):
        return None
    return "".join(_text(place / "__init__.py") for place in places)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
