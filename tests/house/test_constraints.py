"""constraints.txt pins all that setup.sh and the image install."""

import re
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PINNED = {canonicalize_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
OF_CUDA = ("cuda-", "nvidia-", "triton")
"""Beginnings of packages that torch itself pins."""


def test_every_installed_requirement_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [(text, "") for text in sum(project["optional-dependencies"].values(), project["dependencies"])]
    found: set[tuple[str, str]] = set()  # packages, each with an extra or ""
    while waiting:
        text, of_extra = waiting.pop()
        one = Requirement(text)
        name = canonicalize_name(one.name)
        if name.startswith(OF_CUDA) or (one.marker and not one.marker.evaluate({"extra": of_extra})):
            continue
        new = {(name, extra) for extra in {"", *one.extras}} - found
        with suppress(PackageNotFoundError):  # of an extra that is not installed here
            waiting += [(text, extra) for _, extra in new for text in requires(name) or []]
            found |= new
    names = {name for name, _ in found}
    assert {"torch", "jinja2", "pytest"} <= names  # jinja2: torch needs it
    assert names <= PINNED, sorted(names - PINNED)


def test_what_the_image_installs_besides_is_pinned():
    text = (ROOT / "Dockerfile").read_text()
    (listed,) = re.findall(r"printf '%s\\n' (.*) >> /tmp/requirements", text)
    assert {*listed.split(), *re.findall(r"echo (\S+) >> /tmp/requirements", text), "ffcv", "llvmlite"} <= PINNED
