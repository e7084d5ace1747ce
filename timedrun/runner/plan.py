"""Plan of a run for its dry run: run info and length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from judging.ground.errors import DataError, DataFolderMissing
from timedrun.runner.run.run_info import RunInfo

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """Run info and maximum length of a run, known without training."""

    run_info: RunInfo
    total: int
    """Epochs or samples, the spec's unit."""
    missing: str = ""
    """The error if the data folder is missing and declared sizes are used; empty: the sizes are the data's own."""


def facts_or_declared(read: Callable[[], T], declared: T) -> tuple[T, str]:
    """Return the data's own facts, or `declared` if they cannot be read, and the error if the data folder is missing.
    The error of damaged data is left to the benchmark's `datasets.preflight`."""
    try:
        return read(), ""
    except DataFolderMissing as error:
        return declared, str(error)
    except DataError:
        return declared, ""
