"""constraints.txt pins all that setup.sh and the image install."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PINNED = {canonicalize_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
OF_CUDA = ("cuda-", "nvidia-", "triton")
"""Beginnings of packages that torch itself pins."""


def needed(texts: list[str], extras: set[str], seen: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Add to `seen` the packages of these requirements, each with an extra or "", and those that they need here."""
    for one in map(Requirement, texts):
        name = canonicalize_name(one.name)
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        if name.startswith(OF_CUDA) or {(name, extra) for extra in {"", *one.extras}} <= seen:
            continue
        seen |= {(name, extra) for extra in {"", *one.extras}}
        try:
            needed(requires(name) or [], one.extras, seen)
        except PackageNotFoundError:
            seen.discard((name, ""))  # of an extra that is not installed here
    return seen


def test_every_installed_requirement_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extras = sum(project["optional-dependencies"].values(), [])
    found = {name for name, _ in needed(project["dependencies"] + of_extras, set(), set())}
    assert {"torch", "jinja2", "pytest"} <= found  # jinja2: torch needs it
    assert found <= PINNED, sorted(found - PINNED)


def test_what_the_image_installs_besides_is_pinned():
    text = (ROOT / "Dockerfile").read_text()
    (listed,) = re.findall(r"printf '%s\\n' (.*) >> /tmp/requirements", text)
    assert {*listed.split(), *re.findall(r"echo (\S+) >> /tmp/requirements", text), "ffcv", "llvmlite"} <= PINNED
