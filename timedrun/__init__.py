"""MLPerf-style time-to-train harness: the timed protocol, methods, configs and submissions that benchmarks share."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlevents.runlog.trainer_run import mlperf_preflight as mlperf_preflight
    from mlevents.runlog.trainer_run import mlperf_run as mlperf_run


def __getattr__(name: str) -> Any:
    """Return `mlperf_run`, `mlperf_preflight` or `__version__`, the installed version; read on first access."""
    if name in ("mlperf_run", "mlperf_preflight"):
        from mlevents.runlog import trainer_run

        return getattr(trainer_run, name)
    if name != "__version__":
        raise AttributeError(f"module 'timedrun' has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("timedrun")
    except PackageNotFoundError:  # a source tree on PYTHONPATH
        return "unknown"


_ROOMS = {
    ("timedrun", "timedrun.methods"): "training recipes integrations",
    (
        "timedrun",
        "timedrun.runner",
    ): "run config config_choice benchmark benchmark_modules distributed provenance storage",
    ("timedrun", "timedrun.evidence"): "analysis preflight submission",
    ("timedrun.run", "timedrun.runner.process"): "progress load_counters verdict clock_check blocks",
    ("timedrun.distributed", "timedrun.runner.process"): "launch_env stop_signals parent_death_signal status_files"
    " process_times",
}
_MOVED = {f"{old}.{room}": f"{new}.{room}" for (old, new), rooms in _ROOMS.items() for room in rooms.split()} | {
    "timedrun.methods.card": "timedrun.runner.method_card",
    "timedrun.methods.reference": "timedrun.runner.method_reference",
    "timedrun.recipes.measured": "timedrun.evidence.analysis.measured_recipe",
    "timedrun.preflight.plan": "timedrun.runner.plan",
    "timedrun.race": "timedrun.racing",
}


class _Moved(Loader):
    """Import a module by the name that it had before timedrun's parts were folders, with a DeprecationWarning."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name.startswith("timedrun.") and cls.successor(name) != name else None

    @staticmethod
    def successor(name: str) -> str:
        """Return the name under which the module `name` is now."""
        old = next((old for old in (name, *_MOVED) if old in _MOVED and f"{name}.".startswith(f"{old}.")), name)
        return _MOVED.get(old, old) + name.removeprefix(old)

    def exec_module(self, module: ModuleType) -> None:
        name, successor = module.__name__, self.successor(module.__name__)
        warnings.warn(f"{name} has moved to {successor}; change the import.", DeprecationWarning, stacklevel=2)
        sys.modules[name] = import_module(successor)


sys.meta_path.insert(0, _Moved)
