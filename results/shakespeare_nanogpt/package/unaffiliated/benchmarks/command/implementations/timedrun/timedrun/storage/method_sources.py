"""Methods that timedrun does not ship, named `module:Class`: what the user named, and their sources, none imported.

The source of a method is the file that defines it and the modules of its folder that this imports, directly or not."""

import ast
import hashlib
import importlib.util
import json
import re
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError
from timedrun.storage.benchmark_folders import SHIPPED, added_by_us, package_places
from timedrun.storage.local_imports import with_imports

REFERENCE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII)
SHA256: Final = "source_sha256"
"""Entry of a method in a dumped config: the digest of its source."""
OURS: Final = ("timedrun", "judging", "mlevents", "referee", *SHIPPED)
"""Packages of the source that a run records anyway."""
OWN_METHODS: Final = "own_methods"
"""Folder of a package's source, for the import path, with the methods of no package that it has anyway."""
_named: dict[str, None] = {}
_only_named: set[str] = set()
"""Top-level modules that this process had not imported, for its benchmark, when a method of theirs was named."""


def installed() -> dict[str, str]:
    """Return the methods behind entry points of the group `timedrun.methods`, `module:Class` by name."""
    return {entry.name: entry.value for entry in sorted(entry_points(group="timedrun.methods"), key=lambda e: e.name)}


def name_by_user(reference: str) -> None:
    """Record that the user named the method: its module may come from the working directory."""
    _named[reference] = None


def named_by_user() -> list[str]:
    return list(_named)


def own_methods(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the methods `module:Class` of a dumped config, each with the digest of its source, if it is recorded."""
    listed = values.get("methods") if isinstance(values, dict) else None
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {
        entry["method"]: entry.get(SHA256) for entry in entries if REFERENCE.fullmatch(str(entry.get("method", "")))
    }


def changes_naming(values: Mapping[str, Any]) -> str:
    """Return what has to follow the file of a dumped config on a command line, so that its methods which the user named
    here are named there: "+module:Class" each."""
    return "".join(f"+{reference}" for reference in own_methods(values) if reference in _named)


def source_file(module: str, *, working_directory: bool = False) -> Path | None:
    """Return the source of `module` on the import path, or else in the working directory, without importing it or its
    parents; None if there is none."""
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a file, such as __main__
        spec = None
    places = [Path(place, *below) for place in (spec and spec.submodule_search_locations) or ()]
    files = [Path(spec.origin)] if spec and spec.origin and not below else []
    places += [Path.cwd().joinpath(top, *below)] if working_directory else []
    files += [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)


def source_root(module: str, path: Path) -> Path:
    """Return the folder from which `module`, whose file is `path`, is imported."""
    return path.parents[module.count(".") + (path.stem == "__init__")]


def source_files(module: str, path: Path) -> dict[str, Path]:
    """Return the files of the source of a method in `module`, whose file is `path`, by the names of their modules. Of a
    folder of installed libraries only the method's own package belongs to it."""
    top = module.partition(".")[0]
    root = source_root(module, path.absolute())
    alone = _is_of_libraries(root)

    def find(name: str) -> Path | None:
        of = name.partition(".")[0]
        if of in OURS or (alone and of != top):
            return None
        file = source_file(name, working_directory=True)
        return file if file is not None and file.absolute().is_relative_to(root) else None

    return {module: path} if top in OURS else with_imports({module: path}, find)


def _is_of_libraries(folder: Path) -> bool:
    return folder.name in ("site-packages", "dist-packages") or str(folder) in sysconfig.get_paths().values()


def digests_of(files: Mapping[str, Path]) -> dict[str, str]:
    return {module: hashlib.sha256(path.read_bytes()).hexdigest() for module, path in files.items()}


def digest_of(sha256s: Mapping[str, str]) -> str:
    """Return the digest of a source by those of its files: its one file's, or that of all with their modules' names."""
    if len(sha256s) == 1:
        return next(iter(sha256s.values()))
    return hashlib.sha256(json.dumps(sorted(sha256s.items())).encode()).hexdigest()


def require_source(reference: str, sha256: str | None = None) -> tuple[dict[str, Path], dict[str, str], ast.ClassDef]:
    """Return the files of the method's source, the one that defines it first, their SHA-256s, both by module, and the
    class. A method that the user did not name comes from a file of settings, which names nothing in the working
    directory.

    Raises UsageError if there is no module, it defines no such class, or it is not the source of `sha256`.
    """
    module, _, name = reference.partition(":")
    top = module.partition(".")[0]
    named = reference in _named
    if named and top not in sys.modules:
        _only_named.add(top)
    path = source_file(module, working_directory=named)
    theirs = top in sys.modules and top not in _only_named  # a module of the benchmark, which the user named
    if path is not None and not named and not theirs and added_by_us(path, top):
        path = None
    if path is None:
        here = source_file(module, working_directory=True)
        hint = "Run this in the folder that holds it, set PYTHONPATH to that folder, or install it."
        if here is not None:
            hint = (
                f"{here} is in the working directory, from which a file imports nothing: read it, then name the method"
                f" yourself (+{reference}), or set PYTHONPATH."
            )
        elif module.endswith(".py"):
            hint = f"Name the module without .py: {module.removesuffix('.py')}:{name}."
        elif module == top and package_places(top) is not None:
            raise UsageError(f"{reference}: module '{module}' has no Python source, so no run can record it.")
        raise UsageError(f"{reference}: no module '{module}' is on the import path; nothing was run. {hint}")
    files = source_files(module, path)
    sha256s = digests_of(files)
    if sha256 not in (None, now := digest_of(sha256s)):
        raise UsageError(
            f"{named_files(files)} is not the source with which {reference} was recorded (SHA-256"
            f" {str(sha256)[:16]}, now {now[:16]}); nothing was run. Restore it, or take {SHA256} out of the config to"
            " use it as it is."
        )
    try:
        classes = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef) and node.bases]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not Python ({error}); nothing was run.") from None
    if (defined := next((node for node in classes if node.name == name), None)) is None:
        raise UsageError(f"{path} defines no class {name} with a base class, such as Method; nothing was run.")
    return files, sha256s, defined


def named_files(files: Mapping[str, Path]) -> str:
    """Return a source in words: its first file, and the others' names."""
    first, *rest = files.values()
    return f"{first} (with {', '.join(path.name for path in rest)})" if rest else str(first)
