"""Status files of ranks, in a temporary folder of the wrapper that started them on this node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from judging.ground.errors import ExitCode
from timedrun.runner.process.launch_env import STATUS_FILES

ABORTED: Final = "; run aborted"
"""End of the reason of a lost rank."""
FAILED: Final = (ExitCode.ERROR, ExitCode.USAGE, ExitCode.RANK_LOST)
"""Exit codes of ranks in which the run failed; with any other, a rank that left has completed the run."""


@dataclass(frozen=True)
class End:
    """Outcome of the ranks of this node."""

    codes: tuple[int, ...] = ()  # exit codes that ranks reported with the end of their work, in the order of ranks
    lost: str = ""  # message about the rank that was lost first; empty if none was
    signal: signal.Signals | None = None
    at_once: bool = False  # true if a second signal ended the ranks
    begun: bool = False  # true if these ranks opened the run's log
    errors: tuple[tuple[ExitCode, str], ...] = ()  # errors that ranks reported, without duplicates
    number: int | None = None  # number of the result as rank 0 counts, if known

    @property
    def over(self) -> bool:
        """True if at least one rank completed the run."""
        return any(code not in FAILED for code in self.codes)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code by the ranks alone; on the node of rank 0 the log decides."""
        if self.lost and not self.over:
            return ExitCode.RANK_LOST
        codes = sorted(map(ExitCode, [*self.codes, *(code for code, _ in self.errors)]), key=FAILED.__contains__)
        return codes[0] if codes else ExitCode.ERROR


@dataclass(frozen=True)
class StatusFiles:
    """Status files as the wrapper reads them."""

    folder: Path

    def expect(self, ranks: Iterable[int]) -> None:
        """Mark each of `ranks` as not begun. A rank removes its mark with `report_begun`: that needs no space on the
        disk, and a folder that is cleared during the run has the same meaning."""
        for rank in ranks:
            self.path(rank, "waiting").touch()

    def begun(self, ranks: Iterable[int]) -> bool:
        """Return True if one of `ranks` has opened the run's log, new or resumed."""
        return not all(self.path(rank, "waiting").exists() for rank in ranks)

    def error(self, rank: int) -> tuple[ExitCode, str] | None:
        """Return exit code and message of the error that ended the rank, None if it reported none."""
        report = self.read(rank, "error")
        return (ExitCode(report["code"]), report["words"]) if report else None

    def path(self, rank: int, kind: str) -> Path:
        return self.folder / f"rank_{rank}.{kind}"

    def read(self, rank: int, kind: str) -> dict[str, Any]:
        """Return the content of a status file; empty if it was not written, or not completely."""
        try:
            return cast(dict[str, Any], json.loads(self.path(rank, kind).read_text()))
        except (OSError, ValueError):
            return {}


def report_begun(number: int) -> None:
    """Report that this launch has opened the log of the run, result `number` as rank 0 counts."""
    if STATUS_FILES in os.environ:
        _report("number", number=number)
        with contextlib.suppress(OSError):
            _own("waiting").unlink()


def report_left(code: ExitCode) -> ExitCode:
    """Report that this rank's work is complete, with `code`; return the code to exit with: to timedrun's agent, which
    would end the other ranks on a failure, that of success."""
    return ExitCode.OK if _report("left", code=int(code)) and code not in FAILED else code


def report_error(code: ExitCode, message: str) -> bool:
    """Report the error that ends this rank; return True if the wrapper will print it, once for all ranks."""
    return _report("error", code=int(code), words=message)


def _own(kind: str) -> Path:
    return Path(os.environ[STATUS_FILES]) / f"rank_{os.environ['RANK']}.{kind}"


def _report(kind: str, **values: object) -> bool:
    with contextlib.suppress(KeyError, OSError):  # no wrapper of timedrun's, or it is gone, or the disk is full
        _own(kind).write_text(json.dumps(values))
        return True
    return False
