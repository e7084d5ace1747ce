"""MLPerf-style time-to-train harness: the timed protocol, methods, configs and submissions that benchmarks share."""

import sys
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


class _Moved:
    """Finder, asked when no other one finds a module, that names the successor of a package which has moved."""

    packages = {"timedrun.race": "timedrun.racing", "timedrun.analysis": "timedrun.evidence.analysis"}

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name in cls.packages:
            raise ModuleNotFoundError(f"{name} has moved to {cls.packages[name]}; change the import.", name=name)


sys.meta_path.append(_Moved)
