"""Search for benchmark packages in folders, without importing any."""

import ast
import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from mlevents.rounds.own_rules import BEYOND_MLPERF

ROOT: Final = Path(__file__).resolve().parents[3]
SHIPPED: Final = ("image_classification", "image_segmentation", "language_model")
"""Packages of timedrun's own benchmarks."""
SHARED: Final = {
    "language_model.fineweb": ("language_model.gpt", "FINEWEB", "fineweb_configs"),
    "language_model.llama31_8b": ("language_model.gpt", "LLAMA31_8B", "llama31_8b_configs"),
}
"""Timedrun's own benchmarks that train by the modules of another, by the name in configs: that package, and its
BenchmarkSpec and its module of configs that are theirs."""


def nearby() -> dict[str, Path]:
    """Return the folders, by import name, of the benchmarks beside this package, in the working directory and on the
    import path, and of those nested one level below. Nothing is imported."""
    roots = [ROOT, *(Path(entry) for entry in sys.path if entry), Path.cwd()]
    folders: dict[str, Path] = {}
    for root in dict.fromkeys(roots):
        for folder in folders_in(root):
            folders.setdefault(folder.name, folder)
            for nested in folders_in(folder):
                folders.setdefault(f"{folder.name}.{nested.name}", nested)
    folders |= {name: folders[package] for name, (package, *_) in SHARED.items() if package in folders}
    return dict(sorted(folders.items()))


def parts_of(name: str) -> tuple[str, str, str]:
    """Return the package of benchmark `name`, and the names of its BenchmarkSpec and of its module of configs there."""
    return SHARED.get(name, (name, "SPEC", "configs"))


def spec_texts(name: str, folder: Path) -> dict[str, str]:
    """Return title, ruleset and default data of benchmark `name` in `folder`, as far as its source has them as texts.
    Raises OSError, ValueError or SyntaxError if `__init__.py` is missing, is not Python, or has no SPEC."""
    _, spec, _ = parts_of(name)
    for node in ast.parse((folder / "__init__.py").read_text(encoding="utf-8"), str(folder / "__init__.py")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and spec in [getattr(target, "id", "") for target in targets]:
            texts = {str(word.arg): word.value.value for word in value.keywords if isinstance(word.value, ast.Constant)}
            known = {"title": "", "ruleset": BEYOND_MLPERF, "default_data": ""}
            return {field: str(texts.get(field, default)) for field, default in known.items()}
    raise ValueError(f"__init__.py has no {spec} = BenchmarkSpec(...)")


def config_docstrings(name: str, folder: Path) -> dict[str, str]:
    """Return the docstring of every config of benchmark `name` in `folder` by its name `<data>_<name>`, in file order,
    from the source. Raises OSError, ValueError or SyntaxError if `configs.py` is missing or is not Python."""
    _, _, module = parts_of(name)
    file = folder / f"{module}.py"
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def put_shipped_first(top: str) -> None:
    """Let timedrun's own package `top` be found before another of its name, such as a folder of the user."""
    spec = importlib.util.find_spec(top)
    places = spec.submodule_search_locations or () if spec is not None else ()
    if (ROOT / top).is_dir() and not any(os.path.samefile(place, ROOT / top) for place in places):
        sys.path.insert(0, str(ROOT))


def put_here_last() -> None:
    """Let modules of the working directory, of which the user named one, be found after all others."""
    here = os.path.realpath(os.getcwd())
    if here not in map(os.path.realpath, sys.path):
        sys.path.append(here)


def folders_in(root: Path) -> list[Path]:
    configs = root.glob("*/configs.py") if root.is_dir() else ()
    return [
        path.parent
        for path in configs
        if os.path.isfile(path.parent / "train.py") and "SPEC" in _text(path.parent / "__init__.py")
    ]


def package_places(name: str) -> list[Path] | None:
    """Return the folders that package `name` may have, without importing it or its parents, for a module its file
    without suffix; None if there is neither."""
    top, *below = name.split(".")
    if not all(part.isidentifier() for part in (top, *below)):
        return None
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a file, such as __main__
        return []
    if spec and spec.origin and spec.origin.endswith(".py") and not spec.submodule_search_locations:
        return [Path(spec.origin).with_suffix("").joinpath(*below)]
    return None if spec is None else [Path(place, *below) for place in spec.submodule_search_locations or ()]


def package_text(name: str) -> str | None:
    """Return the text of the `__init__.py` of package `name` without importing it or its parents; "" for a module or a
    package without one, None if there is neither."""
    places = package_places(name)
    if places is None or ("." in name and not any(place.is_dir() for place in places)):
        return None
    return "".join(_text(place / "__init__.py") for place in places)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
