"""`timedrun list` and `timedrun show`: the benchmarks there are, their configs, and what a config holds."""

from __future__ import annotations

import argparse
import json

from timedrun.benchmark import find, nearby
from timedrun.commands.run import settings_of
from timedrun.config import difference, digest, dump, flatten
from timedrun.errors import ExitCode
from timedrun.submission.scoring.score_table import columns


def list_benchmarks(arguments: argparse.Namespace) -> ExitCode:
    """Every benchmark nearby, or the one named, with its configs."""
    rows = []
    for name in [arguments.benchmark] if arguments.benchmark else nearby():
        benchmark = find(name)
        spec = benchmark.spec
        configs = {config: function.__doc__ or "" for config, function in benchmark.config_functions.items()}
        rows.append({"benchmark": name, "title": spec.title, "ruleset": spec.ruleset, "configs": configs})
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return ExitCode.OK
    for row in rows:
        print(f"{row['benchmark']}: {row['title']} (ruleset {row['ruleset']})")
        assert isinstance(row["configs"], dict)
        for config, words in row["configs"].items():
            print(f"  {config:28} {words.splitlines()[0]}")
    return ExitCode.OK


def show(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Every setting of a config, or only those in which two configs differ."""
    if arguments.diff:
        benchmark = find(arguments.benchmark)
        left, right = (benchmark.config(name, arguments.data) for name in arguments.diff)
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
    """Rows in columns as wide as their widest cell."""
    print("\n".join(columns(header, rows)))
