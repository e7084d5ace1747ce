"""The parser of the command line: every verb, by purpose, with its options."""

from __future__ import annotations

import sys
import textwrap
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import timedrun
from judging.ground import stdio
from timedrun.commands import options

VERBS: Final = {
    "Run": {
        "prepare": "prepare, check or index a dataset",
        "preflight": "check a config, this machine, and the log and package of a dry run",
        "run": "train once, on the clock",
        "race": "run configs N times each, interleaved; check, score, package, plot and compare them",
        "sweep": "run configs at several lengths of their schedules, for curves of quality against time",
        "bench": "measure data loaders, or training steps of configs: throughput, MFU, memory",
        "auto": "choose the fastest settings of a config on this machine, by measured steps",
        "profile": "measure where the time of a config's steps goes, and the bottleneck",
    },
    "Judge": {
        "check": "check logs, result sets or packages, strictly and with MLCommons' checkers",
        "score": "score result sets: time to train",
        "compare": "compute the speed-up of the second result set over the first, with its interval",
        "reproduce": "recompute a package's scores, or repeat its runs, and report whether they match",
        "audit": "check, score and compare all results of a published round",
        "referee": "run somebody else's training script isolated, time it, and judge whether its result is true",
        "tradeoff": "compare configs by their curves of quality against time, at equal time and at equal quality",
        "plot": "plot quality, training loss or throughput over time of result sets",
        "report": "write a race, a sweep or result sets as one HTML file, with figures, configs and verdicts",
        "explore": "write result sets as an HTML page with plots, filters and a card per run",
        "export": "export the values of logs as CSV, or for TensorBoard or MLflow",
    },
    "Submit": {
        "forecast": "compute the probability that a closed set passes the check of reference convergence (RCP)",
        "system": "generate MLPerf's system description and list the fields to fill in",
        "package": "package result sets in MLPerf's layout",
    },
    "Inspect": {
        "list": "list benchmarks and their configs, or `list methods`",
        "show": "show the settings of a config, how two configs differ, or `show method NAME`",
        "new": "write a benchmark to start from",
        "doctor": "report the hardware and software that a run can use",
        "completion": 'print the completion script of a shell: eval "$(timedrun completion bash)"',
    },
}
"""Help of each verb by purpose. A verb is the function of its name in the module of its name in `timedrun.commands`,
which is imported only when the verb is called; `options.add_<verb>` adds its options."""


class _Version(Action):
    """Option that prints the version, which is looked up only then."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        print(f"timedrun {timedrun.__version__}")
        parser.exit()


def parser(*, describe_verbs: bool = False) -> ArgumentParser:
    """Return the parser of all verbs and their options.

    describe_verbs: with the help of each verb in argparse's list of them, for shell completion, not by purpose.
    """
    groups = [f"{name.lower()}:\n" + "\n".join(_help_lines(verbs)) for name, verbs in VERBS.items()]
    top = ArgumentParser(
        prog="timedrun",
        description="Train to a fixed quality on the clock, MLPerf style.",
        epilog="\n\n".join([*groups, "`timedrun VERB --help` describes the options of a verb."]),
        formatter_class=RawDescriptionHelpFormatter,
    )
    top.add_argument("-V", "--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", help="one of the verbs below")
    for name, text in {name: text for group in VERBS.values() for name, text in group.items()}.items():
        listed: dict[str, Any] = {"help": text} if describe_verbs else {}
        added = verbs.add_parser(name, description=text, allow_abbrev=False, **listed)
        added.add_argument("--json", action="store_true", help="machine-readable output")
        getattr(options, f"add_{name}")(added)
    return top


def _help_lines(verbs: Mapping[str, str]) -> Iterator[str]:
    width = min(100, stdio.terminal_columns(sys.stdout) or 100)
    for name, text in verbs.items():
        yield from textwrap.wrap(text, width, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)
