"""Modules that a Python file imports, found in its source. Nothing is imported."""

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path


def with_imports(files: Mapping[str, Path], find: Callable[[str], Path | None]) -> dict[str, Path]:
    """Return `files`, by the names of their modules, and those that they import, directly or not, as far as `find` has
    a file for a module. What is imported by a call, as `importlib.import_module`, is not seen."""
    found, waiting = dict(files), list(files)
    while waiting:
        module = waiting.pop()
        for name in _imported(found[module], module):
            if name not in found and (path := find(name)) is not None:
                found[name] = path
                waiting.append(name)
    return found


def _imported(path: Path, module: str) -> Iterator[str]:
    """Yield the names in the import statements of a file, after their parents; none if it is not Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            names = [f"{origin}.{alias.name}" for alias in node.names if alias.name != "*"] or [origin]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: length + 1]) for length in range(len(parts)))
