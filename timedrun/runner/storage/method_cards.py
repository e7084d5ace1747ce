"""Cards of the methods: what each changes, its paper and its published effect, read as data without importing torch."""

import ast
import functools
import tomllib
from dataclasses import dataclass, field
from typing import Any, Final

import cattrs

from timedrun.runner.storage.benchmark_folders import ROOT

METHODS: Final = ROOT / "timedrun" / "methods"
CARDS: Final = METHODS / "cards"
WORDS: Final = ("method", "methods")
"""Words of `timedrun show` that stand for the methods, and cannot name a benchmark there."""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Publication of a method."""

    authors: str
    year: int
    arxiv: str = ""
    title: str = ""
    """Of a publication that is not on arXiv."""

    def __str__(self) -> str:
        return f"{self.authors} {self.year} ({f'arXiv {self.arxiv}' if self.arxiv else self.title})"


@dataclass(frozen=True, kw_only=True)
class Published:
    """Effect of a method as its source states it; not measured here."""

    effect: str
    model: str
    data: str
    source: str

    def __str__(self) -> str:
        return f"{self.model} on {self.data}: {self.effect} ({self.source})"


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """Card of a method, or of a setting that is used like one."""

    name: str
    title: str
    summary: str
    """One sentence."""
    changes: str
    acts: str
    """When it acts."""
    tasks: str
    constraints: str = ""
    notes: str = ""
    setting: str = ""
    """Options that switch it on; empty: a Method of REGISTRY."""
    interactions: dict[str, str] = field(default_factory=dict)
    """Method or setting -> how the two act together."""
    papers: tuple[Paper, ...] = ()
    published: tuple[Published, ...] = ()


@functools.cache
def cards() -> dict[str, MethodCard]:
    """Return every card by name, in alphabetical order. Raises cattrs.BaseValidationError if a card has an unknown
    field or lacks one, tomllib.TOMLDecodeError if it is not TOML; a note names the file."""
    found = {}
    for path in sorted(CARDS.glob("*.toml")):
        try:
            values = {"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))}
            found[path.stem] = cattrs.Converter(forbid_extra_keys=True).structure(values, MethodCard)
        except (tomllib.TOMLDecodeError, cattrs.BaseValidationError) as error:
            error.add_note(f"in {path}")
            raise
    return found


def stages() -> dict[str, str]:
    """Return the stage of every Method by the method's name, in the order of the stages, from the source."""
    nodes = [node for path in METHODS.glob("*.py") for node in ast.parse(path.read_text(encoding="utf-8")).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    order = [ast.unparse(line.targets[0]) for line in classes["Stage"].body if isinstance(line, ast.Assign)]
    found: dict[str, str] = {}
    for node in classes.values():
        words: dict[Any, Any] = {word.arg: word.value for word in node.keywords}
        if isinstance(words.get("name"), ast.Constant):
            found[words["name"].value] = words["stage"].attr if "stage" in words else order[0]
    return dict(sorted(found.items(), key=lambda pair: (order.index(pair[1]), pair[0])))
