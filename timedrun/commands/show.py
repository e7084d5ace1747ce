"""`timedrun show`: the settings of a config, or the difference of two."""

from __future__ import annotations

import argparse
import json

from timedrun.benchmark import find
from timedrun.commands.run import settings_of
from timedrun.config import difference, digest, dump, flatten
from timedrun.config_choice import config_of
from timedrun.errors import ExitCode
from timedrun.submission.scoring.score_table import columns


def show(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Print every setting of a config, or only those in which two configs differ."""
    if arguments.diff:
        benchmark = find(arguments.benchmark)
        left, right = (config_of(benchmark, text, arguments.data) for text in arguments.diff)
        rows = difference(left, right)
        if arguments.json:
            print(json.dumps([{"setting": k, left.name: a, right.name: b} for k, a, b in rows], indent=2))
        else:
            settings = [[k, _text(a), _text(b)] for k, a, b in rows if k not in ("name", "notes")]
            print_table(["setting", left.name, right.name], settings)
        return ExitCode.OK
    _, config = settings_of(arguments, rest)
    if arguments.json:
        print(json.dumps(dump(config), indent=2))
        return ExitCode.OK
    print_table(["setting", "value"], [[key, _text(value)] for key, value in flatten(dump(config)).items()])
    print(f"digest {digest(config)}")
    return ExitCode.OK


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print rows in columns as wide as their widest cell."""
    print("\n".join(columns(header, rows)))
