"""Temporary copies that MLCommons' tools may write into, and the child process that runs the tools on them."""

import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Final

CHILD: Final = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Job:
    """One call of a tool: its command-line arguments and time limit in seconds."""

    tool: str
    arguments: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Result of a job. `unanswered` says why there is none: the tool was stopped, or its process ended.

    `exit` is the requested exit status, `log` the tool's log as (level, message), `printed` its stdout, `errors` the
    last line of its stderr, `raised` the last line of its traceback, `missing` whether that was a failed import or
    memory, `scored` the benchmarks that have a score."""

    unanswered: str | None = None
    exit: object = 0
    log: Sequence[tuple[str, str]] = ()
    printed: Sequence[str] = ()
    errors: Sequence[str] = ()
    raised: str | None = None
    missing: bool = False
    scored: Sequence[str] = ()


class Workplace(contextlib.ExitStack):
    """Temporary folder: `copy` to copy into, and an empty `start` as the child's working directory."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="mlevents-"))).resolve()
        self.copy, self.start = self.root / "copy", self.root / "start"
        self.copy.mkdir()
        self.start.mkdir()

    def new_folder(self, name: str) -> Path:
        """Create an empty folder next to the copy, named `name` with a suffix."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))

    def plain(self, message: str, base: Path | None = None) -> str:
        """Return `message` in printable Unicode, without the temporary paths."""
        base = self.copy if base is None else base
        message = message.replace(f"{base}/", "").replace(str(base), "the package").replace(f"{self.root}/", "")
        message = re.sub(r"repaired-[^/]*/mlperf_logging\b", "mlperf_logging", message)
        for place in installed():
            message = message.replace(place, "mlperf_logging")
        return message.encode("utf-8", "backslashreplace").decode("utf-8")

    def run(self, jobs: Sequence[Job], source: Path | None = None) -> Iterator[Answer]:
        """Yield the answers to `jobs`, from one child process while it lives; the job that ends it has no result.

        `source` holds a copy of mlperf_logging to use instead of the installed one."""
        request = self.root / "jobs.json"
        calls = [{"tool": job.tool, "arguments": job.arguments} for job in jobs]
        request.write_text(json.dumps({"source": None if source is None else str(source), "jobs": calls}), "utf-8")
        done = 0
        while done < len(jobs):
            for answer in self._child(request, jobs, done):
                done += 1
                yield answer

    def _child(self, request: Path, jobs: Sequence[Job], first: int) -> Iterator[Answer]:
        """Yield the answers of one child process, up to and including the first job without a result."""
        # The order of some of the tools' messages is that of a set of strings.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        # -P: mlperf_logging's imports must not be resolved in the child's own folder, which holds mlevents' modules.
        command = [sys.executable, "-P", "-X", "utf8", str(CHILD), str(request), str(first)]
        with (
            open(self.root / "stderr", "w+b") as errors,
            Popen(command, cwd=self.start, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=errors) as child,
        ):
            assert child.stdout is not None
            try:
                for job in jobs[first:]:
                    began = time.monotonic()
                    timer = threading.Timer(job.seconds, child.kill)
                    timer.daemon = True
                    timer.start()
                    line = child.stdout.readline()
                    timer.cancel()
                    stopped = time.monotonic() - began >= job.seconds
                    if line.endswith(b"\n"):
                        yield Answer(**json.loads(line))
                    elif stopped:
                        yield Answer(unanswered=f"{job.tool} did not finish within {job.seconds:g} s and was stopped")
                    else:
                        status = child.wait()
                        errors.seek(0)
                        last = errors.read().decode("utf-8", "replace").rstrip().rpartition("\n")[2]
                        how = f"signal {-status}" if status < 0 else f"exit status {status}"
                        yield Answer(unanswered=f"{job.tool}'s process ended with {how}{last and f': {last}'}")
                    if stopped or not line.endswith(b"\n"):
                        return
            finally:
                child.kill()


def installed() -> list[str]:
    """Return the folders of mlperf_logging; empty if it is not installed."""
    spec = importlib.util.find_spec("mlperf_logging")
    return list(spec.submodule_search_locations or ()) if spec else []
