"""Runs of whole scripts with --tiny."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest


def run(name: str, out: Path, *options: str) -> dict[str, Any]:
    """Run a script with --tiny in this process; return its JSON values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [name, *options, "--tiny", "--out", str(out)])
        importlib.import_module(f"benchmarks.gpu.{name}").main()
    (path,) = out.glob("*.json")
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def passed(values: dict[str, Any]) -> list[str]:
    return [name for name, check in values["checks"].items() if check["passed"]]
