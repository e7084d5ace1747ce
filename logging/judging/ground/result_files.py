"""Files of a run: `result_N.txt` and, next to it, `run_N/` with its config, system and environment."""

import errno
import fcntl
import hashlib
import itertools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judging.ground.atomic_file import replace_text
from judging.ground.errors import DataFolderMissing, TimedrunError, UsageError
from judging.ground.file_kind import read_text
from judging.ground.race_labels import near
from mlevents.event import json_fault, listed
from mlevents.record import read, result_files
from mlevents.rounds import RULESETS

PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip")
CONFIG = "config.json"


@dataclass(frozen=True)
class ResultPaths:
    """Paths of run number `number` in the results folder `folder`: its log and, in `side`, its other files."""

    folder: Path
    number: int

    @property
    def log(self) -> Path:
        return self.folder / f"result_{self.number}.txt"

    @property
    def side(self) -> Path:
        return self.folder / f"run_{self.number}"

    @property
    def config(self) -> Path:
        return self.side / CONFIG

    @property
    def system(self) -> Path:
        """MLPerf's system description of the machine."""
        return self.side / "system.json"

    @property
    def environment(self) -> Path:
        """Versions of everything installed."""
        return self.side / "environment.txt"

    @property
    def provenance(self) -> Path:
        return self.side / "provenance.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints from which a stopped run is resumed."""
        return self.side / "checkpoint"

    @property
    def model(self) -> Path:
        """The folder of the model that the run kept."""
        return self.side / "model"


def hold(paths: ResultPaths) -> None:
    """Lock this result against other processes until this one ends.

    A POSIX lock: it ends with its process, is not inherited by workers, and holds on NFS too. It is on the one file of
    a result that a run never opens again, since closing any descriptor of the file would release it. Raises
    BlockingIOError if another process has it."""
    descriptor = os.open(paths.environment, os.O_RDWR)  # never closed
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            reason = "another process is still writing this result; wait until it has finished, or end it"
            raise BlockingIOError(errno.EAGAIN, reason, str(paths.log)) from None
        # On a file system without locks, the folder of the result's number still excludes other runs.


def next_number(folder: Path) -> int:
    """Return the lowest number above every result and run folder in `folder`."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    taken = [int(match[1]) for name in names if (match := re.fullmatch(r"(?:result|run)_(\d+)(?:\.txt)?", name))]
    return max(taken, default=-1) + 1


def new_folder(given: str | None, parent: Path, name: str) -> Path:
    """Return the folder `given`, or the first of <name>_1, <name>_2 ... in `parent` that does not exist. Raises
    UsageError if `given` exists."""
    if given and Path(given).exists():
        raise UsageError(f"{given} exists; results are never overwritten. Choose another --results folder.")
    numbered = (parent / f"{name}_{number}" for number in itertools.count(1))
    return Path(given) if given else next(path for path in numbered if not path.exists())


def make_new_folder(given: str | None, parent: Path, name: str) -> Path:
    """Create the `new_folder` and return it, the next one if another process creates it at the same time. Raises
    UsageError if a link to nothing is in its place."""
    while True:
        folder = new_folder(given, parent, name)
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError as error:
            if not folder.exists():
                where = f"{error.filename} is a link to a folder that does not exist, so {folder} cannot be created"
                raise UsageError(f"{where}; mend the link, or choose another --results folder.") from None


def require_data_folder(folder: Path | None, source: str) -> Path:
    """Return `folder`, which `source` needs. Raises DataFolderMissing if it was not given or does not exist."""
    if folder is None:
        how = "set --data-folder (or TIMEDRUN_DATA), see `timedrun prepare --help`"
        raise DataFolderMissing(f"{source} needs a data folder: {how}.")
    if not folder.is_dir():
        raise DataFolderMissing(f"data folder {folder} does not exist; set the right one with --data-folder PATH.")
    return folder


def require_ruleset(name: str | None) -> None:
    """Raise UsageError, which lists the known rulesets, unless `name` is one of them or None."""
    if name is not None and name not in RULESETS:
        raise UsageError(f"no ruleset '{name}'; known: {', '.join(RULESETS)}.")


def write_json(path: Path, values: Any) -> None:
    """Write `values` as indented JSON, atomically."""
    replace_text(path, json.dumps(values, indent=2) + "\n")


def write_output(path: Path, text: str) -> None:
    """Write `text` to `path`. Raises UsageError if it is a file with an MLPerf log."""
    if path.is_file() and read(path).events:
        raise UsageError(f"{path} is an MLPerf log, which is never overwritten; choose another file.")
    replace_text(path, text)


def json_text(values: Any, **layout: Any) -> str:
    """Return `values` as JSON, with null in place of numbers that are not finite, which JSON does not have."""
    try:
        return json.dumps(values, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(json.loads(json.dumps(values), parse_constant=lambda name: None), **layout)


def read_json(path: Path) -> Any:
    """Read the JSON file `path`. Raises TimedrunError if it is missing or not JSON."""
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise TimedrunError(f"{path}: cannot be read as JSON ({json_fault(error)}).") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in the file `path`; empty if it is missing or holds no object."""
    try:
        values = read_json(path)
    except TimedrunError:
        return {}
    return values if isinstance(values, dict) else {}


def require_log(path: Path) -> None:
    """Raise UsageError, with the message of `check`, if `path` is a file without an MLPerf log, such as an archive, or
    does not exist."""
    if not path.exists():
        raise missing(path)
    if path.is_file() and not (record := read(path)).events:
        raise UsageError(f"{path}: {record.problems[-1].message}.")


def missing(path: Path) -> UsageError:
    """Return the error of a path that does not exist."""
    return UsageError(f"{path} does not exist; name a log, a folder of logs or a package.{near(path)}")


def compressed(path: Path) -> str:
    """Return the end of a sentence that there is no log in the folder `path`: which files may be compressed ones."""
    names = [file.name for file in sorted(path.rglob("*")) if file.suffix in PACKED]
    return f"; unpack its compressed files first: {listed(names, 3)}" if names else ""


def existing(path: Path) -> list[Path]:
    """Return the result files at `path`. Raises UsageError if it does not exist."""
    try:
        return result_files(path)
    except FileNotFoundError:
        raise missing(path) from None


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder` by its path, sorted; "" for a symbolic link, which is not
    read."""
    sums = {}
    for file in folder.rglob("*"):
        if file.is_symlink():
            sums[file.relative_to(folder).as_posix()] = ""
        elif file.is_file():
            with open(file, "rb") as stream:
                sums[file.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return dict(sorted(sums.items()))
