"""The size and structure of the project, counted: `python -m tests.house.structure` prints them."""

import argparse
import ast
import doctest
import functools
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "logging/mlevents",
    "logging/judging",
    "referee",
    "timedrun",
    "image_classification",
    "image_segmentation",
    "language_model",
)
HOUSES = {
    "judge": ("logging",),
    "referee": ("referee",),
    "trainer": ("timedrun", "image_classification", "image_segmentation", "language_model", "benchmarks", "examples"),
    "tests": ("tests",),
}
"""Folders of each house."""
OTHER_KINDS = ("toml", "js", "css", "html", "sh")
EVERYWHERE = [folder for folders in HOUSES.values() for folder in folders] + ["scripts"]


class Graph(NamedTuple):
    """Imports among the rooms of a package: its direct children, each a module or a package."""

    rooms: int
    floors: int
    """Length of the longest chain of imports among the rooms."""
    arrows: int
    """Pairs of rooms of which the first imports from the second."""
    circles: int
    """Arrows of which the second room leads back to the first."""


def sources(folder: str) -> Iterator[Path]:
    return (path for path in (ROOT / folder).rglob("*.py") if ".venv" not in path.parts)


def lines(folders: Iterable[str], kinds: Iterable[str] = ("py",)) -> int:
    """Return the number of lines of the files in `folders` whose names end with `kinds`, without `example_lines`."""
    files = (path for folder in folders for kind in kinds for path in (ROOT / folder).rglob(f"*.{kind}"))
    return sum(len(path.read_text().splitlines()) - example_lines(path) for path in files if ".venv" not in path.parts)


@functools.cache
def example_lines(path: Path) -> int:
    """Return the lines that examples add to a module's docstrings: headings, code, output, closing quotes."""
    if path.suffix != ".py" or ">>>" not in (text := path.read_text()):
        return 0
    documented = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef | ast.FunctionDef))
    parts = [(ast.get_docstring(node) or "").partition("\n\nExamples:\n") for node in documented]
    examples = [part for *_, code in parts for part in doctest.DocTestParser().get_examples(code)]
    code = sum(f"{example.source}{example.want}".count("\n") for example in examples)
    return code + sum(2 + ("\n\n" not in before) for before, heading, _ in parts if heading)


def product_modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name."""
    modules = {}
    for package in PACKAGES:
        base = (ROOT / package).parent
        for path in sources(package):
            parts = path.relative_to(base).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Return what each module of the product imports anywhere in it, inside functions and `if TYPE_CHECKING` too."""
    modules = product_modules()
    found: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found[module] |= {name if name in modules else node.module for name in names}
    return found


def imports() -> dict[str, set[str]]:
    """Return the modules of the product that each of its modules imports."""
    return {name: imported & all_imports().keys() - {name} for name, imported in all_imports().items()}


def graph_of(package: str) -> Graph:
    """Return the graph of the rooms of the top-level `package`."""
    rooms: dict[str, set[str]] = {}
    for module, imported in imports().items():
        if (room := _room(module, package)) is not None:
            rooms.setdefault(room, set()).update(
                other for name in imported if (other := _room(name, package)) is not None and other != room
            )
    reached = {room: reachable(room, rooms) for room in rooms}
    circles = sum(room in reached[other] for room, others in rooms.items() for other in others)
    floors: dict[str, int] = {}
    down = {room: {other for other in others if room not in reached[other]} for room, others in rooms.items()}
    for room in TopologicalSorter(down).static_order():
        floors[room] = 1 + max((floors[other] for other in down[room]), default=0)
    return Graph(len(rooms), max(floors.values()), sum(map(len, rooms.values())), circles)


def _room(module: str, package: str) -> str | None:
    """Return the direct child of `package` that holds `module`, the package itself, or None."""
    if module == package:
        return package
    return ".".join(module.split(".")[: package.count(".") + 2]) if module.startswith(f"{package}.") else None


def reachable(room: str, rooms: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [room]
    while waiting:
        for other in rooms[waiting.pop()] - reached:
            reached.add(other)
            waiting.append(other)
    return reached


def verbs_and_options() -> tuple[int, int]:
    """Return the number of verbs of the command line and of their options, each verb's own counted."""
    from timedrun.commands.parser import parser

    (verbs,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    ignored = {"-h", "--help", "--json"}
    actions = (action for verb in verbs.choices.values() for action in verb._actions if action.option_strings)
    options = [action for action in actions if not ignored & {*action.option_strings}]
    return len(verbs.choices), len(options)


def main() -> None:
    for house, folders in HOUSES.items():
        print(f"{house:9}{lines(folders):7} lines")
        for folder in folders[: len(folders) if len(folders) > 1 else 0]:
            print(f"  {folder:22}{lines([folder]):7}")
    examples = sum(example_lines(path) for folders in HOUSES.values() for folder in folders for path in sources(folder))
    print(f"{'examples':9}{examples:7} lines, of docstrings, counted apart")
    print(f"{', '.join(OTHER_KINDS)}: {lines(EVERYWHERE, OTHER_KINDS)} lines")
    parts = [f"timedrun.{part}" for part in ("methods", "runner", "racing", "evidence", "commands")]
    for package in (*(Path(folder).name for folder in PACKAGES), *parts):
        graph = graph_of(package)
        print(", ".join(f"{name} {value}" for name, value in ({"package": package} | graph._asdict()).items()))
    print("verbs {}, options {}".format(*verbs_and_options()))


if __name__ == "__main__":
    main()
