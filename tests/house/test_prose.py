"""Docstrings begin as PyTorch's do, with a verb or a noun."""

import ast
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
