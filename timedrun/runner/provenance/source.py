"""State of a source tree: its git commit and what differs from it."""

import hashlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePath

SourceState = dict[str, str | bool | None]

COMMIT_FILE = "commit.json"
"""Written at the top of the source tree by the Dockerfile. A file, not a variable: another tree mounted in its place
does not claim that commit."""


def provenance(root: Path) -> SourceState:
    """Return the git commit of the source tree at `root`, "dirty" and "difference"; "unknown" for what is not known.

    Outside git, as in a container image, they are read from COMMIT_FILE.

    "dirty" is True if a tracked file below `root` was changed or there is an untracked Python file, other than copies
    that a run or a package holds. A folder that its repository does not track is unknown.

    "difference" is None if the tree is clean, else a SHA-256 of the names and content of those files, or of all Python
    files below `root` if git does not know them. Equal commits with equal differences are equal code.
    """
    commit = git(root, "rev-parse", "--verify", "HEAD")
    if not commit or not git(root, "ls-files", "--", "."):
        return _from_commit_file(root / COMMIT_FILE)
    status = git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", ".")
    up = git(root, "rev-parse", "--show-cdup")
    if status is None or up is None:
        return {"commit": commit.strip(), "dirty": "unknown", "difference": "unknown"}
    top = root / up.strip()
    entries = [entry for entry in status.split("\0") if not entry.startswith("??") or entry.endswith(".py")]
    names = [entry[3:] for entry in entries if entry and not (entry.startswith("??") and _is_copy(top, entry[3:]))]
    difference = _digest(top, names) if names else None
    return {"commit": commit.strip(), "dirty": bool(names), "difference": difference}


def _is_copy(top: Path, name: str) -> bool:
    """Return True for a file in the results of a run, or in a package, below `top`."""
    return any(
        (re.fullmatch(r"run_\d+", folder.name) and (top / folder / "config.json").is_file())
        or all((top / folder / part).exists() for part in ("manifest.json", "systems", "results"))
        for folder in PurePath(name).parents
    )


def git(root: Path, *arguments: str) -> str | None:
    """Return the output of a git command in `root`, None if git is missing or fails."""
    # A parent git process (such as a hook) sets variables that point at another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables["GIT_OPTIONAL_LOCKS"] = "0"
    command = ["git", "-C", str(root), *arguments]
    try:
        finished = subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.decode(errors="surrogateescape") if finished.returncode == 0 else None


def _digest(folder: Path, names: Iterable[str]) -> str:
    """Return the SHA-256 of the files `names` in `folder`, "unknown" if one is unreadable; git's diff has settings."""
    try:
        states = [[name, *_state(folder / name)] for name in sorted(names)]
    except OSError:
        return "unknown"
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _state(path: Path) -> list[object]:
    """Return the kind of `path` with, for a file, its executable bit and digest; for a link, its target too; for a
    submodule, its provenance."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ["missing"]
    target = [os.readlink(path)] if stat.S_ISLNK(mode) else []
    if path.is_file():
        with path.open("rb") as file:
            return ["file", bool(mode & stat.S_IXUSR), hashlib.file_digest(file, "sha256").hexdigest(), *target]
    if stat.S_ISDIR(mode) and (path / ".git").exists():
        return ["repository", provenance(path)]
    return ["other", *target]


def _from_commit_file(file: Path) -> SourceState:
    """Read commit and dirty as written by the image's build; "unknown" if `file` is missing or invalid."""
    try:
        values = json.loads(file.read_text())
        commit, dirty = values["commit"], values["dirty"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        commit = dirty = None
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        return {"commit": "unknown", "dirty": "unknown", "difference": "unknown"}
    if dirty is False:
        return {"commit": commit, "dirty": False, "difference": None}
    names = [os.fspath(path.relative_to(file.parent)) for path in file.parent.rglob("*.py")]
    return {"commit": commit, "dirty": True if dirty is True else "unknown", "difference": _digest(file.parent, names)}
