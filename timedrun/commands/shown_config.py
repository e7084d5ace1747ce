"""Settings of a config, the difference of two, or the card of a method: `timedrun show`."""

import argparse
import json
import sys
from itertools import groupby

from judging.ground import stdio
from judging.ground.config_values import differing, flatten
from judging.ground.errors import ExitCode, UsageError
from judging.pages.table import Table
from mlevents.terminal_escape import printable
from timedrun.commands.chosen_config import settings_of
from timedrun.runner.benchmark import find
from timedrun.runner.config import digest, dump
from timedrun.runner.config_choice import config_of
from timedrun.runner.method_card import find_card, own_rows, rows
from timedrun.runner.storage.method_cards import WORDS
from timedrun.runner.storage.method_sources import REFERENCE


def show_config(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Print every setting of a config, or only those in which two configs differ, or the card of a method."""
    if arguments.benchmark in WORDS:
        if rest and rest != ["--help"]:
            raise UsageError(f"`timedrun show method NAME` has no option {rest[0]}; a card has no settings to change.")
        return _show_method(arguments.config, arguments.json)
    if arguments.diff:
        benchmark = find(arguments.benchmark, working_directory=True)
        prog = f"timedrun show {benchmark.name}"
        left, right = (config_of(benchmark, of, arguments.data, rest, prog=f"{prog} {of}") for of in arguments.diff)
        rows = differing(dump(left), dump(right))
        names = arguments.diff if left.name == right.name else [left.name, right.name]
        if arguments.json:
            print(json.dumps([{"setting": k, names[0]: a, names[1]: b} for k, a, b in rows], indent=2))
        else:
            Table(["setting", *names], [[k, _text(a), _text(b)] for k, a, b in rows]).show()
        return ExitCode.OK
    benchmark, config = settings_of(arguments, rest)
    if arguments.json:
        print(json.dumps(dump(config), indent=2))
        return ExitCode.OK
    settings = {key: _text(value) for key, value in flatten(dump(config)).items()}
    notes = settings.pop("notes", "")
    table: list[list[str]] = []
    for group, keys in groupby(settings, key=lambda key: key.partition(".")[0] if "." in key else ""):
        table += [["", ""]] if group and table else []
        table += [[key, settings[key]] for key in keys]
    Table(["setting", "value"], table).show()
    stdio.show(
        "\n".join(["", *([stdio.fitted(f"notes: {notes}", 0), ""] if notes else []), f"digest {digest(config)}"])
    )
    split = [name.partition("_") for name in benchmark.config_names]
    others = [data for data, _, name in split if name == arguments.config and data != config.dataset]
    if others and not arguments.data:
        stdio.show(f"data {config.dataset}, the default; other configs of this name: --data {' or '.join(others)}")
    return ExitCode.OK


def _show_method(name: str, as_json: bool) -> ExitCode:
    """Print the card of a method or setting, as wide as the terminal."""
    own = REFERENCE.fullmatch(name)
    facts = own_rows(name) if own else [("title", (card := find_card(name)).title), *rows(card)]
    if as_json:
        print(json.dumps({"method": name, **dict(facts)}, indent=2))
    else:
        # Printed plainly: what is green in a verdict means nothing in a card.
        stdio.stage("")
        table = Table([name, facts[0][1]], [list(map(printable, fact)) for fact in facts[1:]])
        print("\n".join(table.lines(stdio.terminal_columns(sys.stdout))))
    return ExitCode.OK


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
