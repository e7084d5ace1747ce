"""MLCommons' own checkers, run on a copy in a child process and judged by their words: their exit codes say little."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from mlevents.event import MARK
from mlevents.rounds import Ruleset

Verdict = Literal["pass", "fail", "not run"]

PARTS: Final = ("systems", "results", "benchmarks")  # all that the package checker looks at
LOG_SECONDS: Final = 120.0
PACKAGE_SECONDS: Final = 600.0
# The checker builds the names of the rule files it executes from these values, unchecked.
NAMES_RULE_FILES: Final = frozenset({"submission_division", "submission_benchmark", "opt_name"})
DIVIDER: Final = "-" * 30


@dataclass(frozen=True)
class OfficialVerdict:
    """What one of MLCommons' tools said. `messages` are its complaints; a package may pass with some.

    `verdict` is "not run" where the tool could not be asked; the messages then say why.
    """

    verdict: Verdict
    tool: str
    checker: str
    ruleset: str
    messages: tuple[str, ...]


def check_log(path: Path, ruleset: str | Ruleset) -> OfficialVerdict:
    """The compliance checker's verdict on one log. Raises FileNotFoundError or IsADirectoryError for the path.

    Its line numbers, which count records, are turned into the file's own.
    """
    with _Copy() as copy:
        log = shutil.copyfile(path, copy.folder / path.name)
        arguments = ["--usage", "training", "--ruleset", _name(ruleset), "--log_output", os.devnull, str(log)]
        words = (r"INFO - SUCCESS", r"ERROR - FAILED")
        return copy.run("compliance_checker", ruleset, arguments, words, _unsafe_names([log], copy.folder), LOG_SECONDS)


def check_package(folder: Path, ruleset: str | Ruleset) -> OfficialVerdict:
    """The package checker's verdict on an organization's folder, the one that holds systems/ and results/.

    Links that lead out of the folder, and a log that would make the checker execute a file, fail it without a run.
    Raises FileNotFoundError where `folder` is no folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; a package is a folder that holds systems/ and results/")
    with _Copy() as copy:
        refused: list[str] = []

        def left_out(parent: str, names: list[str]) -> set[str]:
            paths = {name: Path(parent, name) for name in names}
            # Reading a pipe or a device would never end; what lies outside a package is no part of it.
            outward = {name for name, path in paths.items() if path.is_symlink() and _leads_out(path, folder)}
            refused.extend(
                f"{paths[name].relative_to(folder)} is a link that leads out of the package" for name in outward
            )
            return outward | {n for n, p in paths.items() if not (p.is_symlink() or p.is_file() or p.is_dir())}

        left_out(str(folder), [part for part in PARTS if (folder / part).is_dir()])
        for part in PARTS:
            if (folder / part).is_dir():
                shutil.copytree(folder / part, copy.folder / part, symlinks=True, ignore=left_out)
        logs = sorted(copy.folder.glob("results/*/*/result_*.txt"))
        arguments = [str(copy.folder), "training", _name(ruleset), "--log_output", os.devnull]
        words = (r"INFO - PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !", r"INFO - PACKAGE CHECKER FOUND ERRORS, .*")
        refused.extend(_unsafe_names(logs, copy.folder))
        return copy.run("package_checker", ruleset, arguments, words, refused, PACKAGE_SECONDS)


def check_system(path: Path, ruleset: str | Ruleset) -> OfficialVerdict:
    """The system description checker's verdict on one JSON file. Raises FileNotFoundError or IsADirectoryError."""
    with _Copy() as copy:
        description = shutil.copyfile(path, copy.folder / path.name)
        arguments = [str(description), "training", _name(ruleset), "--log_output", os.devnull]
        said = r"System description checker"
        words = (rf"INFO -   {said} passed for .*", rf"ERROR -   {said} failed for .*")
        return copy.run("system_desc_checker", ruleset, arguments, words, (), LOG_SECONDS)


def _name(ruleset: str | Ruleset) -> str:
    return ruleset if isinstance(ruleset, str) else ruleset.name


def _leads_out(link: Path, folder: Path) -> bool:
    """Whether `link` ends outside `folder`, or would in a copy of it, as an absolute link does."""
    return os.path.isabs(os.readlink(link)) or not link.resolve().is_relative_to(folder.resolve())


class _Copy:
    """A temporary folder to copy into, and the run of a tool on what lies there."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="mlevents-")
        root = Path(self._temporary.name).resolve()
        self.folder = root / "copy"
        self._start = root / "start"  # an empty working folder: python -m looks for modules there first
        self.folder.mkdir()
        self._start.mkdir()

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *exception: object) -> None:
        self._temporary.cleanup()

    def run(
        self,
        tool: str,
        ruleset: str | Ruleset,
        arguments: Sequence[str],
        words: tuple[str, str],
        refused: Iterable[str],
        seconds: float,
    ) -> OfficialVerdict:
        """The tool's verdict: the last line it wrote that matches one of `words`, for pass and for fail.

        Complaints in `refused` fail the copy without a run.
        """

        def verdict(word: Verdict, messages: Iterable[str]) -> OfficialVerdict:
            clean = dict.fromkeys(_without_places(message, self.folder) for message in messages)
            return OfficialVerdict(word, tool, _checker(), _name(ruleset), tuple(clean))

        if importlib.util.find_spec("mlperf_logging") is None:
            return verdict("not run", ["mlperf_logging is not installed; install mlperf-logging"])
        if complaints := list(refused):
            return verdict("fail", complaints)
        environment = {**os.environ, "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", f"mlperf_logging.{tool}", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self._start,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return verdict("not run", [f"{tool} had not finished after {seconds:g} s and was stopped"])
        said = done.stderr.decode("utf-8", "replace")
        lines = said.rstrip().split("\n")
        passed, failed = words
        for line in reversed(lines):
            if re.fullmatch(passed, line):
                return verdict("pass", _complaints(said))
            if re.fullmatch(failed, line):
                return verdict("fail", _complaints(said))
        last = lines[-1]
        if "Traceback (most recent call last):" in lines and not last.startswith(
            ("ModuleNotFoundError", "ImportError")
        ):
            return verdict("fail", [f"{tool} broke off: {last}", *_complaints(said)])
        return verdict("not run", [f"{tool} gave no verdict: {last or f'exit status {done.returncode}'}"])


def _checker() -> str:
    try:
        return f"mlperf-logging {importlib.metadata.version('mlperf-logging')}"
    except importlib.metadata.PackageNotFoundError:
        return "mlperf-logging (no version)"


def _without_places(message: str, copy: Path) -> str:
    """`message` without the temporary folder and the place of the installation, which mean nothing to the reader."""
    message = message.replace(f"{copy}/", "").replace(str(copy), "the package").replace(str(copy.parent), "")
    spec = importlib.util.find_spec("mlperf_logging")
    for place in spec.submodule_search_locations or () if spec else ():
        message = message.replace(place, "mlperf_logging")
    return message


def _unsafe_names(logs: Iterable[Path], copy: Path) -> Iterator[str]:
    """Complaints about values by which a log would make the checker execute a rule file of the log's choice."""
    for path in filter(Path.is_file, logs):
        for number, line in _marked_lines(path):
            try:
                fields = json.loads(line.rpartition(f"{MARK} ")[2])
                key, value = fields["key"], fields["value"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # the checker itself complains about such a record
            if key in NAMES_RULE_FILES and isinstance(value, str) and re.search(r"[/\\]|\.\.", value):
                place = f"{path.relative_to(copy)}, line {number}"
                yield f"{place}: {key} holds a path, {ascii(value)}; MLCommons' checker was not run on it"


def _marked_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines MLCommons' parser takes for records, with the file's own numbers."""
    with open(path, encoding="latin-1", newline="\n") as file:
        for number, physical in enumerate(file, start=1):
            for line in re.split(r"[\r\n]", physical):
                if f"{MARK} " in line:
                    yield number, line.strip()


def _complaints(said: str) -> Iterator[str]:
    """The warnings and errors in a tool's output, one line each, with the file and line they are about."""
    file: Path | None = None
    numbers: list[int] = []
    before_traceback = re.split(r"^Traceback \(most recent call last\):$", said, maxsplit=1, flags=re.MULTILINE)[0]
    entries = re.split(r"^(INFO|WARNING|ERROR) - ", before_traceback, flags=re.MULTILINE)[1:]
    for level, entry in zip(entries[::2], entries[1::2], strict=True):
        about = re.fullmatch(r"Running compliance on file: (.*)\n?", entry)
        if level == "INFO":
            if about:
                file = Path(about[1])
                numbers = [number for number, _ in _marked_lines(file)] if file.is_file() else []
            continue
        for part in entry.split(f"\n{DIVIDER}\n"):
            complaint = _one_line(part)
            if not complaint or complaint in ("FAILED", "Found parsing errors:"):
                continue
            if file is not None and not re.match(r"\d+ files? do", complaint):
                counted = re.search(r"failed in line (\d+)", complaint)
                if counted and int(counted[1]) < len(numbers):
                    complaint = complaint.replace(counted[0], f"failed in line {numbers[int(counted[1])]}", 1)
                complaint = f"{file}: {complaint}"
            yield complaint


def _one_line(complaint: str) -> str:
    """A complaint without the record it quotes and the checker's own state."""
    text = complaint.partition("\ncurrent context[s]=")[0]
    lines = [line.strip() for line in text.split("\n") if not line.strip().startswith(MARK)]
    return re.sub(r"^\^\^ *", "a record cannot be parsed: ", " ".join(line for line in lines if line))
