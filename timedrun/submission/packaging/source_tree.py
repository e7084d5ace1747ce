"""Source files of a package, from which its results can be repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from judging.ground.errors import TimedrunError
from timedrun.provenance.system import git
from timedrun.storage.benchmark_folders import nearby, package_places

FOLDERS = ("timedrun", "logging/mlevents", "mlevents", "scripts")
"""Folders that every benchmark needs; `mlevents` is at the top if timedrun was installed from a wheel."""

FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")

FOR_THE_REPOSITORY = ("scripts/build_image.sh", "scripts/demo.sh", "scripts/test.sh", "scripts/test_pythons.sh")
"""Scripts that need files no package has: the Dockerfile, other benchmarks, the tests."""


def source_files(source: Path, benchmark: str) -> dict[str, Path]:
    """Return the files of timedrun and of the top-level package of `benchmark` by their path in the package, sorted.

    These are the files that git tracks below `source`, and Python files that it neither tracks nor ignores, since runs
    may have imported them; outside of git, all files except hidden ones and caches. A benchmark package from elsewhere
    is taken from the import path or the working directory.

    Raise TimedrunError if there is no package `benchmark` (an import name), or the source holds a symbolic link.
    """
    place = benchmark.partition(".")[0]  # a nested benchmark imports modules of its parents
    found = dict(_below(source, (*FOLDERS, place), FILES))
    if not any(name.startswith(f"{place}/") for name in found):
        found |= dict(_below(_import_root(source, benchmark), (place,), ()))
    for name, file in found.items():
        folders = [file.parents[level] for level in range(name.count("/"))]
        if link := next((path for path in (file, *folders) if path.is_symlink()), None):
            raise TimedrunError(f"{link}: the source holds a symbolic link ({name}); a package may contain only files.")
    return dict(sorted(found.items()))


def uncommitted(source: Path, files: Mapping[str, Path]) -> list[str]:
    """Return the `files` below `source` that git does not track, by their path in the package, sorted; none outside of
    git."""
    tracked = _listed(source)
    ours = {place for place, file in files.items() if file == source / place}
    return sorted(ours.difference(tracked)) if tracked else []


def _below(root: Path, folders: tuple[str, ...], files: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    names = _listed(root, "--", *folders, *files)
    # git lists no code of a tree that was never committed: take all files.
    if not any(name.endswith(".py") for name in names):
        names = [name for folder in folders for name in _walk(root, folder)]
        names += [name for name in files if (root / name).is_file()]
    else:
        others = _listed(root, "--others", "--exclude-standard", "--", *folders)
        names += [name for name in others if name.endswith(".py")]
    for name in names:
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))
        left_out = hidden or name in FOR_THE_REPOSITORY or name.endswith((".pyc", ".draft"))
        if not left_out and os.path.lexists(root / name):
            yield name, root / name


def _listed(root: Path, *arguments: str) -> list[str]:
    return [name for name in (git(root, "ls-files", "-z", *arguments) or "").split("\0") if name]


def _walk(root: Path, folder: str) -> Iterator[str]:
    if (root / folder).is_symlink():
        yield folder
    for parent, folders, names in os.walk(root / folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]  # not followed, but listed to be refused
        for name in (*names, *links):
            yield (Path(parent) / name).relative_to(root).as_posix()


def _import_root(source: Path, benchmark: str) -> Path:
    """Return the folder on the import path, or else the working directory, that holds the package `benchmark`. Nothing
    is imported."""
    places = [place for place in package_places(benchmark) or () if place.is_dir()]
    if here := nearby().get(benchmark):
        places.append(here)
    if not places:
        raise TimedrunError(
            f"{source} has no folder {benchmark.replace('.', '/')} and no package {benchmark} is installed: its source "
            "cannot be packaged. Package on the machine of the runs."
        )
    return places[0].resolve().parents[benchmark.count(".")]
