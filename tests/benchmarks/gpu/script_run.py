"""Runs of whole scripts with --tiny."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def run(name: str, out: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Run a script with --tiny; return its JSON values and its output."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}", *options, "--tiny", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.json")
    return json.loads(path.read_text()), done.stdout


def passed(values: dict[str, Any]) -> list[str]:
    return [name for name, check in values["checks"].items() if check["passed"]]
