"""MLPerf-style time-to-train harness: the timed protocol, methods, configs and submissions that benchmarks share."""

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
