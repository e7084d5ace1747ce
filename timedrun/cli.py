"""The `timedrun` command: parse the command line, call the verb, turn errors into a message and an exit code."""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from timedrun import stdio
from timedrun.commands import options
from timedrun.distributed import parent_death_signal
from timedrun.errors import describe

VERBS: Final = {
    "list": "list benchmarks and their configs",
    "show": "show the settings of a config, or how two configs differ",
    "prepare": "prepare, check or index a dataset",
    "run": "train once, on the clock",
    "preflight": "check a config, this machine, and the log and package of a dry run",
    "race": "run configs N times each, interleaved; check, score, package, plot and compare them",
    "check": "check logs, result sets or packages, strictly and as MLCommons does",
    "score": "score result sets: time to train",
    "audit": "check, score and compare all results of a published round",
    "forecast": "compute the probability that a closed set passes the check of reference convergence (RCP)",
    "compare": "compute the speed-up of the second result set over the first, with its interval",
    "system": "describe this machine in MLPerf's terms and list open questions",
    "package": "package result sets in MLPerf's layout",
    "bench": "measure the throughput of data loaders, interleaved",
    "reproduce": "recompute a package's scores, or repeat its runs, and compare",
    "plot": "plot quality over time of result sets",
}
"""Help of each verb, the function of its name in the module of its name in `timedrun.commands`, which is imported only
when the verb is called; `options.add_<verb>` adds its options."""

TAKE_OVERRIDES: Final = ("show", "prepare", "run", "preflight", "bench")
"""Verbs for which arguments that argparse does not know are config overrides, parsed by tyro."""


def parser() -> ArgumentParser:
    """Return the parser of all verbs and their options."""
    top = ArgumentParser(prog="timedrun", description="Train to a fixed quality on the clock, MLPerf style.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, text in VERBS.items():
        added = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="machine-readable output")
        getattr(options, f"add_{name}")(added)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code (see `ExitCode`)."""
    stdio.open_closed()
    words = list(sys.argv[1:] if argv is None else argv)
    top = parser()
    arguments, rest = top.parse_known_args(words)
    verb = arguments.verb
    if rest and verb not in TAKE_OVERRIDES:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        parent_death_signal.obey_environment()
        function = getattr(importlib.import_module(f"timedrun.commands.{verb}"), verb)
        extra = (rest, words) if verb == "run" else (rest,) if verb in TAKE_OVERRIDES else ()
        code = function(arguments, *extra)
        sys.stdout.flush()
        return int(code)
    except (Exception, KeyboardInterrupt) as error:
        said = describe(error)
        if said is None:
            raise
        if said[1]:
            stdio.write(f"timedrun {verb}: {said[1]}\n")
        return int(said[0])
    finally:
        for stream in (sys.stdout, sys.stderr):
            stdio.flush(stream)
