"""Sides of a race that are commits: a working tree of git for each, removed afterwards."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from judging.ground import stdio
from judging.ground.errors import PreflightError, UsageError
from mlevents.terminal_escape import printable
from timedrun.runner.provenance.source import git

WORKTREE: Final = "worktree"  # names the repository's own working tree, with its changes that are in no commit
LOCKED: Final = re.compile(
    r"(^|/)((pyproject|pixi)\.toml|setup\.(py|cfg)|Pipfile|Dockerfile|[\w-]+\.lock|environment\.ya?ml"
    r"|(requirements|constraints)[^/]*\.txt)$"
)
"""Files that fix what is installed."""
MOST_NAMED: Final = 5


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A commit, or the working tree."""

    name: str  # as typed
    commit: str  # its full hash; of the working tree, that of HEAD

    @property
    def is_worktree(self) -> bool:
        return self.name == WORKTREE


def revisions(repository: Path, names: Sequence[str]) -> list[Revision]:
    """Return the commits of `names`. Raises UsageError for one that git does not know and for changes in no side."""
    if git(repository, "rev-parse", "--git-dir") is None:
        raise UsageError(f"--repo {repository} is no repository of git; nothing was run.")
    named = []
    for name in names:
        known_as = "HEAD" if name == WORKTREE else name
        commit = git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{known_as}^{{commit}}")
        if commit is None:
            near = git(repository, "branch", "--all", "--format=%(refname:short)") or ""
            branches = ", ".join(near.split()) or "none"
            raise UsageError(f"--at {name}: no such commit in {repository}; branches: {branches}.")
        named.append(Revision(name=name, commit=commit.strip()))
    changed = (git(repository, "status", "--porcelain", "--untracked-files=no") or "").splitlines()
    if changed and WORKTREE not in names:
        files = ", ".join(line[3:] for line in changed[:MOST_NAMED])
        raise UsageError(
            f"{repository} has changes that are in no commit ({len(changed)} files: {files}), so no side would have"
            f" them: commit them, or name --at {WORKTREE} for the tree as it is."
        )
    return named


@contextmanager
def checked_out(
    repository: Path, sides: Mapping[str, Revision], *, build: str = "", shared: Sequence[str] = ()
) -> Iterator[dict[str, Path]]:
    """Check the revision of every side out in a folder of its own, and yield the folders by the side.

    Args:
        repository: its top or a folder below it, which makes no difference.
        build: command line that is run in each folder first.
        shared: untracked files and folders of the repository, such as data, that are linked into each; of a folder of
            which the commit has a part, what is untracked in it.

    Raises PreflightError if a folder cannot be made, or a build fails.
    """
    repository = _top(repository)
    places: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="timedrun-commits-") as parent:
        try:
            for name, revision in sides.items():
                places[name] = repository if revision.is_worktree else Path(parent) / name
                if not revision.is_worktree:
                    _add(repository, revision, places[name], shared)
                if build:
                    stdio.stage(f"{revision.name}: {build}")
                    _build(build, revision, places[name])
            yield places
        finally:
            for place in places.values():
                if place != repository:
                    git(repository, "worktree", "remove", "--force", str(place))


def _build(command: str, revision: Revision, place: Path) -> None:
    built = subprocess.run(["/bin/sh", "-c", command], cwd=place, capture_output=True, text=True, errors="replace")
    if built.returncode:
        last = " ".join((built.stdout + built.stderr).splitlines()[-MOST_NAMED:]) or "it printed nothing"
        raise PreflightError([f"{revision.name}: --build ended with exit code {built.returncode}: {printable(last)}"])


def _add(repository: Path, side: Revision, place: Path, shared: Sequence[str]) -> None:
    if git(repository, "worktree", "add", "--detach", str(place), side.commit) is None:
        raise PreflightError([f"{side.name}: git worktree add failed for {side.commit[:12]}; see `git worktree list`"])
    for name in shared:
        inside = Path(os.path.relpath(repository / name, repository))
        source, link = (repository / inside).resolve(), place / inside
        if ".." in inside.parts:
            raise PreflightError([f"share {name}: it is outside of {repository}; a command can name it where it is"])
        if not source.exists():
            raise PreflightError([f"share {name}: {source} does not exist"])
        pairs = [(source, link)]
        if link.exists():
            pairs = [(repository / path, place / path) for path in _untracked(repository, inside)]
        if not sum(_link(*pair) for pair in pairs):
            raise PreflightError([f"share {name}: {side.name} has it in the commit; leave it out"])


def _top(repository: Path) -> Path:
    return Path((git(repository, "rev-parse", "--show-toplevel") or str(repository)).rstrip("\n"))


def _untracked(repository: Path, path: Path) -> list[Path]:
    """Return the files that are untracked in `path`, and folders in place of theirs if all of it is."""
    listed = git(repository, "--literal-pathspecs", "ls-files", "--others", "--directory", "-z", "--", str(path)) or ""
    return [Path(name) for name in listed.split("\0") if name]


def _link(source: Path, link: Path) -> bool:
    """Link `link` to `source`, or, in a folder that is there, what it lacks; return True if there is a new link."""
    if source.is_dir() and link.is_dir() and not link.is_symlink():
        return sum(_link(path, link / path.name) for path in source.iterdir()) > 0
    if linked := not os.path.lexists(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source)
    return linked


def hint(repository: Path, place: Path, lines: Iterable[str]) -> str:
    """Return the option that gives a commit's folder `place` a file that the last `lines` of a run name and that is
    missing there: in a submodule, or untracked in `repository`; "" if there is none."""
    repository, modules = _top(repository), git(place, "config", "-f", ".gitmodules", "--get-regexp", r"\.path$") or ""
    empty = [name for line in modules.splitlines() if not any((place / (name := line.split(" ", 1)[1])).glob("*"))]
    for word in re.findall(r"'[^'\n]+'|[\w./+@-]+", "\n".join(lines)):
        for name in (word.strip("'").rstrip("."), word.strip("'").replace(".", "/")):  # a file, a module of Python
            path = Path(os.path.relpath(place / name, place))
            if ".." in path.parts or os.path.exists(place / path):
                continue
            if any(path.is_relative_to(module) for module in empty):
                return f"{path} is in a submodule, which is empty here: add --build 'git submodule update --init'"
            missing = next(part for part in (*reversed(path.parents), path) if not os.path.exists(place / part))
            if os.path.exists(repository / path) and _untracked(repository, missing):
                several = missing.parent if (repository / missing).is_file() and missing.parent.name else missing
                return f"{path} is in no commit: add share = [{json.dumps(str(several))}] to the race's file of TOML"
    return ""


def differences(repository: Path, first: Revision, second: Revision) -> list[str]:
    """Return lines on what differs between two revisions: commits, files, and files that fix what is installed."""
    span = f"{first.commit}..{second.commit}"
    subjects = (git(repository, "log", "--format=%h %s", span) or "").splitlines()
    lines = [f"commits in {second.name} and not in {first.name}: {len(subjects)}"]
    lines += [f"    {subject}" for subject in subjects[:MOST_NAMED]]
    lines += [f"    and {len(subjects) - MOST_NAMED} more"] if len(subjects) > MOST_NAMED else []
    files = (git(repository, "diff", "--name-only", first.commit, second.commit) or "").splitlines()
    locked = [name for name in files if LOCKED.search(name)]
    lines.append(f"files that differ: {len(files)}; of what is installed: {', '.join(locked) or 'none'}")
    return lines
