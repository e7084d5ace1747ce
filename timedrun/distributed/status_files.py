"""What ranks tell who started them on this node, and the other way round, by files in a folder of the starter's."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from timedrun.distributed.launch_env import STATUS_FILES
from timedrun.errors import ExitCode
from timedrun.storage.atomic_file import replace_text

T = TypeVar("T")


@dataclass(frozen=True)
class StatusFiles:
    """The folder, as the supervisor has it."""

    folder: Path

    def expect(self, ranks: Iterable[int]) -> None:
        """Wait for `tell_begun` of these ranks. They take a file away for it: that needs no room on a disk, and a
        folder that is cleared while a run trains says the same."""
        for rank in ranks:
            self._path(rank, "waiting").touch()

    def begun(self, ranks: Iterable[int]) -> bool:
        """Whether one of these ranks has begun or taken up the run's log."""
        return not all(self._path(rank, "waiting").exists() for rank in ranks)

    def left(self, rank: int) -> bool:
        """Whether its work was over, so that its exit code is no accident."""
        return self._path(rank, "left").exists()

    def number(self, ranks: Iterable[int]) -> int | None:
        """The number of the run's result, where one of these ranks was told it and could tell it."""
        told = (self._read(rank, "number", "number", int) for rank in ranks)
        return next((number for number in told if number is not None), None)

    def step(self, rank: int) -> int | None:
        """The last that it has told."""
        return self._read(rank, "json", "step", int)

    def words(self, rank: int) -> str | None:
        """Why it ended, where it has said so."""
        return self._read(rank, "json", "words", str)

    def error(self, rank: int) -> tuple[ExitCode, str] | None:
        """The error that it ended with, if it could say it in words, and its exit code."""
        code, words = self._read(rank, "error", "code", int), self._read(rank, "error", "words", str)
        return None if code is None or words is None else (ExitCode(code), words)

    def tell_lost(self, rank: int, words: str) -> None:
        """Say to the other ranks how this one died."""
        with contextlib.suppress(OSError):
            replace_text(self._path(rank, "lost"), words)

    def _path(self, rank: int, what: str) -> Path:
        return self.folder / f"rank_{rank}.{what}"

    def _read(self, rank: int, what: str, key: str, kind: type[T]) -> T | None:
        try:
            found = json.loads(self._path(rank, what).read_text())[key]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if isinstance(found, kind) else None


def tell_begun() -> None:
    """This rank's launch has begun the run's log, or taken it up."""
    if (path := _own("waiting")) is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def tell_number(number: int) -> None:
    """The run's result has this number, which rank 0 has counted; in this node's folder it would be another perhaps."""
    if (path := _own("number")) is not None:
        with contextlib.suppress(OSError):
            path.write_text(json.dumps({"number": number}))


def tell_left(code: ExitCode) -> None:
    """This rank's work is over and `code` is no accident."""
    if (path := _own("left")) is not None:
        with contextlib.suppress(OSError):  # the supervisor is gone
            path.write_text(str(int(code)))


def tell_error(code: ExitCode, words: str) -> bool:
    """This rank ends with an error; whether somebody was told who will say it, once for all ranks."""
    path = _own("error")
    if path is None:
        return False
    try:
        path.write_text(json.dumps({"code": int(code), "words": words}))
    except OSError:
        return False
    return True


def _own(what: str) -> Path | None:
    folder = os.environ.get(STATUS_FILES)
    return Path(folder) / f"rank_{os.environ['RANK']}.{what}" if folder else None
