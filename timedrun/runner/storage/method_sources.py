"""Methods that timedrun does not ship, named `module:Class`: what the user named, and their sources, none imported.

The source of a method is the file that defines it and the modules of its folder that this imports, directly or not."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError
from timedrun.runner.storage.benchmark_folders import SHIPPED, package_places, put_here_last
from timedrun.runner.storage.local_imports import with_imports

REFERENCE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII)
SHA256: Final = "source_sha256"
"""Entry of a method in a dumped config: the digest of its source."""
OURS: Final = ("timedrun", "judging", "mlevents", "referee", *SHIPPED)
"""Packages of the source that a run records anyway."""
OWN_METHODS: Final = "own_methods"
"""Folder of a package's source, for the import path, with the methods of no package that it has anyway."""
_named: dict[str, None] = {}


def name_by_user(reference: str) -> None:
    """Record that the user named the method, and put the working directory last on the import path."""
    _named[reference] = None
    put_here_last()


def named_by_user() -> list[str]:
    return list(_named)


def own_methods(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the methods `module:Class` of a dumped config, each with the digest of its source, if it is recorded."""
    listed = values.get("methods") if isinstance(values, dict) else None
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {one["method"]: one.get(SHA256) for one in entries if REFERENCE.fullmatch(str(one.get("method", "")))}


def changes_naming(values: Mapping[str, Any]) -> str:
    """Return what has to follow the file of a dumped config on a command line, so that its methods which the user named
    here are named there: "+module:Class" each."""
    return "".join(f"+{reference}" for reference in own_methods(values) if reference in _named)


def source_file(module: str) -> Path | None:
    """Return the source of `module` on the import path, without importing it or its parents; None if there is none."""
    places = package_places(module) or ()
    files = (file for place in places for file in (place / "__init__.py", place.with_suffix(".py")))
    return next(filter(Path.is_file, files), None)


def source_root(module: str, path: Path) -> Path:
    """Return the folder from which `module`, whose file is `path`, is imported."""
    return path.absolute().parents[module.count(".") + (path.stem == "__init__")]


def source_files(module: str, path: Path) -> dict[str, Path]:
    """Return the files of the source of a method in `module`, whose file is `path`, by the names of their modules. Of a
    folder of installed libraries only the method's own package belongs to it."""
    top = module.partition(".")[0]
    root = source_root(module, path)
    alone = root.name in ("site-packages", "dist-packages")

    def find(name: str) -> Path | None:
        of = name.partition(".")[0]
        file = None if of in OURS or (alone and of != top) else source_file(name)
        return file if file is not None and source_root(name, file) == root else None

    return {module: path} if top in OURS else with_imports({module: path}, find)


def digest_of(files: Mapping[str, Path], read: Callable[[Path], bytes] = Path.read_bytes) -> str:
    """Return the digest of a source, by module: of its one file, or of all with their modules' names."""
    sha256s = {module: hashlib.sha256(read(path)).hexdigest() for module, path in files.items()}
    if len(sha256s) == 1:
        return next(iter(sha256s.values()))
    return hashlib.sha256(json.dumps(sorted(sha256s.items())).encode()).hexdigest()


def require_source(reference: str, sha256: str | None = None) -> tuple[dict[str, Path], str]:
    """Return the files of the method's source by module, the one that defines it first, and their digest.

    Raises UsageError if there is no module, it defines no such class, or it is not the source of `sha256`.
    """
    module, _, name = reference.partition(":")
    if (path := source_file(module)) is None:
        hint = "Run this in the folder that holds it, set PYTHONPATH to that folder, or install it."
        if (here := Path.cwd() / f"{module.replace('.', '/')}.py").exists() or here.with_suffix("").exists():
            hint = (
                f"{here} is in the working directory, from which a file imports nothing: read it, then name the method"
                f" yourself (+{reference}), or set PYTHONPATH."
            )
        raise UsageError(f"{reference}: no source of '{module}' is on the import path; nothing was run. {hint}")
    files = source_files(module, path)
    if sha256 not in (None, now := digest_of(files)):
        raise UsageError(
            f"{named_files(files)} is not the source with which {reference} was recorded (SHA-256"
            f" {str(sha256)[:16]}, now {now[:16]}); nothing was run. Restore it, or take {SHA256} out of the config to"
            " use it as it is."
        )
    if not re.search(rf"^class {name}\b".encode(), path.read_bytes(), re.MULTILINE):  # else a file could run any script
        raise UsageError(f"{path} defines no class {name}; nothing was run.")
    return files, now


def named_files(files: Mapping[str, Path]) -> str:
    """Return a source in words: its first file, and the others' names."""
    first, *rest = files.values()
    return f"{first} (with {', '.join(path.name for path in rest)})" if rest else str(first)
