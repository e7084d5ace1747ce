"""`timedrun list`: the benchmarks and their configs, read without importing torch."""

from __future__ import annotations

import argparse
import json

from timedrun import stdio
from timedrun.benchmark import find, nearby
from timedrun.errors import ExitCode


def list(arguments: argparse.Namespace) -> ExitCode:
    """Print every benchmark nearby, or the one named, with its configs."""
    benchmarks = [find(name) for name in ([arguments.benchmark] if arguments.benchmark else nearby())]
    if arguments.json:
        rows = [
            {"benchmark": one.name, "title": one.spec.title, "ruleset": one.spec.ruleset, "configs": one.config_names}
            for one in benchmarks
        ]
        print(json.dumps(rows, indent=2))
        return ExitCode.OK
    for one in benchmarks:
        print(stdio.fitted(f"{one.name}: {one.spec.title} (ruleset {one.spec.ruleset})", 4))
        for config, docstring in one.config_names.items():
            print(stdio.fitted(f"  {config:28} {docstring.partition(chr(10))[0]}", 31))
    return ExitCode.OK
