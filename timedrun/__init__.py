"""MLPerf-style time-to-train harness: the timed protocol, methods, configs and submissions that benchmarks share."""


def __getattr__(name: str) -> str:
    """Return `__version__`, the installed version, read on first access."""
    if name != "__version__":
        raise AttributeError(f"module 'timedrun' has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("timedrun")
    except PackageNotFoundError:  # a source tree on PYTHONPATH
        return "unknown"
