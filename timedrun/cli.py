"""The `timedrun` command: parse the command line, call the verb, turn errors into a message and an exit code."""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from timedrun import stdio
from timedrun.commands import options
from timedrun.distributed import parent_death_signal
from timedrun.errors import describe


@dataclass(frozen=True)
class Verb:
    """A verb of the command line; its module of `timedrun.commands` is imported only when it is called."""

    help: str
    add_options: Callable[[ArgumentParser], None]
    module: str
    function: str
    takes_overrides: bool = False
    """True if arguments that argparse does not know are config overrides, parsed by tyro."""


VERBS: Final = {
    "list": Verb("list benchmarks and their configs", options.add_list, "list", "list_benchmarks"),
    "show": Verb("show the settings of a config, or how two configs differ", options.add_show, "show", "show", True),
    "prepare": Verb("prepare, check or index a dataset", options.add_prepare, "prepare", "prepare", True),
    "run": Verb("train once, on the clock", options.add_run, "run", "run", True),
    "preflight": Verb(
        "check a config, this machine, and the log and package of a dry run",
        options.add_preflight,
        "preflight",
        "preflight",
        True,
    ),
    "race": Verb(
        "run configs N times each, interleaved; check, score, package, plot and compare them",
        options.add_race,
        "race",
        "race",
    ),
    "check": Verb(
        "check logs, result sets or packages, strictly and as MLCommons does", options.add_check, "check", "check"
    ),
    "score": Verb("score result sets: time to train", options.add_score, "score", "score"),
    "compare": Verb(
        "compute the speed-up of the second result set over the first, with its interval",
        options.add_compare,
        "compare",
        "compare",
    ),
    "system": Verb(
        "describe this machine in MLPerf's terms and list open questions", options.add_system, "system", "system"
    ),
    "package": Verb("package result sets in MLPerf's layout", options.add_package, "package", "package"),
    "bench": Verb("measure the throughput of data loaders, interleaved", options.add_bench, "bench", "bench", True),
    "reproduce": Verb(
        "recompute a package's scores, or repeat its runs, and compare", options.add_reproduce, "reproduce", "reproduce"
    ),
    "plot": Verb("plot quality over time of result sets", options.add_plot, "plot", "plot"),
}


def parser() -> ArgumentParser:
    """Return the parser of all verbs and their options."""
    top = ArgumentParser(prog="timedrun", description="Train to a fixed quality on the clock, MLPerf style.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        added = verbs.add_parser(name, help=verb.help, description=verb.help, allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="machine-readable output")
        verb.add_options(added)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code (see `ExitCode`)."""
    stdio.open_closed()
    words = list(sys.argv[1:] if argv is None else argv)
    top = parser()
    arguments, rest = top.parse_known_args(words)
    verb = VERBS[arguments.verb]
    if rest and not verb.takes_overrides:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        parent_death_signal.obey_environment()
        function = getattr(importlib.import_module(f"timedrun.commands.{verb.module}"), verb.function)
        extra = (rest, words) if arguments.verb == "run" else (rest,) if verb.takes_overrides else ()
        code = function(arguments, *extra)
        sys.stdout.flush()
        return int(code)
    except (Exception, KeyboardInterrupt) as error:
        said = describe(error)
        if said is None:
            raise
        if said[1]:
            stdio.write(f"timedrun {arguments.verb}: {said[1]}\n")
        return int(said[0])
    finally:
        for stream in (sys.stdout, sys.stderr):
            stdio.flush(stream)
