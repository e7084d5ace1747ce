"""Sides of a race that are commits: a working tree of git for each, removed afterwards."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from judging.ground import stdio
from judging.ground.errors import PreflightError, UsageError
from mlevents.terminal_escape import printable
from timedrun.runner.provenance.source import git

MOST_NAMED: Final = 5


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A commit."""

    name: str  # as typed
    commit: str  # its full hash


def revisions(repository: Path, names: Sequence[str]) -> list[Revision]:
    """Return the commits that `names` name. Raises UsageError for one that git does not know, and for changes that are
    in no side."""
    if git(repository, "rev-parse", "--git-dir") is None:
        raise UsageError(f"--repo {repository} is no repository of git; nothing was run.")
    named = []
    for name in names:
        commit = git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if commit is None:
            raise UsageError(f"--at {name}: no such commit in {repository}; `git branch --all` lists branches.")
        named.append(Revision(name=name, commit=commit.strip()))
    changed = (git(repository, "status", "--porcelain", "--untracked-files=no") or "").splitlines()
    if changed and "" not in [git(repository, "diff", "--name-only", revision.commit, "--") for revision in named]:
        files = ", ".join(line[3:] for line in changed[:MOST_NAMED])
        raise UsageError(
            f"{repository} has changes that are in no commit ({len(changed)} files: {files}), so no side would have"
            " them: commit them, or name the tree as it is by --at $(git stash create)."
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
        shared: untracked files and folders of the repository, such as data, that are linked into each.

    Raises PreflightError if a folder cannot be made, or a build fails.
    """
    repository = _top(repository)
    places: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="timedrun-commits-") as parent:
        try:
            for name, revision in sides.items():
                places[name] = Path(parent) / name
                _add(repository, revision, places[name], shared)
                if build:
                    stdio.stage(f"{revision.name}: {build}")
                    _build(build, revision, places[name])
            yield places
        finally:
            for place in places.values():
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
        if os.path.lexists(link):
            raise PreflightError([f"share {name}: {side.name} has it in the commit; name what is untracked in it"])
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source)


def _top(repository: Path) -> Path:
    return Path((git(repository, "rev-parse", "--show-toplevel") or str(repository)).rstrip("\n"))
