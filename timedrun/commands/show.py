"""`timedrun show`: the benchmarks with their configs, or the methods; of one the settings, or the card."""

import argparse
import json
from pathlib import Path
from typing import Any

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from mlevents.terminal_escape import printable
from timedrun.runner.benchmark import find
from timedrun.runner.storage import method_cards
from timedrun.runner.storage.benchmark_folders import config_docstrings, nearby, spec_texts


def show(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """List what there is, or show the config or the method that is named."""
    if not (arguments.config or arguments.diff or arguments.data or rest):
        return list_configs(arguments)
    if arguments.benchmark is None:
        raise UsageError(f"name a benchmark and a config before {rest[0] if rest else 'options'}.")
    from timedrun.commands.shown_config import show_config  # with torch

    arguments.config = arguments.config or "baseline"
    return show_config(arguments, rest)


def list_configs(arguments: argparse.Namespace) -> ExitCode:
    """Print every benchmark nearby, or the one named, with its configs, or every method; report unreadable ones."""
    if arguments.benchmark in method_cards.WORDS:
        return _list_methods(arguments.json)
    if arguments.benchmark:
        benchmark = find(arguments.benchmark, working_directory=True)
        folders = {benchmark.name: Path(benchmark.package.__path__[0])}
    else:
        folders = nearby()
    rows: list[dict[str, Any]] = []
    for name, folder in folders.items():
        try:
            texts, configs = spec_texts(name, folder), config_docstrings(name, folder)
            rows.append({"benchmark": name, "title": texts["title"], "ruleset": texts["ruleset"], "configs": configs})
        except (OSError, ValueError, SyntaxError, RecursionError) as error:
            stdio.write(printable(f"timedrun show: skipped {name} in {folder}: {error}") + "\n")
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return ExitCode.OK
    for row in rows:
        print(stdio.fitted(printable(f"{row['benchmark']}: {row['title']} (ruleset {row['ruleset']})"), 4))
        for config, docstring in row["configs"].items():
            print(stdio.fitted(f"  {config:28} {docstring.partition(chr(10))[0]}", 31))
    return ExitCode.OK


def _list_methods(as_json: bool) -> ExitCode:
    """Print every method, in the order in which a stack applies them, and every setting that has a card."""
    cards, stages = method_cards.cards(), method_cards.stages()
    stages |= {name: "setting" for name, card in cards.items() if card.setting}
    rows = [
        {"method": name, "stage": stage.lower(), "summary": cards[name].summary}
        for name, stage in stages.items()
        if name in cards
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return ExitCode.OK
    for row in rows:
        print(stdio.fitted(f"{row['method']:26} {row['stage']:8} {row['summary']}", 36))
    return ExitCode.OK
