"""A temporary copy that MLCommons' tools may write into, and the child process that runs them on it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

CHILD: Final = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Job:
    """One call of a tool: the arguments of its command line, and how many seconds it may take."""

    tool: str
    arguments: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a tool did. `unanswered` says why there is nothing else: it was stopped, or its process ended.

    `exit` is the exit status it asked for, `log` its log as (level, words), `printed` what it printed beside that,
    `errors` the last line of its standard error, `raised` the last line of the traceback it ended in, `missing` whether
    that was about a failed import or memory, `returned` what the functions that decide returned, `scores` minutes by
    benchmark.
    """

    unanswered: str | None = None
    exit: object = 0
    log: tuple[tuple[str, str], ...] = ()
    printed: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    raised: str | None = None
    missing: bool = False
    returned: dict[str, bool] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)


class Workplace:
    """A temporary folder: `copy` to copy into, and an empty `start` that a child works in."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="mlevents-")
        self.root = Path(self._temporary.name).resolve()
        self.copy = self.root / "copy"
        self.start = self.root / "start"
        self.copy.mkdir()
        self.start.mkdir()

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *exception: object) -> None:
        self._temporary.cleanup()

    def new_folder(self, name: str) -> Path:
        """An empty folder beside the copy, named `name` and a number."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))

    def plain(self, message: str, base: Path | None = None) -> str:
        """`message` in printable Unicode, without the places it was run at, which mean nothing to the reader."""
        base = self.copy if base is None else base
        message = message.replace(f"{base}/", "").replace(str(base), "the package").replace(f"{self.root}/", "")
        message = re.sub(r"repaired-[^/]*/mlperf_logging\b", "mlperf_logging", message)
        for place in installed() or ():
            message = message.replace(place, "mlperf_logging")
        return message.encode("utf-8", "backslashreplace").decode("utf-8")

    def run(self, jobs: Sequence[Job], source: Path | None = None) -> Iterator[Answer]:
        """The answers to `jobs`, in one child as long as that lives; the job at which it ends has none.

        `source` holds a copy of mlperf_logging to be used instead of the installed one.
        """
        request = self.root / "jobs.json"
        words = [{"tool": job.tool, "arguments": job.arguments} for job in jobs]
        request.write_text(json.dumps({"source": None if source is None else str(source), "jobs": words}), "utf-8")
        done = 0
        while done < len(jobs):
            for answer in self._child(request, jobs, done):
                done += 1
                yield answer

    def _child(self, request: Path, jobs: Sequence[Job], first: int) -> Iterator[Answer]:
        """Answers of one child, up to and with the first job it leaves without one."""
        # The order of some of the tools' words follows that of a set of strings.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        # -P: the child's own folder, which holds mlevents' modules, must not be searched for mlperf_logging's imports.
        command = [sys.executable, "-P", "-X", "utf8", str(CHILD), str(request), str(first)]
        with open(self.root / "said", "w+b") as said:
            child = subprocess.Popen(
                command,
                cwd=self.start,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )
            assert child.stdout is not None
            try:
                lines = _Lines(child.stdout.fileno())
                for job in jobs[first:]:
                    try:
                        line = lines.next(job.seconds)
                    except TimeoutError:
                        yield Answer(unanswered=f"{job.tool} had not finished after {job.seconds:g} s and was stopped")
                        return
                    if line is None:
                        status = child.wait()
                        said.seek(0)
                        last = said.read().decode("utf-8", "replace").rstrip().rpartition("\n")[2]
                        how = f"signal {-status}" if status < 0 else f"exit status {status}"
                        yield Answer(unanswered=f"{job.tool}'s process ended with {how}{last and f': {last}'}")
                        return
                    yield _answer(json.loads(line))
            finally:
                child.kill()
                child.wait()
                child.stdout.close()


class _Lines:
    """Lines from a pipe, each waited for no longer than it may take."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = bytearray()

    def next(self, seconds: float) -> bytes | None:
        """The next whole line, or None when the pipe is closed. Raises TimeoutError."""
        end = time.monotonic() + seconds
        start = 0
        while (stop := self._held.find(b"\n", start)) < 0:
            start = len(self._held)
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            piece = os.read(self._descriptor, 1 << 20)
            if not piece:
                return None
            self._held += piece
        line = bytes(self._held[:stop])
        del self._held[: stop + 1]
        return line


def _answer(said: dict[str, Any]) -> Answer:
    log = tuple((level, words) for level, words in said["log"])
    return Answer(
        exit=said["exit"],
        log=log,
        printed=tuple(said["printed"]),
        errors=tuple(said["errors"]),
        raised=said["raised"],
        missing=said["missing"],
        returned=said["returned"],
        scores=said["scores"],
    )


def installed() -> list[str] | None:
    """The folders of the installed mlperf_logging, or None where there is none."""
    spec = importlib.util.find_spec("mlperf_logging")
    if spec is None:
        return None
    return list(spec.submodule_search_locations or ())
