"""Script that completes verbs, options and names in a shell: `timedrun doctor --completion`."""

import argparse
from contextlib import suppress
from itertools import pairwise
from typing import Final

import shtab

from judging.ground.errors import ExitCode
from timedrun.commands.parser import parser
from timedrun.runner.storage import method_cards
from timedrun.runner.storage.benchmark_folders import config_docstrings, nearby, spec_texts

COMPLETED: Final = {
    **dict.fromkeys(
        ("benchmark", "BENCHMARK|command|FILE"), shtab.cmd("timedrun doctor --completion benchmarks 2>/dev/null")
    ),
    # Of the benchmarks on the line, which only bash gives.
    **dict.fromkeys(
        ("config", "CONFIG", "SIDE"),
        shtab.cmd("timedrun doctor --completion configs -- ${COMP_WORDS[@]:2} 2>/dev/null"),
    ),
    **dict.fromkeys(("PATH", "FILE", "RESULTS", "PUBLISHED", "FOLDER"), shtab.FILE),
}
"""How arguments are completed, by their names or metavariables."""


def completion(arguments: argparse.Namespace) -> ExitCode:
    """Print the script of a shell, or the names that the script requests."""
    known = nearby()
    what = arguments.completion
    if what == "benchmarks":
        print("\n".join(known))
    elif set(method_cards.WORDS).intersection(arguments.words[:1]):  # later, "methods" is a config
        print("\n".join(method_cards.cards()))
    elif what == "configs":
        words = arguments.words
        named = [name for name in known if any(f".{name}".endswith(f".{word}") for word in words)]
        for name in named or known:
            with suppress(OSError, ValueError, SyntaxError):  # `timedrun show` reports it
                configs = config_docstrings(name, known[name])
                data = [second for first, second in pairwise(words) if first == "--data"]
                start = f"{data[0] if data else spec_texts(name, known[name])['default_data']}_"
                print("\n".join([config.removeprefix(start) for config in configs if config.startswith(start)]))
                print("\n".join(configs))
    else:
        top = parser(describe_verbs=True)
        _complete(top)
        print(shtab.complete(top, what))
    return ExitCode.OK


def _complete(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _complete(verb)
        elif how := COMPLETED.get(str(action.metavar)) or COMPLETED.get(action.dest):
            action.complete = how  # type: ignore[attr-defined]
