"""Docstrings begin as PyTorch's do, with a verb or a noun; texts avoid constructions that stop a native reader."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = {"What", "Whether", "Why", "Nothing", "How", "That", "Where", "Who"}
FOLDERS = [
    "timedrun",
    "logging/mlevents",
    "logging/judging",
    "referee",
    "image_classification",
    "language_model",
    "benchmarks",
]
UNCLEAR = {
    r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b|faster\b)\w": "is not a ...",
    r"\bso often\b": "every ...",
    r"\bask(?:s|ed)? for\b": "requires, requested",
    r"\bmade[ -]up\b": "simulated",
    r"\bnot asked\b": "not run",
    r"\blies? beside\b": "is next to",
    r"\b[Gg]ive (?:--|another|it\b)": "use, set, pass",
    r"\b(?:samples|images|sequences|tokens|steps|nats|pixels|bits|work|sentence|task|heartbeat) a "
    r"(?:second|side|token|channel|step|line|node)\b": "per ...",
}
"""Patterns of English that a native reader stumbles over, and what to write."""


def public_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of the module and of every public class and function in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module):
            yield 1, ast.get_docstring(node) or ""
        elif isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.lineno, ast.get_docstring(node) or ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_public_docstring_begins_with_a_question(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in public_docstrings(path)
        if text and text.split()[0].rstrip(",.:") in QUESTIONS
    ]
    assert not found, "begin with an imperative verb and the field's noun: " + ", ".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_avoid_constructions_that_stop_a_reader(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {match[0]!r} (write: {better})"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for pattern, better in UNCLEAR.items()
        for match in re.finditer(pattern, node.value)
    ]
    assert not found, "\n".join(found)
